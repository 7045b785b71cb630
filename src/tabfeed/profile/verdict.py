"""What held this run up, in one sentence, with the evidence and what to do about it.

The rules are few and in one order: too little to say, start-up, batches too small, whichever of
waiting, copying and Python is largest, crowded cores, and else nothing: the model itself. What the
loader's threads did decides between reading, decoding, transforming, gathering and copying; for a
loader whose threads cannot be seen, the lines of code where the loop was found waiting decide, and
parts of it timed on a sample.

Gains are predictions from the measured times, never better than the model's own step allows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tabfeed.profile.run import Part, Run, Stage
from tabfeed.profile.stages import LABELS, WAITING
from tabfeed.profile.words import count, percent, rate, seconds, times

__all__ = ["CAUSES", "Advice", "Verdict", "cause_of", "judge"]

CAUSES = {
    "short": "too little to say",
    "unseen": "waits not visible",
    "startup": "start-up",
    "read": "starved by reading",
    "decode": "starved by decoding",
    "transform": "starved by the transform",
    "gather": "starved by shuffling",
    "batches": "starved by making batches",
    "copy": "held up by the copy to the device",
    "python": "held up by Python in the training loop",
    "small_batches": "batches too small",
    "workers": "starved by worker processes",
    "input": "starved by the input",
    "crowded": "cores too crowded",
    "compute": "compute-bound",
}
_STARVED = 0.10
_HELD = 0.4
_ON_CORE = 0.5
_FEWEST = 5
_FEWEST_LOOKS = 5
_SMALL_ROWS = 512
_SMALL_STEP = 0.003
_OF_STAGE = {
    "read": "decode",
    "transform": "transform",
    "gather": "gather",
    "plan": "gather",
    "convert": "batches",
    "finish": "batches",
    "chunk": "batches",
    "copy": "copy",
}


@dataclass(frozen=True)
class Advice:
    """Something to do, and how many times as fast training would be at most, if that is known."""

    text: str
    gain: float | None = None

    def __str__(self) -> str:
        return self.text if self.gain is None else f"{self.text} (up to {times(self.gain)})"


@dataclass(frozen=True)
class Verdict:
    """The cause, by a word of `CAUSES`; a sentence; why; what to do."""

    cause: str
    sentence: str
    evidence: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def good(self) -> bool:
        """Whether there is nothing to do about the input."""
        return self.cause == "compute"


def cause_of(run: Run, verdict: Verdict) -> str:
    """The cause in a few words; a feed without a model is limited, not starved."""
    words = CAUSES[verdict.cause]
    return words if run.model else words.replace("starved", "limited").replace("held up", "limited")


def judge(run: Run) -> Verdict:
    """The verdict on a run."""
    if run.steps.count < _FEWEST:
        return Verdict(
            "short",
            f"Too little to say: {run.steps.count} steps were seen, and it takes {_FEWEST}.",
        )
    if not run.waits_seen:
        return _judge_unseen(run)
    for rule in (_startup, _small_batches, _largest, _crowded_cores):
        found = rule(run)
        if found is not None:
            return found
    return _compute_bound(run)


# -- rules ---------------------------------------------------------------------------------------


def _startup(run: Run) -> Verdict | None:
    share = run.times.startup / run.times.wall
    if share < 0.5 or run.wait_share >= _STARVED or not run.model:
        return None
    return Verdict(
        "startup",
        f"Start-up: {percent(share)} of the run went by before the first batch "
        f"({seconds(run.times.startup)} of {seconds(run.times.wall)}); after that the input keeps "
        "up.",
        (_waited(run),),
        (Advice("keep the loader over epochs, or run longer", run.times.wall / run.times.steady),),
    )


def _small_batches(run: Run) -> Verdict | None:
    rows = None if run.steps.rows is None else run.steps.rows / run.steps.count
    cpu = None if run.times.cpu is None else run.times.cpu / run.times.wall
    if rows is None or cpu is None or not run.model:
        return None
    if rows > _SMALL_ROWS or run.step_seconds > _SMALL_STEP or cpu < _ON_CORE:
        return None
    step = seconds(run.step_seconds)
    return Verdict(
        "small_batches",
        f"Batches are too small: {count(rows)} rows a step, and the {step} a step takes is mostly "
        "overhead that the rows of a larger batch would share.",
        (
            f"the training thread was on a core {percent(cpu)} of the time",
            _waited(run),
            *_halved(run),
        ),
        (Advice("take a batch_size 8 times as large", _larger_batch_gain(run)),),
    )


def _halved(run: Run) -> tuple[str, ...]:
    ceiling = run.ceiling
    if ceiling is None or ceiling.half_seconds is None:
        return ()
    ratio = ceiling.half_seconds / ceiling.seconds
    return (f"a step with half the rows takes {percent(ratio)} of the time (measured)",)


def _larger_batch_gain(run: Run, factor: int = 8) -> float | None:
    """From the step's time as a fixed part and a part for each row, if two sizes were measured."""
    ceiling = run.ceiling
    if ceiling is None or ceiling.half_seconds is None:
        return None
    by_rows = min(ceiling.seconds, max(0.0, 2 * (ceiling.seconds - ceiling.half_seconds)))
    fixed = ceiling.seconds - by_rows
    return factor * ceiling.seconds / (fixed + factor * by_rows)


