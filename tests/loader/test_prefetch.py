"""Item, end and error all arrive; nothing waits for ever; no thread is left."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import LoaderError
from tabfeed.loader import prefetch
from tabfeed.loader.prefetch import Prefetch


def ours():
    return [t for t in threading.enumerate() if t.name.startswith("tabfeed-loader")]


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, ours()
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("depth", [1, 3])
def test_results_come_in_order_whoever_is_faster(workers, depth):
    def do(n):
        time.sleep(0.002 * (n % 3))
        return n

    assert list(Prefetch(do, range(3, 20), workers=workers, depth=depth)) == list(range(3, 20))
    wait_until(lambda: not ours())


def test_nothing_to_do_ends_at_once():
    assert list(Prefetch(lambda n: n, range(0))) == []


def test_no_more_than_depth_is_made_ahead():
    begun = []

    def do(n):
        begun.append(n)
        return n

    work = Prefetch(do, range(100), workers=3, depth=4)
    wait_until(lambda: len(begun) == 4)
    time.sleep(0.1)
    assert len(begun) == 4
    next(work)
    wait_until(lambda: len(begun) == 5)
    work.close()
    assert not ours()


class Planned(Exception):
    pass


def test_an_error_arrives_at_its_place_with_its_type():
    def do(n):
        if n == 5:
            raise Planned("five")
        return n

    work = Prefetch(do, range(100), workers=3, depth=4)
    assert [next(work) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(Planned, match="five"):
        next(work)
    assert not ours()
    with pytest.raises(StopIteration):
        next(work)


def test_even_a_system_exit_in_a_worker_arrives():
    def do(n):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        next(Prefetch(do, range(3)))


def test_close_while_workers_are_busy_and_again():
    going = threading.Event()
    work = Prefetch(lambda n: going.wait(0.3), range(10), workers=2)
    work.close()
    work.close()
    assert not ours()
    with pytest.raises(StopIteration):
        next(work)


def test_close_from_another_thread_ends_a_waiting_consumer():
    stop = threading.Event()
    work = Prefetch(lambda n: stop.wait(5), range(10), workers=1, on_stop=stop.set)
    threading.Timer(0.1, work.close).start()
    start = time.monotonic()
    with pytest.raises(StopIteration):
        next(work)
    assert time.monotonic() - start < 4


def test_dropping_the_iterator_ends_the_threads():
    work = Prefetch(lambda n: n, range(1000), workers=2)
    next(work)
    del work
    wait_until(lambda: not ours())


def test_garbage_in_a_cycle_ends_the_threads():
    class Holder:
        pass

    holder = Holder()
    holder.me, holder.work = holder, Prefetch(lambda n: n, range(1000))
    del holder
    gc.collect()
    wait_until(lambda: not ours())


def test_a_waiting_worker_keeps_no_result_alive():
    import weakref

    class Result:
        pass

    work = Prefetch(lambda n: Result(), range(1), workers=1)
    result = next(work)
    there = weakref.ref(result)
    del result
    wait_until(lambda: there() is None)


def test_a_consumer_notices_that_all_workers_are_gone(monkeypatch):
    monkeypatch.setattr(prefetch, "_TICK", 0.05)
    monkeypatch.setattr(prefetch._Work, "run", lambda self: None)
    work = Prefetch(lambda n: n, range(3))
    with pytest.raises(LoaderError, match="gone without a word"):
        next(work)


def test_a_forked_copy_knows_that_it_is_alone():
    work = Prefetch(lambda n: n, range(10), workers=1, depth=1)
    next(work)
    pid = os.fork()
    if pid == 0:
        try:
            refused = False
            try:
                next(work)
            except LoaderError:
                refused = True
            work.close()
            os._exit(0 if work.alone and refused else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(work) == list(range(1, 10))


EXIT = """
import time
from tabfeed.loader.prefetch import Prefetch
work = Prefetch(lambda n: time.sleep(0.01) or n, range(10**6), workers=3, depth=1000)
next(work)
print("leaving")
"""


def test_interpreter_exit_waits_for_the_threads_and_no_longer():
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
    assert time.monotonic() - start < 20


_LEAVES_EARLY = """
import sys
from tabfeed import Dataset
from tabfeed.loader.torch import Loader

for number, batch in enumerate(Loader(Dataset(sys.argv[1]), 64, True)):
    if number == int(sys.argv[2]):
        break
print("left")
"""


def test_a_script_that_leaves_early_ends_well(tmp_path):
    """Threads of a dropped iterator are inside Arrow or torch when the interpreter goes."""
    random = np.random.default_rng(0)
    table = pa.table({f"x{i}": random.random(400_000, np.float32) for i in range(25)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40_000)
    for steps in (600, 1250, 2400):
        done = subprocess.run(
            [sys.executable, "-c", _LEAVES_EARLY, str(tmp_path), str(steps)],
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
