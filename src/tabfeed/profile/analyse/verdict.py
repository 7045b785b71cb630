"""What held a run up, in one sentence, with the evidence and what to do about it.

The rules are few and in one order: too little to say, start-up, batches too small, whichever of
waiting, copying and Python is largest, crowded cores, and else nothing: the model itself. Which
part of the input a loop waits for is in `tabfeed.profile.analyse.input_rules`.
"""

from __future__ import annotations

from tabfeed.profile.analyse.findings import (
    Advice,
    Verdict,
    crowded,
    step_without_waiting,
    top_places,
    waited,
)
from tabfeed.profile.analyse.input_rules import judge_starved, judge_unseen
from tabfeed.profile.format import count, percent, seconds
from tabfeed.profile.run import Interpreter, Run

__all__ = ["judge"]

_STARVED = 0.10
_HELD = 0.4
_ON_CORE = 0.5
_FEWEST = 5
_FEWEST_LOOKS = 5
_SMALL_ROWS = 512
_SMALL_STEP = 0.003


def judge(run: Run) -> Verdict:
    """The verdict on a run."""
    if run.steps.count < _FEWEST:
        return Verdict(
            "short",
            f"Too little to say: {run.steps.count} steps were seen, and it takes {_FEWEST}.",
        )
    if not run.waits_seen:
        return judge_unseen(run)
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
        (waited(run),),
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
            waited(run),
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
    python = _held(run.interpreter) if run.model else 0.0
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
    return judge_starved(run)


def _held(found: Interpreter) -> float:
    """How much of the loop's computing took the interpreter; 0 if that is little, or unsure."""
    share = found.compute_share
    return share if share >= _HELD and _sure(share, found.compute_looks) else 0.0


def _seen_copying(run: Run) -> float:
    looks = [s for s in run.seen if s.phase == "compute"]
    total = sum(s.count for s in looks)
    copies = sum(s.count for s in looks if s.kind == "copy")
    share = copies / max(1, total)
    return share if _sure(share, total) else 0.0


def _sure(share: float, looks: int) -> bool:
    """A crowded machine leaves few looks: three are enough if they all found the same."""
    return looks >= (_FEWEST_LOOKS if share < 1 else _FEWEST_LOOKS - 2)


def _copying(run: Run, share: float) -> Verdict:
    where = next((s.where for s in run.seen if s.kind == "copy"), None)
    place = f", in {where}" if where else ""
    return Verdict(
        "copy",
        f"Held up by the copy to the device: it takes {percent(share)} of the training loop's "
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
        f"Held up by Python in the training loop: while it computed, the interpreter was taken "
        f"{percent(held)} of the time, and nothing else in Python, the loader included, could run.",
        (waited(run), *top_places(run, "compute")),
        (
            Advice(
                "take Python out of the step: fewer, larger calls (torch.compile, tf.function, "
                "jit), metrics every n steps, no .item() or .numpy() in each"
            ),
        ),
    )


def _crowded_cores(run: Run) -> Verdict | None:
    """The loop hardly waits, yet its step takes longer than it does alone."""
    step = step_without_waiting(run)
    if run.ceiling is None or run.device is not None or step < 1.25 * run.ceiling.seconds:
        return None
    alone = seconds(run.ceiling.seconds)
    return Verdict(
        "crowded",
        f"Cores are too crowded: the loop waited for data only {percent(run.wait_share)} of the "
        f"time, but its step takes {seconds(step)} where alone it takes {alone}.",
        (
            *crowded(run),
            f"you get {percent(run.efficiency)} of what this model could do, measured",
            *top_places(run, "compute"),
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
        (*crowded(run), *top_places(run, "compute")),
        (Advice("to go faster, make the step itself faster; the input has nothing more to give"),),
    )