def _largest(run: Run) -> Verdict | None:
    """Waiting, copying in the loop, or Python in the loop: the largest of those that matter."""
    computing = 1.0 - run.wait_share
    python = run.interpreter.compute_share
    if run.interpreter.compute_looks < _FEWEST_LOOKS or python < _HELD or not run.model:
        python = 0.0
    shares = {
        "wait": run.wait_share,
        "copy": max(run.times.copy / run.times.steady, computing * _seen_copying(run)),
        "python": computing * python,
    }
    cause, share = max(shares.items(), key=lambda item: item[1])
    if share < _STARVED and run.model:
        return None
    if cause == "copy":
        return _copying(run, share)
    if cause == "python":
        return _python(run)
    return _starved(run)


def _seen_copying(run: Run) -> float:
    looks = [s for s in run.seen if s.phase == "compute"]
    total = sum(s.count for s in looks)
    copies = sum(s.count for s in looks if s.kind == "copy")
    return copies / total if total >= _FEWEST_LOOKS else 0.0


def _copying(run: Run, share: float) -> Verdict:
    where = next((s.where for s in run.seen if s.kind == "copy"), None)
    place = f", in {where}" if where else ""
    return Verdict(
        "copy",
        f"Held up by the copy to the device: it takes {percent(share)} of the training loop's "
        f"time{place}.",
        (_waited(run),),
        (
            Advice(
                "copy ahead of the step: pinned memory and non_blocking=True, or a tabfeed loader "
                "with device=, which copies in the background",
                1 / max(0.05, 1 - share),
            ),
        ),
    )


def _python(run: Run) -> Verdict:
    held = run.interpreter.compute_share
    return Verdict(
        "python",
        f"Held up by Python in the training loop: while it computed, the interpreter was taken "
        f"{percent(held)} of the time, and nothing else in Python, the loader included, could run.",
        (_waited(run), *_top_places(run, "compute")),
        (
            Advice(
                "take Python out of the step: fewer, larger calls (torch.compile, tf.function, "
                "jit), metrics every n steps, no .item() or .numpy() in each"
            ),
        ),
    )


def _crowded_cores(run: Run) -> Verdict | None:
    """The loop hardly waits, yet its step takes longer than it does alone."""
    step = _step_without_waiting(run)
    if run.ceiling is None or run.device is not None or step < 1.25 * run.ceiling.seconds:
        return None
    alone = seconds(run.ceiling.seconds)
    return Verdict(
        "crowded",
        f"Cores are too crowded: the loop waited for data only {percent(run.wait_share)} of the "
        f"time, but its step takes {seconds(step)} where alone it takes {alone}.",
        (
            *_crowded(run),
            f"you get {percent(run.efficiency)} of what this model could do, measured",
            *_top_places(run, "compute"),
        ),
        (
            Advice(
                "leave cores to the model: fewer loader threads, less work for each batch "
                "(transform once and save), nothing else on this machine",
                run.step_seconds / run.ceiling.seconds,
            ),
        ),
    )


def _compute_bound(run: Run) -> Verdict:
    measured = ""
    if run.ceiling is not None:
        measured = f" You get {percent(run.efficiency)} of what this model could do, measured."
    return Verdict(
        "compute",
        f"Compute-bound: the loop waited for data {percent(run.wait_share)} of the time; the input "
        f"keeps up.{measured}",
        (*_crowded(run), *_top_places(run, "compute")),
        (Advice("to go faster, make the step itself faster; the input has nothing more to give"),),
    )


# -- starved -------------------------------------------------------------------------------------


def _starved(run: Run) -> Verdict:
    busy = [s for s in run.stages if s.name not in WAITING]
    if busy:
        return _starved_by_stage(run, busy)
    if run.parts:
        return _starved_by_part(run)
    return _starved_by_place(run)


