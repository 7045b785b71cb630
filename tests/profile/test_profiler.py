"""The profiler as a user meets it."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tabfeed import trace
from tabfeed.errors import ArgumentError, BadFileError, SourceNotFoundError
from tabfeed.profile import Profiler, Run, load_run
from tests.profile import cases as c
from tests.waiting import wait_until


def test_steps_rows_and_bytes_are_counted() -> None:
    batches = [{"x": np.zeros((4, 2), np.float32), "y": np.zeros(4, np.float32)}] * 9
    batches.append({"x": np.zeros((1, 2), np.float32), "y": np.zeros(1, np.float32)})
    run = c.profile(batches, lambda b: None).run
    assert (run.steps.count, run.steps.rows, run.steps.bytes) == (10, 37, 37 * 12)


def test_rows_of_our_loader_are_its_own_count() -> None:
    run = c.profile(c.ours(batch=700, batches=4), lambda b: None).run
    assert (run.steps.count, run.steps.rows) == (4, 2800)
    assert (run.loader.kind, run.loader.threads) == ("tabfeed", 1)


def test_watching_changes_nothing() -> None:
    class Source(list[int]):
        answer = 42

    with Profiler() as prof:
        watched = prof.watch(Source([1, 2, 3]))
        assert (len(watched), watched.answer) == (3, 42)
        assert list(watched) == list(watched) == [1, 2, 3]
    assert prof.run.steps.count == 6


def test_the_iterator_holds_no_batch() -> None:
    """A batch must be free as soon as the loop lets it go, or buffers cannot be used again."""
    alive: list[int] = []

    class Batch:
        def __init__(self) -> None:
            alive.append(id(self))

        def __del__(self) -> None:
            alive.remove(id(self))

    with Profiler() as prof:
        for number, batch in enumerate(prof.watch(Batch() for _ in range(5))):
            # the first is kept, as a sample for what tabfeed would make of it
            assert len(alive) == (1 if number == 0 else 2)
            del batch


def test_after_a_break_the_pass_is_over() -> None:
    with Profiler() as prof:
        begun = time.perf_counter()
        for batch in prof.watch(range(100)):
            if batch == 5:
                break
        over = time.perf_counter()
        time.sleep(0.2)
    assert prof.run.steps.count == 6
    assert prof.run.times.wall <= over - begun


def test_a_single_step_that_is_broken_off() -> None:
    with Profiler() as prof:
        for _ in prof.watch(iter([1, 2])):
            break
    assert prof.run.steps.count == 1
    assert prof.run.timeline is not None
    assert sum(prof.run.timeline.sums["wait"]) == 0
    assert prof.verdict.cause == "short"


def test_an_error_passes_through_and_the_profile_is_kept() -> None:
    def broken() -> Any:
        yield from range(7)
        raise KeyError("gone")

    prof = Profiler()
    with pytest.raises(KeyError, match="gone"), prof:
        for _ in prof.watch(broken()):
            pass
    assert prof.run.steps.count == 7


def test_a_loop_inside_a_loop_counts_its_waits_once() -> None:
    def slow(n: int) -> Any:
        for i in range(n):
            time.sleep(0.01)
            yield i

    with Profiler(probe=False) as prof:
        for _ in prof.watch(slow(3)):
            for _ in prof.watch(slow(4)):
                time.sleep(0.01)
    times = prof.run.times
    assert prof.run.steps.count == 3
    assert times.startup + times.wait + times.compute == pytest.approx(times.wall)
    assert times.startup + times.wait >= 15 * 0.01
    assert times.compute >= 12 * 0.01


def test_time_between_passes_is_apart() -> None:
    with Profiler() as prof:
        spent = 0.0
        for _ in range(2):
            begun = time.perf_counter()
            for _ in prof.watch(range(5)):
                pass
            spent += time.perf_counter() - begun
            time.sleep(0.1)
    times = prof.run.times
    assert times.between >= 0.1
    assert times.wall <= spent
    assert prof.run.elapsed >= 0.2 + times.wall


def test_nothing_is_left_running() -> None:
    before, recorder = set(threading.enumerate()), trace._recorder
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        c.profile(c.ours(batches=5), lambda b: None)
    assert set(threading.enumerate()) <= before
    assert trace._recorder is recorder
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files + 1)


def test_off_means_off() -> None:
    """Outside of the block batches still come, and nothing is kept."""
    prof = Profiler()
    assert list(prof.watch(range(3))) == [0, 1, 2]
    with prof:
        pass
    assert list(prof.watch(range(3))) == [0, 1, 2]
    assert prof.run.steps.count == 0
    assert prof.verdict.cause == "short"
    assert "0 steps" in prof.report()


@pytest.mark.parametrize("suffix", [".html", ".json", ".txt"])
def test_saving(tmp_path: Path, suffix: str) -> None:
    prof = c.profile(range(9), lambda b: None)
    path = prof.save(tmp_path / f"report{suffix}")
    assert path.stat().st_size > 500


def test_a_saved_run_is_the_run(tmp_path: Path) -> None:
    prof = c.profile(c.ours(c.slow_transform, batches=8), c.quick_step, name="mine")
    run = load_run(prof.save(tmp_path / "run.json"))
    assert run == prof.run
    assert run.stages and run.window and run.queue
    told = json.loads(prof.to_json())
    assert told["verdict"]["cause"] == "transform"
    assert told["rates"]["rows_per_second"] == pytest.approx(prof.run.rows_per_second)


def test_what_is_no_saved_run(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="no saved profile"):
        load_run(tmp_path / "none.json")
    for text in ("{", "[]", '{"format": 99}', '{"format": 1, "name": "x"}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises((BadFileError, ArgumentError), match="not a saved profile"):
            load_run(tmp_path / "bad.json")


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    prof = Profiler()
    with pytest.raises(ArgumentError, match="nothing was profiled"):
        prof.report()
    with pytest.raises(ArgumentError, match="watch needs an iterable"):
        prof.watch(3)
    with prof, pytest.raises(ArgumentError, match="still running"):
        prof.report()
    with pytest.raises(ArgumentError, match="used already"):
        prof.start()
    with pytest.raises(ArgumentError, match=r"must end in \.html, \.json, \.txt"):
        prof.save(tmp_path / "report.pdf")


def test_the_ceiling_is_a_measurement() -> None:
    with Profiler() as prof:
        for batch in prof.watch(c.ours(c.slow_transform, batches=10)):
            c.quick_step(batch)
    assert prof.measure_ceiling(c.quick_step, batch, seconds=0.05).seconds >= c.QUICK
    ceiling = prof.measure_ceiling(len, batch, seconds=0.05)  # takes next to nothing of its own
    assert ceiling.rows == 1000
    assert prof.run.efficiency == pytest.approx(ceiling.seconds / prof.run.step_seconds)
    assert prof.run.efficiency < 0.5


def test_the_ceiling_of_half_a_batch() -> None:
    prof = Profiler()
    sizes: list[int] = []
    batch = (np.zeros((6, 2)), {"y": np.zeros(6)})
    found = prof.measure_ceiling(lambda b: sizes.append(len(b[1]["y"])), batch, halves=True)
    assert set(sizes) == {6, 3}
    assert found.half_seconds is not None
    with pytest.raises(ArgumentError, match="cannot be halved"):
        prof.measure_ceiling(len, [np.zeros(1)], seconds=0.01, halves=True)
    with pytest.raises(ArgumentError, match="function of a batch"):
        prof.measure_ceiling(None, batch)
    with pytest.raises(ArgumentError, match="above 0"):
        prof.measure_ceiling(len, batch, seconds=0)


def test_probing_can_be_declined() -> None:
    calls: list[int] = []

    class Counted(c.Rows):
        def __getitem__(self, index: int) -> Any:
            calls.append(index)
            return super().__getitem__(index)

    data = pytest.importorskip("torch.utils.data")
    rows = Counted(reading=0.002, rows=40)
    prof = c.profile(data.DataLoader(rows, batch_size=4), lambda b: None, probe=False)
    assert isinstance(prof.run, Run)
    assert len(calls) == 40
    assert prof.run.through is None
