"""`judge`: what limits a run, in one sentence, with evidence and advice.

Rules are tried in order: run too short, start-up, batches too small, the largest of waiting,
copying and Python, crowded cores; otherwise the model itself is the limit. If the loop waits for
its input, `tabfeed.profile.verdict` finds the slow part.
"""

from __future__ import annotations

from tabfeed.display import count, percent, seconds
from tabfeed.profile.run import Interpreter, Run
from tabfeed.profile.verdict import (
    Advice,
    Verdict,
    crowded,
    judge_starved,
    judge_unseen,
    step_without_waiting,
    top_lines,
    waited,
)

_STARVED = 0.10
_GIL_HELD = 0.4
_ON_CORE = 0.5
_MIN_STEPS = 5
_MIN_SAMPLES = 5
_SMALL_ROWS = 512
_SMALL_STEP = 0.003


def judge(run: Run) -> Verdict:
    """The verdict on a run."""
    if run.steps.count < _MIN_STEPS:
        return Verdict(
            "short",
            f"The run is too short: {run.steps.count} steps, and a verdict needs {_MIN_STEPS}.",
        )
    if not run.waits_seen:
        return judge_unseen(run)
    for rule in (_startup, _small_batches, _largest, _crowded_cores):
        found = rule(run)
        if found is not None:
            return found
    return _compute_bound(run)


def _startup(run: Run) -> Verdict | None:
    share = run.times.startup / run.times.wall
    if share < 0.5 or run.wait_share >= _STARVED or not run.model:
        return None
    return Verdict(
        "startup",
        f"Start-up: {percent(share)} of the run passed before the first batch "
        f"({seconds(run.times.startup)} of {seconds(run.times.wall)}); after that the input keeps "
        "up.",
        (waited(run),),
        (Advice("reuse the loader over epochs, or run longer", run.times.wall / run.times.steady),),
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
        f"Batches are too small: {count(rows)} rows per step, and most of the {step} of a step is "
        "overhead that more rows would share.",
        (
            f"the training thread was on a core {percent(cpu)} of the time",
            waited(run),
            *_halved(run),
        ),
        (Advice("make batch_size 8 times as large", _larger_batch_gain(run)),),
    )


def _halved(run: Run) -> tuple[str, ...]:
    ceiling = run.ceiling
    if ceiling is None or ceiling.half_seconds is None:
        return ()
    ratio = ceiling.half_seconds / ceiling.seconds
    return (f"a step with half the rows takes {percent(ratio)} of the time (measured)",)


def _larger_batch_gain(run: Run, factor: int = 8) -> float | None:
    """The gain if a step has a fixed cost and a cost per row, both known from two batch sizes."""
    ceiling = run.ceiling
    if ceiling is None or ceiling.half_seconds is None:
        return None
    by_rows = min(ceiling.seconds, max(0.0, 2 * (ceiling.seconds - ceiling.half_seconds)))
    fixed = ceiling.seconds - by_rows
    return factor * ceiling.seconds / (fixed + factor * by_rows)


def _largest(run: Run) -> Verdict | None:
    """Waiting, copying in the loop, or Python in the loop: the largest of those that matter."""
    computing = 1.0 - run.wait_share
    python = _gil_share(run.interpreter) if run.model else 0.0
    shares = {
        "wait": run.wait_share,
        "copy": max(run.times.copy / run.times.steady, computing * _copy_share(run)),
        "python": computing * python,
    }
    cause, share = max(shares.items(), key=lambda item: item[1])
    if share < _STARVED and run.model:
        return None
    if cause == "copy":
        return _copying(run, share)
    if cause == "python":
        return _python(run)
    return judge_starved(run)


def _gil_share(found: Interpreter) -> float:
    """How much of the loop's computing held the GIL; 0 if it is little, or uncertain."""
    share = found.compute_share
    return share if share >= _GIL_HELD and _sure(share, found.compute_looks) else 0.0


def _copy_share(run: Run) -> float:
    samples = [s for s in run.seen if s.phase == "compute"]
    total = sum(s.count for s in samples)
    copies = sum(s.count for s in samples if s.kind == "copy")
    share = copies / max(1, total)
    return share if _sure(share, total) else 0.0


def _sure(share: float, samples: int) -> bool:
    """A busy machine leaves few samples: three are enough if they all agree."""
    return samples >= (_MIN_SAMPLES if share < 1 else _MIN_SAMPLES - 2)


def _copying(run: Run, share: float) -> Verdict:
    where = next((s.where for s in run.seen if s.kind == "copy"), None)
    place = f", in {where}" if where else ""
    return Verdict(
        "copy",
        f"Held up by the copy to the device, which takes {percent(share)} of the training loop's "
        f"time{place}.",
        (waited(run),),
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
        f"Held up by Python in the training loop: while it computed, it held the GIL "
        f"{percent(held)} of the time, so no other Python code, such as a loader, could run.",
        (waited(run), *top_lines(run, "compute")),
        (
            Advice(
                "move work out of Python: fewer, larger calls (torch.compile, tf.function, jit), "
                "metrics every n steps, no .item() or .numpy() in each step"
            ),
        ),
    )


def _crowded_cores(run: Run) -> Verdict | None:
    """The loop hardly waits, but its step takes longer than the ceiling."""
    step = step_without_waiting(run)
    if run.ceiling is None or run.device is not None or step < 1.25 * run.ceiling.seconds:
        return None
    alone = seconds(run.ceiling.seconds)
    return Verdict(
        "crowded",
        f"Cores are too crowded: the loop waited for data only {percent(run.wait_share)} of the "
        f"time, but its step takes {seconds(step)}, and alone {alone}.",
        (
            *crowded(run),
            f"the run reaches {percent(run.efficiency)} of its measured ceiling",
            *top_lines(run, "compute"),
        ),
        (
            Advice(
                "leave cores to the model: fewer loader threads, less work per batch (transform "
                "once and save), nothing else on this machine",
                run.step_seconds / run.ceiling.seconds,
            ),
        ),
    )


def _compute_bound(run: Run) -> Verdict:
    measured = ""
    if run.ceiling is not None:
        measured = f" The run reaches {percent(run.efficiency)} of its measured ceiling."
    return Verdict(
        "compute",
        f"Compute-bound: the loop waited for data {percent(run.wait_share)} of the time; the input "
        f"keeps up.{measured}",
        (*crowded(run), *top_lines(run, "compute")),
        (Advice("to go faster, make the step itself faster; a faster input gains nothing"),),
    )
