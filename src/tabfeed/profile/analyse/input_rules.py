"""A loop that waits for its input: which part of the input is slow, and what would help.

For a tabfeed loader, the times of its threads decide between reading, decoding, transforming,
gathering and copying. For other loaders, the lines of code where the loop waits decide, or parts of
the loader timed on a sample.

Gains are predictions from measured times, limited by the model's own step.
"""

from __future__ import annotations

from collections import Counter

from tabfeed.profile.analyse.causes import (
    CAUSES,
    Advice,
    Verdict,
    step_without_waiting,
    top_lines,
    waited,
)
from tabfeed.profile.format import (
    STAGE_LABELS,
    WAITING_STAGES,
    count,
    percent,
    rate,
    seconds,
)
from tabfeed.profile.run import Run, Stage, TimedPart

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


def _opening(run: Run) -> str:
    if not run.model:
        fed = run.rows_per_second
        speed = rate(fed) if fed else f"a batch every {seconds(run.step_seconds)}"
        return f"without a model, the loader delivers {speed}"
    return f"the loop waited {percent(run.wait_share)} of the time"


def _starved_by_stage(run: Run, busy: list[Stage]) -> Verdict:
    total = sum(s.seconds for s in busy)
    top = max(busy, key=lambda s: s.cpu if s.name in _COMPUTED else s.seconds)
    on_core = top.cpu / top.seconds if top.seconds else 1.0
    cause = _OF_STAGE.get(top.name, "batches")
    if cause == "decode" and on_core < 0.5:
        cause = "read"
    share = percent(top.seconds / total)
    label = STAGE_LABELS.get(top.name, top.name)
    sentence = {
        "read": f"{share} of the loader's work is reading, {percent(1 - on_core)} of that waiting "
        "for storage",
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


def _stage_advice(run: Run, cause: str, top: Stage, total: float) -> tuple[Advice, ...]:
    threads = run.loader.threads or 1
    without = _gain(run, _supply(run, total - top.seconds, threads))
    on_core = top.cpu / top.seconds if top.seconds else 1.0
    more = _more_threads(run, total, on_core)
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
            cause,
            _opening(run),
            f"{percent(top.seconds / total)} of the time {run.loader.name} needs per batch is "
            f"{top.name}, timed alone on a sample",
            run,
        ),
        (waited(run), *(_part_line(p) for p in run.parts)),
        (*_baseline(run), Advice("use more parallel calls, or do it once and save the result")),
    )


def _part_line(part: TimedPart) -> str:
    return f"{part.name}: {seconds(part.seconds)} per batch"


def _starved_by_line(run: Run) -> Verdict:
    counts: Counter[str] = Counter()
    for seen in run.seen:
        if seen.phase == "wait":
            counts[seen.kind] += seen.count
    if not counts:
        return Verdict(
            "input",
            _sentence("input", _opening(run), "the profiler can't see into this loader", run),
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
        _sentence(cause, _opening(run), why, run),
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
