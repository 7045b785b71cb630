"""A loop that waits for its input: which part of the input, and what would help.

What the loader's threads did decides between reading, decoding, transforming, gathering and
copying; for a loader whose threads cannot be seen, the lines of code where the loop was found
waiting decide, and parts of it timed on a sample.

Gains are predictions from the measured times, never better than the model's own step allows.
"""

from __future__ import annotations

from collections import Counter

from tabfeed.profile.analyse.findings import (
    CAUSES,
    Advice,
    Verdict,
    step_without_waiting,
    top_places,
    waited,
)
from tabfeed.profile.analyse.stages import LABELS, WAITING
from tabfeed.profile.format import count, percent, rate, seconds
from tabfeed.profile.run import Part, Run, Stage

__all__ = ["judge_starved", "judge_unseen"]

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
# Work that waits for nothing but a core and the interpreter, which on a busy machine others hold.
_COMPUTED = ("gather", "plan", "convert", "finish", "chunk", "ahead")


def judge_starved(run: Run) -> Verdict:
    """Which part of the input it is."""
    busy = [s for s in run.stages if s.name not in WAITING]
    if busy:
        return _starved_by_stage(run, busy)
    if any(part.seconds > 0 for part in run.parts):
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
    top = max(busy, key=lambda s: s.cpu if s.name in _COMPUTED else s.seconds)
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
        (waited(run), _supply_line(run, total), f"{label}: {percent(on_core)} of it on a core"),
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
    """Seconds a step if the loader's threads did `work` seconds in the run and nothing else.

    All that they did, some of it before the first batch or for batches nobody took, cannot have
    taken longer than the steps that waited for it.
    """
    total = sum(s.seconds for s in run.stages if s.name not in WAITING)
    now = total / (run.loader.threads or 1) / run.steps.count
    known = min(1.0, run.step_seconds / now) if now > 0 else 1.0
    return known * work / threads / run.steps.count


def _gain(run: Run, supply: float) -> float | None:
    """How many times as fast the run would be with batches coming every `supply` seconds."""
    if not run.model:
        return run.step_seconds / supply if supply > 0 else None
    step = max(step_without_waiting(run), supply)
    return run.step_seconds / step if step > 0 else None


def _supply_line(run: Run, work: float) -> str:
    threads = run.loader.threads or 1
    supply = seconds(_supply(run, work, threads))
    step = seconds(step_without_waiting(run))
    return f"{threads} loader threads need {supply} for a batch; a step without waiting is {step}"


def _stage_advice(run: Run, cause: str, top: Stage, total: float) -> tuple[Advice, ...]:
    threads = run.loader.threads or 1
    without = _gain(run, _supply(run, total - top.seconds, threads))
    on_core = top.cpu / top.seconds if top.seconds else 1.0
    more = _more_threads(run, total, on_core)
    fixes = {
        "read": Advice('keep what was read: cache="memory" or cache="disk"', without),
        "decode": Advice(
            "write the files once for reading often: tabfeed rewrite DATA OUT; tabfeed doctor DATA "
            "says what costs most",
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
        (waited(run), *(_part_line(p) for p in run.parts)),
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
            (waited(run),),
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
        (waited(run), *top_places(run, "wait")),
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


def judge_unseen(run: Run) -> Verdict:
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
