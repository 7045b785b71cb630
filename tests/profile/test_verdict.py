"""From figures to a verdict, on runs written by hand."""

from dataclasses import replace

import pytest

from tabfeed.profile import Run, Verdict, compare
from tests.profile.runs import (
    Finished,
    Plain,
    change,
    full_run,
    make_interpreter,
    make_run,
    make_stage,
)


def judge(run: Run) -> Verdict:
    return Finished(run).verdict


def in_words(run: Run) -> str:
    """The cause as a comparison names it."""
    return next(cells[0] for name, *cells in compare([run, run]).rows() if name == "verdict")


def sampled(phase: str, kind: str, where: str, count: int) -> Plain:
    return {"phase": phase, "kind": kind, "where": where, "count": count}


def stages(**seconds: float) -> tuple[Plain, ...]:
    return tuple(make_stage(name, s, s) for name, s in seconds.items())


@pytest.mark.parametrize(
    ("slow", "cause"),
    [
        *[("read", "decode"), ("transform", "transform"), ("gather", "gather")],
        *[("plan", "gather"), ("convert", "batches"), ("finish", "batches"), ("copy", "copy")],
    ],
)
def test_the_largest_stage_is_the_cause(slow: str, cause: str) -> None:
    times = {"read": 0.2, "transform": 0.2, "gather": 0.1, "full": 9.0, slow: 3.0}
    verdict = judge(make_run(wait=1.0, compute=1.0, stages=stages(**times)))
    assert verdict.cause == cause
    assert "waited 50 %" in verdict.sentence


def test_reading_off_the_core_is_the_storage() -> None:
    slow = make_stage("read", 3.0, 0.3)
    verdict = judge(make_run(wait=1.0, stages=(slow,)))
    assert verdict.cause == "read"
    assert "90 % of that waiting for storage" in verdict.sentence


@pytest.mark.parametrize(("cpu", "cause"), [(0.1, "read"), (0.5, "decode")])
def test_waiting_for_a_core_says_nothing_about_the_storage(cpu: float, cause: str) -> None:
    """Of three seconds other work on the machine took 2.4; 0.6 are the stage's own."""
    slow = make_stage("read", 3.0, cpu, delay=2.4)
    verdict = judge(make_run(wait=1.0, stages=(slow,)))
    assert verdict.cause == cause
    assert "80 % waiting for one" in verdict.evidence[-1]


@pytest.mark.parametrize("other", ["transform", "gather", "convert"])
def test_waiting_for_a_core_is_no_work(other: str) -> None:
    waits = make_stage(other, 9.0, 0.1, delay=8.9)
    run = make_run(wait=1.0, stages=(waits, make_stage("read", 1.0, 0.9)))
    assert judge(run).cause == "decode"
    assert "91 % of the loader's work is decoding" in judge(run).sentence


def test_gains_are_those_of_the_arithmetic() -> None:
    # 100 steps of 20 ms, 10 of them waiting. Two threads need 3.6 s / 2 / 100 = 18 ms for a batch.
    run = make_run(wait=1.0, compute=1.0, stages=stages(read=3.0, gather=0.6))
    more, rewrite = judge(run).advice
    assert (more.text, more.gain) == (
        "more loader threads: threads=4",
        pytest.approx(2.0),
    )  # 9 ms, the step is 10
    assert rewrite.gain == pytest.approx(2.0)  # 3 ms, the step is 10
    assert "2 loader threads need 18 ms per batch; a step without waiting takes 10 ms" in (
        judge(run).evidence
    )


def test_no_more_threads_than_cores() -> None:
    run = make_run(
        wait=1.0, stages=stages(read=3.0), machine={"python": "3", "system": "Linux", "cores": 2}
    )
    assert not [a for a in judge(run).advice if "threads=" in a.text]


def test_a_probed_workflow_names_the_operator() -> None:
    parts = (
        {"name": "Categorify", "kind": "transform", "seconds": 0.9},
        {"name": "LogOp", "kind": "transform", "seconds": 0.1},
    )
    run = make_run(wait=1.0, stages=stages(transform=3.0), parts=parts)
    assert "90 % of that in Categorify" in judge(run).sentence


def test_few_steps_are_too_few() -> None:
    short = replace(make_run().steps, count=4)
    assert judge(make_run(steps=short)).cause == "short"


def test_startup() -> None:
    times = {"wall": 4.0, "startup": 3.0, "wait": 0.0, "compute": 1.0}
    verdict = judge(make_run(times=times))
    assert verdict.cause == "startup"
    assert "75 %" in verdict.sentence


def test_python_needs_samples_and_a_held_gil() -> None:
    assert judge(make_run(interpreter=make_interpreter(0, 0, 40, 36))).cause == "python"
    assert judge(make_run(interpreter=make_interpreter(0, 0, 3, 3))).cause == "python"
    assert judge(make_run(interpreter=make_interpreter(0, 0, 4, 3))).cause == "compute"
    assert judge(make_run(interpreter=make_interpreter(0, 0, 2, 2))).cause == "compute"
    assert judge(make_run(interpreter=make_interpreter(40, 40, 40, 4))).cause == "compute"