def _opening(run: Run) -> str:
    if not run.model:
        fed = run.rows_per_second
        told = rate(fed) if fed else f"a batch every {seconds(run.step_seconds)}"
        return f"fed alone, the data gives {told}"
    return f"the loop waited {percent(run.wait_share)} of the time"


def _starved_by_stage(run: Run, busy: list[Stage]) -> Verdict:
    total = sum(s.seconds for s in busy)
    top = max(busy, key=lambda s: s.seconds)
    on_core = top.cpu / top.seconds if top.seconds else 1.0
    cause = _OF_STAGE.get(top.name, "batches")
    if cause == "decode" and on_core < 0.5:
        cause = "read"
    share = percent(top.seconds / total)
    label = LABELS.get(top.name, top.name)
    sentence = {
        "read": f"{share} of the loader's work is reading, {percent(1 - on_core)} of that waiting "
        "for the storage",
        "decode": f"{share} of the loader's work is decoding files",
        "transform": f"{share} of the loader's work is {_slowest_transform(run)}",
        "copy": f"{share} of the loader's work is copying to the device",
    }.get(cause, f"{share} of the loader's work is {label}")
    return Verdict(
        cause,
        _sentence(cause, _opening(run), sentence, run),
        (_waited(run), _supply_line(run, total), f"{label}: {percent(on_core)} of it on a core"),
        _stage_advice(run, cause, top, total),
    )


def _sentence(cause: str, opening: str, why: str, run: Run) -> str:
    name = CAUSES[cause].removeprefix("held up by ").removeprefix("starved by ")
    start = "Starved by" if run.model else "Limited by"
    return f"{start} {name}: {opening}, and {why}."


def _slowest_transform(run: Run) -> str:
    parts = [p for p in run.parts if p.kind == "transform"]
    if parts:
        top = max(parts, key=lambda p: p.seconds)
        share = top.seconds / sum(p.seconds for p in parts)
        return f"the transform, {percent(share)} of that in {top.name}"
    if run.transforms:
        return f"the transform {max(run.transforms, key=lambda n: run.transforms[n])}"
    return "the transform"


def _supply(run: Run, work: float, threads: int) -> float:
    """Seconds a step if the loader's threads did `work` seconds in the run and nothing else."""
    return work / threads / run.steps.count


def _step_without_waiting(run: Run) -> float:
    return (run.times.compute + run.times.copy) / run.steps.count


def _gain(run: Run, supply: float) -> float | None:
    """How many times as fast the run would be with batches coming every `supply` seconds."""
    if not run.model:
        return run.step_seconds / supply if supply > 0 else None
    step = max(_step_without_waiting(run), supply)
    return run.step_seconds / step if step > 0 else None


def _supply_line(run: Run, work: float) -> str:
    threads = run.loader.threads or 1
    supply = seconds(_supply(run, work, threads))
    step = seconds(_step_without_waiting(run))
    return f"{threads} loader threads need {supply} for a batch; a step without waiting is {step}"


def _stage_advice(run: Run, cause: str, top: Stage, total: float) -> tuple[Advice, ...]:
    threads = run.loader.threads or 1
    without = _gain(run, _supply(run, total - top.seconds, threads))
    on_core = top.cpu / top.seconds if top.seconds else 1.0
    more = _more_threads(run, total, on_core)
    fixes = {
        "read": Advice('keep what was read: cache="memory" or cache="disk"', without),
        "decode": Advice(
            "write the files once for reading often: Dataset.to_parquet, uncompressed and plain",
            without,
        ),
        "transform": Advice("transform once and save: ds.map(...).to_parquet(...)", without),
        "copy": Advice("copy fewer bytes: smaller dtypes, fewer columns", without),
        "gather": Advice("shuffle once on disk and read in order", without),
    }
    found = [fixes[cause]] if cause in fixes else []
    return (*more, *found)


def _more_threads(run: Run, total: float, on_core: float) -> tuple[Advice, ...]:
    threads, cores = run.loader.threads or 1, run.machine.cores
    wanted = threads * 2 if on_core < 0.5 else min(threads * 2, cores)
    if wanted <= threads:
        return ()
    return (
        Advice(f"more loader threads: threads={wanted}", _gain(run, _supply(run, total, wanted))),
    )


