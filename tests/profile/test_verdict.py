"""From figures to a verdict, on runs written by hand."""

from dataclasses import replace

import pytest

from tabfeed.profile import run as r
from tabfeed.profile.judge import judge
from tabfeed.profile.verdict import CAUSES, cause_of
from tests.profile.runs import full_run, make_run


def stages(**seconds: float) -> tuple[r.Stage, ...]:
    return tuple(r.Stage(name, s, s, 100, 1_000_000) for name, s in seconds.items())


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
    slow = r.Stage("read", 3.0, 0.3, 100, 1_000_000)
    verdict = judge(make_run(wait=1.0, stages=(slow,)))
    assert verdict.cause == "read"
    assert "90 % of that waiting for storage" in verdict.sentence


@pytest.mark.parametrize(("cpu", "cause"), [(0.1, "read"), (0.5, "decode")])
def test_waiting_for_a_core_says_nothing_about_the_storage(cpu: float, cause: str) -> None:
    """Of three seconds other work on the machine took 2.4; 0.6 are the stage's own."""
    slow = r.Stage("read", 3.0, cpu, 100, 1_000_000, delay=2.4)
    verdict = judge(make_run(wait=1.0, stages=(slow,)))
    assert verdict.cause == cause
    assert "80 % waiting for one" in verdict.evidence[-1]


@pytest.mark.parametrize("other", ["transform", "gather", "convert"])
def test_waiting_for_a_core_is_no_work(other: str) -> None:
    waits = r.Stage(other, 9.0, 0.1, 100, 1_000_000, delay=8.9)
    run = make_run(wait=1.0, stages=(waits, r.Stage("read", 1.0, 0.9, 100, 1_000_000)))
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
    run = make_run(wait=1.0, stages=stages(read=3.0), machine=r.Machine("3", "Linux", 2))
    assert not [a for a in judge(run).advice if "threads=" in a.text]


def test_a_probed_workflow_names_the_operator() -> None:
    parts = (r.TimedPart("Categorify", "transform", 0.9), r.TimedPart("LogOp", "transform", 0.1))
    run = make_run(wait=1.0, stages=stages(transform=3.0), parts=parts)
    assert "90 % of that in Categorify" in judge(run).sentence


def test_few_steps_are_too_few() -> None:
    short = replace(make_run().steps, count=4)
    assert judge(make_run(steps=short)).cause == "short"


def test_startup() -> None:
    times = r.LoopTimes(wall=4.0, startup=3.0, wait=0.0, compute=1.0)
    verdict = judge(make_run(times=times))
    assert verdict.cause == "startup"
    assert "75 %" in verdict.sentence


def test_python_needs_samples_and_a_held_gil() -> None:
    assert judge(make_run(interpreter=r.Interpreter(0, 0, 40, 36))).cause == "python"
    assert judge(make_run(interpreter=r.Interpreter(0, 0, 3, 3))).cause == "python"
    assert judge(make_run(interpreter=r.Interpreter(0, 0, 4, 3))).cause == "compute"
    assert judge(make_run(interpreter=r.Interpreter(0, 0, 2, 2))).cause == "compute"
    assert judge(make_run(interpreter=r.Interpreter(40, 40, 40, 4))).cause == "compute"


def test_waiting_more_than_python_is_waiting() -> None:
    run = make_run(wait=3.0, interpreter=r.Interpreter(0, 0, 40, 40), stages=stages(read=6.0))
    assert judge(run).cause == "decode"


def small(**changes: object) -> r.Run:
    steps = replace(make_run().steps, count=1000, rows=16_000)
    times = r.LoopTimes(wall=1.1, startup=0.1, wait=0.4, compute=0.6, cpu=1.0)
    return make_run(**{"steps": steps, "times": times, **changes})


def test_small_batches() -> None:
    verdict = judge(small())
    assert verdict.cause == "small_batches"
    assert "16 rows per step" in verdict.sentence
    assert verdict.advice[0].gain is None


def test_small_batches_with_two_sizes_measured_predict_a_gain() -> None:
    # 1 ms a step, 0.95 ms with half the rows: 0.9 ms fixed, 0.1 for 16 rows, so 8 times the rows
    # take 1.7 ms.
    run = small(ceiling=r.Ceiling(0.001, 16, 100, half_seconds=0.00095))
    assert judge(run).advice[0].gain == pytest.approx(8 / 1.7)