def test_waiting_more_than_python_is_waiting() -> None:
    run = make_run(wait=3.0, interpreter=make_interpreter(0, 0, 40, 40), stages=stages(read=6.0))
    assert judge(run).cause == "decode"


def small(**changes: object) -> Run:
    steps = replace(make_run().steps, count=1000, rows=16_000)
    times = {"wall": 1.1, "startup": 0.1, "wait": 0.4, "compute": 0.6, "cpu": 1.0}
    return make_run(**{"steps": steps, "times": times, **changes})


def test_small_batches() -> None:
    verdict = judge(small())
    assert verdict.cause == "small_batches"
    assert "16 rows per step" in verdict.sentence
    assert verdict.advice[0].gain is None


def test_small_batches_with_two_sizes_measured_predict_a_gain() -> None:
    # 1 ms a step, 0.95 ms with half the rows: 0.9 ms fixed, 0.1 for 16 rows, so 8 times the rows
    # take 1.7 ms.
    run = small(ceiling={"seconds": 0.001, "rows": 16, "steps": 100, "half_seconds": 0.00095})
    assert judge(run).advice[0].gain == pytest.approx(8 / 1.7)


def test_small_batches_that_wait_off_the_core_are_not_the_cause() -> None:
    times = {"wall": 1.1, "startup": 0.1, "wait": 0.8, "compute": 0.2, "cpu": 0.2}
    assert judge(small(times=times, stages=stages(read=1.0))).cause == "decode"


def test_a_gpu_that_did_not_wait_is_not_starved() -> None:
    run = make_run(wait=1.0, compute=1.0, device={"idle": 0.02, "busy": 1.98, "steps": 100})
    assert judge(run).cause == "compute"
    assert run.times.wait_share == 0.5
    assert run.wait_share == pytest.approx(0.01)


def test_a_step_slower_than_alone_is_crowded() -> None:
    threads = ({"name": "MainThread", "cpu": 0.5, "delay": 0.5},)
    run = make_run(ceiling={"seconds": 0.005, "rows": 10_000, "steps": 100}, threads=threads)
    verdict = judge(run)
    assert verdict.cause == "crowded"
    assert "10 ms, and alone 5 ms" in verdict.sentence
    assert "waited for a core 45 %" in verdict.evidence[0]


def test_the_ceiling_is_told() -> None:
    verdict = judge(make_run(wait=0.05, ceiling={"seconds": 0.0095, "rows": 10_000, "steps": 100}))
    assert verdict.cause == "compute"
    assert "The run reaches 90 % of its measured ceiling." in verdict.sentence


def test_a_loader_that_shows_nothing() -> None:
    run = make_run(wait=1.0, loader={"kind": "iterable", "name": "generator"})
    assert judge(run).cause == "input"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("read", "read"), ("workers", "workers"), ("tf.data", "input"), ("python", "input")],
)
def test_a_foreign_loader_by_where_it_was_found(kind: str, cause: str) -> None:
    seen = (
        sampled("compute", "copy", "x", 1),
        sampled("wait", kind, "load (a.py:3)", 30),
    )
    verdict = judge(
        make_run(wait=1.0, loader={"kind": "torch", "name": "torch DataLoader"}, seen=seen)
    )
    assert verdict.cause == cause


def test_through_tabfeed_never_promises_more_than_the_model_can_do() -> None:
    run = make_run(wait=1.0, compute=1.0, loader={"kind": "torch", "name": "torch DataLoader"})
    run = change(run, through={"rows_per_second": 1e9, "rows": 200_000, "columns": 4})
    gain = judge(run).advice[-1].gain
    assert gain == pytest.approx(2.0)


def test_unseen_waits_are_told_from_the_input_alone() -> None:
    run = make_run(waits_seen=False)
    assert judge(run).cause == "unseen"
    slow = ({"name": "the input alone", "kind": "input", "seconds": 0.0095},)
    assert judge(change(run, parts=slow)).cause == "input"
    quick = ({"name": "the input alone", "kind": "input", "seconds": 0.001},)
    assert judge(change(run, parts=quick)).cause == "compute"


def test_without_a_model_a_feed_is_limited_not_starved() -> None:
    run = make_run(wait=1.0, compute=0.001, model=False, stages=stages(read=1.5))
    verdict = judge(run)
    assert verdict.sentence.startswith("Limited by decoding: without a model, the loader delivers")
    assert in_words(run) == "limited by decoding"


def test_every_cause_has_words() -> None:
    assert in_words(full_run()) == "starved by the transform"


def test_parts_too_quick_to_time_decide_nothing() -> None:
    run = make_run(wait=3.0, parts=({"name": "the source", "kind": "read", "seconds": 0.0},))
    assert judge(run).cause == "input"


@pytest.mark.parametrize(
    ("copying", "other", "cause"),
    [(3, 0, "copy"), (2, 0, "compute"), (3, 1, "compute"), (4, 1, "copy"), (1, 29, "compute")],
)
def test_few_samples_are_enough_if_all_agree(copying: int, other: int, cause: str) -> None:
    samples = (("copy", copying), ("model", other))
    seen = tuple(sampled("compute", kind, "x", n) for kind, n in samples if n)
    assert judge(change(make_run(wait=0.01, compute=1.0), seen=seen)).cause == cause