def _starved_by_part(run: Run) -> Verdict:
    top = max(run.parts, key=lambda p: p.seconds)
    total = sum(p.seconds for p in run.parts)
    cause = top.kind if top.kind in CAUSES else "input"
    return Verdict(
        cause,
        _sentence(
            cause,
            _opening(run),
            f"{percent(top.seconds / total)} of the time {run.loader.name} needs for a batch is "
            f"{top.name}, timed alone on a sample",
            run,
        ),
        (_waited(run), *(_part_line(p) for p in run.parts)),
        (*_through(run), Advice("more parallel calls, or do it once and save the result")),
    )


def _part_line(part: Part) -> str:
    return f"{part.name}: {seconds(part.seconds)} for a batch"


def _starved_by_place(run: Run) -> Verdict:
    counts: Counter[str] = Counter()
    for seen in run.seen:
        if seen.phase == "wait":
            counts[seen.kind] += seen.count
    if not counts:
        return Verdict(
            "input",
            _sentence("input", _opening(run), "the loader shows nothing of what it does", run),
            (_waited(run),),
            _through(run),
        )
    kind, looks = counts.most_common(1)[0]
    where = next(s.where for s in run.seen if s.phase == "wait" and s.kind == kind)
    share = percent(looks / sum(counts.values()))
    cause = kind if kind in CAUSES else "input"
    why = {
        "workers": f"was found waiting for worker processes {share} of that",
        "tf.data": "tf.data's own threads are where the time goes",
    }.get(kind, f"{share} of that was found in {where}")
    if cause == "python":  # Python, but in the loader's code
        cause = "input"
    return Verdict(
        cause,
        _sentence(cause, _opening(run), why, run),
        (_waited(run), *_top_places(run, "wait")),
        (*_place_advice(run, cause), *_through(run)),
    )


def _place_advice(run: Run, cause: str) -> tuple[Advice, ...]:
    gain = _gain(run, 0.0)
    if cause == "workers":
        return (Advice("more num_workers if cores are free, or less work for each batch", gain),)
    if run.loader.processes == 0:
        return (Advice("do it ahead of the loop: num_workers above 0", gain),)
    return (Advice("do it ahead of the loop, in a background thread or once and for all", gain),)


def _through(run: Run) -> tuple[Advice, ...]:
    if run.through is None or not run.steps.rows:
        return ()
    rows = run.steps.rows / run.steps.count
    fed = rate(run.through.rows_per_second)
    return (
        Advice(
            f"tabfeed gave {fed} of the same columns from Parquet files on this machine, measured "
            f"on a sample of {count(run.through.rows)} rows",
            _gain(run, rows / run.through.rows_per_second),
        ),
    )


def _judge_unseen(run: Run) -> Verdict:
    """A framework that takes batches inside its own compiled step: only the sum is visible."""
    alone = sum(p.seconds for p in run.parts)
    step = run.step_seconds
    if not alone:
        return Verdict(
            "unseen",
            f"Steps take {seconds(step)}, but this framework takes batches inside its step, where "
            "waiting cannot be seen: give data= to the callback, and the input is timed alone.",
        )
    facts = (f"the input alone: {seconds(alone)} a batch", f"a step: {seconds(step)}")
    if alone >= 0.8 * step:
        return Verdict(
            "input",
            f"Starved by the input: alone it needs {seconds(alone)} for a batch, and a step takes "
            f"{seconds(step)}.",
            facts,
            _through(run),
        )
    return Verdict(
        "compute",
        f"Compute-bound: a step takes {seconds(step)}, and the input alone needs only "
        f"{seconds(alone)} for a batch.",
        facts,
    )


# -- evidence ------------------------------------------------------------------------------------


def _waited(run: Run) -> str:
    host = f"waiting for data: {percent(run.times.wait_share)} of the time after start-up"
    if run.device is None:
        return host
    return f"{host}; the GPU was idle for want of a batch {percent(run.wait_share)}"


def _crowded(run: Run) -> tuple[str, ...]:
    """The training thread's wait for a core, if it is long enough to matter."""
    main = next((t for t in run.threads if t.name == "MainThread"), None)
    if main is None or run.elapsed <= 0 or main.delay / run.elapsed < 0.2:
        return ()
    share = percent(main.delay / run.elapsed)
    return (
        f"the training thread waited for a core {share} of the time: too much runs here at once",
    )


def _top_places(run: Run, phase: str) -> list[str]:
    looks = [s for s in run.seen if s.phase == phase]
    total = sum(s.count for s in looks)
    return [f"found in {s.where}: {percent(s.count / total)} of looks" for s in looks[:2]]
