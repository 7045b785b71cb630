"""Verdicts, and those on a loop that waits for its input: which part is slow, what would help.

For a tabfeed loader, the times of its threads decide between reading, decoding, transforming,
gathering and copying. For other loaders, the lines of code where the loop waits decide, or parts of
the loader timed on a sample.

Gains are predictions from measured times, limited by the model's own step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tabfeed.display import count, percent, rate, seconds, times
from tabfeed.profile.run import STAGE_LABELS, WAITING_STAGES, Run, Stage

MIN_GAIN = 1.05  # a smaller gain is not mentioned
CAUSES = {
    "short": "run too short",
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


@dataclass(frozen=True)
class Advice:
    """Something to do, and the highest speedup of training to expect, if known."""

    text: str
    gain: float | None = None

    def __str__(self) -> str:
        if self.gain is None or self.gain < MIN_GAIN:
            return self.text
        return f"{self.text} (up to {times(self.gain)})"


@dataclass(frozen=True)
class Verdict:
    """The cause, a key of `CAUSES`; one sentence; evidence; what to do."""

    cause: str
    sentence: str
    evidence: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the input needs no improvement."""
        return self.cause == "compute"


def cause_of(run: Run, verdict: Verdict) -> str:
    """The cause in a few words; a loader without a model is limited, not starved."""
    text = CAUSES[verdict.cause]
    return text if run.model else text.replace("starved", "limited").replace("held up", "limited")


def waited(run: Run) -> str:
    """How long the loop waited for data, and the GPU with it."""
    host = f"waiting for data: {percent(run.times.wait_share)} of the time after start-up"
    if run.device is None:
        return host
    return f"{host}; the GPU was idle for {percent(run.wait_share)} of it"


def crowded(run: Run) -> tuple[str, ...]:
    """The training thread's wait for a core, if it matters."""
    main = next((t for t in run.threads if t.name == "MainThread"), None)
    if main is None or run.elapsed <= 0 or main.delay / run.elapsed < 0.2:
        return ()
    share = percent(main.delay / run.elapsed)
    text = f"the training thread waited for a core {share} of the time: the machine is overloaded"
    return (text,)


def top_lines(run: Run, phase: str) -> list[str]:
    """The lines the training thread was at most often, in one phase."""
    samples = [s for s in run.seen if s.phase == phase]
    total = sum(s.count for s in samples)
    return [f"in {s.where}: {percent(s.count / total)} of samples" for s in samples[:2]]


def step_without_waiting(run: Run) -> float:
    """Seconds of a step without its wait."""
    return (run.times.compute + run.times.copy) / run.steps.count


# -- the input is slow ---------------------------------------------------------------------------

_OF_STAGE = {
    "fetch": "read",
    "read": "decode",
    "transform": "transform",
    "gather": "gather",
    "plan": "gather",
    "convert": "batches",
    "finish": "batches",
    "chunk": "batches",
    "ahead": "batches",
    "copy": "copy",
    "queue": "copy",
}
# Pure computation: time off a core means a busy machine, not slow work.
_COMPUTED = ("gather", "plan", "convert", "finish", "chunk", "ahead")


def judge_starved(run: Run) -> Verdict:
    """Find the slow part of the input."""
    busy = [s for s in run.stages if s.name not in WAITING_STAGES]
    if busy:
        return _starved_by_stage(run, busy)
    if any(part.seconds > 0 for part in run.parts):
        return _starved_by_part(run)
    return _starved_by_line(run)


def _starved_by_stage(run: Run, busy: list[Stage]) -> Verdict:
    total = sum(s.seconds for s in busy)
    top = max(busy, key=lambda s: s.cpu if s.name in _COMPUTED else s.work)
    cause = _OF_STAGE.get(top.name, "batches")
    if cause == "decode" and top.on_core < 0.5:
        cause = "read"
    share = percent(top.work / (sum(s.work for s in busy) or 1.0))
    label = STAGE_LABELS.get(top.name, top.name)
    work = {
        "read": f"reading, {percent(1 - top.on_core)} of that waiting for storage",
        "decode": "decoding files",
        "transform": _slowest_transform(run),
        "copy": "copying to the device",
    }.get(cause, label)
    why = f"{share} of the loader's work is {work}"
    return Verdict(
        cause,
        _sentence(run, cause, why),
        (waited(run), _supply_line(run, total), f"{label}: {_core_line(top)}"),
        _stage_advice(run, cause, top, total),
    )


def _sentence(run: Run, cause: str, why: str) -> str:
    name = CAUSES[cause].removeprefix("held up by ").removeprefix("starved by ")
    if run.model:
        waits = percent(run.wait_share)
        return f"Starved by {name}: the loop waited {waits} of the time, and {why}."
    fed = run.rows_per_second
    speed = rate(fed) if fed else f"a batch every {seconds(run.step_seconds)}"
    return f"Limited by {name}: without a model, the loader delivers {speed}, and {why}."


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
    """Seconds per step if the loader's threads did `work` seconds in the run and nothing else.

    Some of their work was done before the first batch or for batches that were not used. All of it
    together can't have taken longer than the steps that waited for it, so it is scaled to that.
    """
    total = sum(s.seconds for s in run.stages if s.name not in WAITING_STAGES)
    now = total / (run.loader.threads or 1) / run.steps.count
    known = min(1.0, run.step_seconds / now) if now > 0 else 1.0
    return known * work / threads / run.steps.count