def test_small_batches_that_wait_off_the_core_are_not_the_cause() -> None:
    times = r.LoopTimes(wall=1.1, startup=0.1, wait=0.8, compute=0.2, cpu=0.2)
    assert judge(small(times=times, stages=stages(read=1.0))).cause == "decode"


def test_a_gpu_that_did_not_wait_is_not_starved() -> None:
    run = make_run(wait=1.0, compute=1.0, device=r.DeviceTimes(idle=0.02, busy=1.98, steps=100))
    assert judge(run).cause == "compute"
    assert run.times.wait_share == 0.5
    assert run.wait_share == pytest.approx(0.01)


def test_a_step_slower_than_alone_is_crowded() -> None:
    threads = (r.ThreadUse("MainThread", 0.5, 0.5),)
    run = make_run(ceiling=r.Ceiling(0.005, 10_000, 100), threads=threads)
    verdict = judge(run)
    assert verdict.cause == "crowded"
    assert "10 ms, and alone 5 ms" in verdict.sentence
    assert "waited for a core 45 %" in verdict.evidence[0]


def test_the_ceiling_is_told() -> None:
    verdict = judge(make_run(wait=0.05, ceiling=r.Ceiling(0.0095, 10_000, 100)))
    assert verdict.cause == "compute"
    assert "The run reaches 90 % of its measured ceiling." in verdict.sentence


def test_a_loader_that_shows_nothing() -> None:
    run = make_run(wait=1.0, loader=r.LoaderInfo("iterable", "generator"))
    assert judge(run).cause == "input"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("read", "read"), ("workers", "workers"), ("tf.data", "input"), ("python", "input")],
)
def test_a_foreign_loader_by_where_it_was_found(kind: str, cause: str) -> None:
    seen = (
        r.SampledPlace("compute", "copy", "x", 1),
        r.SampledPlace("wait", kind, "load (a.py:3)", 30),
    )
    verdict = judge(make_run(wait=1.0, loader=r.LoaderInfo("torch", "torch DataLoader"), seen=seen))
    assert verdict.cause == cause


def test_through_tabfeed_never_promises_more_than_the_model_can_do() -> None:
    run = make_run(wait=1.0, compute=1.0, loader=r.LoaderInfo("torch", "torch DataLoader"))
    run = replace(run, through=r.Baseline(1e9, 200_000, 4))
    gain = judge(run).advice[-1].gain
    assert gain == pytest.approx(2.0)


def test_unseen_waits_are_told_from_the_input_alone() -> None:
    run = make_run(waits_seen=False)
    assert judge(run).cause == "unseen"
    slow = (r.TimedPart("the input alone", "input", 0.0095),)
    assert judge(replace(run, parts=slow)).cause == "input"
    quick = (r.TimedPart("the input alone", "input", 0.001),)
    assert judge(replace(run, parts=quick)).cause == "compute"


def test_without_a_model_a_feed_is_limited_not_starved() -> None:
    run = make_run(wait=1.0, compute=0.001, model=False, stages=stages(read=1.5))
    verdict = judge(run)
    assert verdict.sentence.startswith("Limited by decoding: without a model, the loader delivers")
    assert cause_of(run, verdict) == "limited by decoding"


def test_every_cause_has_words() -> None:
    assert judge(full_run()).cause in CAUSES


def test_parts_too_quick_to_time_decide_nothing() -> None:
    run = make_run(wait=3.0, parts=(r.TimedPart("the source", "read", 0.0),))
    assert judge(run).cause == "input"


@pytest.mark.parametrize(
    ("copying", "other", "cause"),
    [(3, 0, "copy"), (2, 0, "compute"), (3, 1, "compute"), (4, 1, "copy"), (1, 29, "compute")],
)
def test_few_samples_are_enough_if_all_agree(copying: int, other: int, cause: str) -> None:
    samples = (("copy", copying), ("model", other))
    seen = tuple(r.SampledPlace("compute", kind, "x", n) for kind, n in samples if n)
    assert judge(replace(make_run(wait=0.01, compute=1.0), seen=seen)).cause == cause