def _gain(run: Run, supply: float) -> float | None:
    """The speedup of the run if a batch arrives every `supply` seconds."""
    if not run.model:
        return run.step_seconds / supply if supply > 0 else None
    step = max(step_without_waiting(run), supply)
    return run.step_seconds / step if step > 0 else None


def _supply_line(run: Run, work: float) -> str:
    threads = run.loader.threads or 1
    supply = seconds(_supply(run, work, threads))
    step = seconds(step_without_waiting(run))
    return f"{threads} loader threads need {supply} per batch; a step without waiting takes {step}"


def _core_line(stage: Stage) -> str:
    whole = max(stage.seconds, 1e-9)
    line = f"{percent(stage.cpu / whole)} of it on a core"
    waited = stage.delay / whole
    return f"{line}, {percent(waited)} waiting for one" if waited > 0.01 else line


def _stage_advice(run: Run, cause: str, top: Stage, total: float) -> tuple[Advice, ...]:
    threads = run.loader.threads or 1
    without = _gain(run, _supply(run, total - top.seconds, threads))
    more = _more_threads(run, total, top.on_core)
    fixes = {
        "read": Advice('cache the data: cache="memory" or cache="disk"', without),
        "decode": Advice(
            "rewrite the files once: tabfeed rewrite DATA OUT; tabfeed doctor DATA finds the "
            "largest cost",
            without,
        ),
        "transform": Advice("transform once and save: ds.map(...).to_parquet(...)", without),
        "copy": Advice("copy fewer bytes: smaller dtypes, fewer columns", without),
        "gather": Advice("shuffle the files once and read in order", without),
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
            run,
            cause,
            f"{percent(top.seconds / total)} of the time {run.loader.name} needs per batch is "
            f"{top.name}, timed alone on a sample",
        ),
        (waited(run), *(f"{p.name}: {seconds(p.seconds)} per batch" for p in run.parts)),
        (*_baseline(run), Advice("use more parallel calls, or do it once and save the result")),
    )


def _starved_by_line(run: Run) -> Verdict:
    counts: Counter[str] = Counter()
    for seen in run.seen:
        if seen.phase == "wait":
            counts[seen.kind] += seen.count
    if not counts:
        return Verdict(
            "input",
            _sentence(run, "input", "the profiler can't see into this loader"),
            (waited(run),),
            _baseline(run),
        )
    kind, samples = counts.most_common(1)[0]
    where = next(s.where for s in run.seen if s.phase == "wait" and s.kind == kind)
    share = percent(samples / sum(counts.values()))
    cause = kind if kind in CAUSES else "input"
    why = {
        "workers": f"{share} of that is waiting for worker processes",
        "tf.data": "the time goes to tf.data's own threads",
    }.get(kind, f"{share} of that is in {where}")
    if cause == "python":  # Python, but in the loader's code
        cause = "input"
    return Verdict(
        cause,
        _sentence(run, cause, why),
        (waited(run), *top_lines(run, "wait")),
        (*_line_advice(run, cause), *_baseline(run)),
    )


def _line_advice(run: Run, cause: str) -> tuple[Advice, ...]:
    gain = _gain(run, 0.0)
    if cause == "workers":
        return (Advice("raise num_workers if cores are free, or do less work per batch", gain),)
    if run.loader.processes == 0:
        return (Advice("load in worker processes: num_workers above 0", gain),)
    return (Advice("load in a background thread, or prepare the data once", gain),)


def _baseline(run: Run) -> tuple[Advice, ...]:
    if run.through is None or not run.steps.rows:
        return ()
    rows = run.steps.rows / run.steps.count
    fed = rate(run.through.rows_per_second)
    return (
        Advice(
            f"a tabfeed loader delivers {fed} of the same columns from Parquet on this machine, "
            f"measured on a sample of {count(run.through.rows)} rows",
            _gain(run, rows / run.through.rows_per_second),
        ),
    )


def judge_unseen(run: Run) -> Verdict:
    """The framework fetches batches inside its compiled step: only the sum is visible."""
    alone = sum(p.seconds for p in run.parts)
    step = run.step_seconds
    if not alone:
        return Verdict(
            "unseen",
            f"Steps take {seconds(step)}, but this framework fetches batches inside its step, "
            "where waits are not visible: pass data= to the callback to time the input alone.",
        )
    facts = (f"the input alone: {seconds(alone)} per batch", f"a step: {seconds(step)}")
    if alone >= 0.8 * step:
        return Verdict(
            "input",
            f"Starved by the input: alone it needs {seconds(alone)} per batch, and a step takes "
            f"{seconds(step)}.",
            facts,
            _baseline(run),
        )
    return Verdict(
        "compute",
        f"Compute-bound: a step takes {seconds(step)}, and the input alone needs only "
        f"{seconds(alone)} per batch.",
        facts,
    )
