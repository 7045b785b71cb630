"""Map and reduce on threads: order, bounds, errors, and no thread left behind."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tabfeed.errors import ArgumentError
from tabfeed.execute import LocalExecutor
from tests.waiting import HANG, wait_until


def workers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tabfeed-map")]


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    assert workers() == []
    yield
    assert workers() == []


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    def slow_when_even(x: int) -> int:
        time.sleep(0.002 if x % 2 == 0 else 0)
        return x * 10

    assert list(LocalExecutor(threads).map(range(20), slow_when_even)) == list(range(0, 200, 10))


@pytest.mark.parametrize("threads", [1, 3])
def test_no_items(threads: int) -> None:
    assert list(LocalExecutor(threads).map([], lambda x: x)) == []


def test_work_runs_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=HANG)  # passes only if three threads reach it
    assert list(LocalExecutor(3).map(range(3), lambda x: meeting.wait() >= 0)) == [True] * 3


def test_one_thread_works_on_the_caller_s_own() -> None:
    seen = list(LocalExecutor(1).map(range(3), lambda _: threading.current_thread().name))
    assert seen == [threading.current_thread().name] * 3


def test_a_slow_consumer_holds_the_workers_back() -> None:
    drawn: list[int] = []
    started: list[int] = []

    def items() -> Iterator[int]:  # drawn by the consumer's thread, one for each that may start
        for i in range(100):
            drawn.append(i)
            yield i

    results = LocalExecutor(2).map(items(), lambda x: started.append(x))
    next(results)
    assert drawn == [0, 1, 2, 3]  # the one given out, and threads + 1 more
    wait_until(lambda: sorted(started) == drawn)
    next(results)
    assert drawn == [0, 1, 2, 3, 4]
    wait_until(lambda: sorted(started) == drawn)
    results.close()


def test_items_are_drawn_lazily() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for i in range(100):
            drawn.append(i)
            yield i

    results = LocalExecutor(2).map(items(), lambda x: x)
    assert drawn == []
    next(results)
    assert drawn == [0, 1, 2, 3]
    results.close()


def test_a_result_the_caller_dropped_is_not_kept() -> None:
    class Result:
        pass

    hold = threading.Event()

    def work(x: int) -> Result:
        if x:
            hold.wait(HANG)
        return Result()

    results = LocalExecutor(2).map(range(2), work)
    first = weakref.ref(next(results))
    waiting = threading.Thread(target=lambda: next(results))
    waiting.start()  # the generator now waits for the second result
    try:
        wait_until(lambda: first() is None)
    finally:
        hold.set()
        waiting.join()


class OwnError(Exception):
    pass


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_exception_arrives_as_raised_after_the_results_before_it(threads: int) -> None:
    def work(x: int) -> int:
        if x == 3:
            raise OwnError("item 3")
        return x

    got = []
    with pytest.raises(OwnError, match="item 3"):
        for result in LocalExecutor(threads).map(range(1000), work):
            got.append(result)
    assert got == [0, 1, 2]
    assert workers() == []


def test_breaking_off_cancels_what_has_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    both_busy = threading.Barrier(3, timeout=HANG)
    go = threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def shut(pool: ThreadPoolExecutor, wait: bool = True) -> None:
        go.set()
        shutdown(pool, wait)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shut)

    def work(x: int) -> int:
        started.append(x)
        if x:
            both_busy.wait()
            go.wait(HANG)
        return x

    results = LocalExecutor(2).map(range(1000), work)
    assert next(results) == 0
    both_busy.wait()  # 1 and 2 are in work, 3 waits for a thread
    results.close()  # cancels 3 before it waits for 1 and 2
    assert sorted(started) == [0, 1, 2]


def test_after_an_exception_no_more_items_are_drawn() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for i in range(1000):
            drawn.append(i)
            yield i

    def work(x: int) -> None:
        raise OwnError

    with pytest.raises(OwnError):
        list(LocalExecutor(2).map(items(), work))
    assert drawn == [0, 1, 2]


@pytest.mark.parametrize("good", [0, 1, 10])
def test_an_exception_of_the_items_themselves_arrives_too(good: int) -> None:
    def items() -> Iterator[int]:
        yield from range(good)
        raise OwnError("cannot list")

    with pytest.raises(OwnError, match="cannot list"):
        list(LocalExecutor(2).map(items(), lambda x: x))


def test_breaking_off_leaves_no_thread_and_runs_no_more_items() -> None:
    started: list[int] = []

    def work(x: int) -> int:
        started.append(x)
        return x

    for result in LocalExecutor(2).map(range(1000), work):
        if result == 2:
            break
    assert workers() == []
    assert len(started) <= 6


def test_an_error_of_the_consumer_leaves_no_thread_while_it_is_handled() -> None:
    try:
        for _ in LocalExecutor(2).map(range(100), lambda x: x):
            raise OwnError
    except OwnError:
        assert workers() == []


def test_a_map_that_is_dropped_leaves_no_thread() -> None:
    results = LocalExecutor(2).map(range(100), lambda x: x)
    next(results)
    assert workers() != []
    del results
    gc.collect()
    assert workers() == []


def test_a_map_within_a_map_does_not_wait_for_itself() -> None:
    executor = LocalExecutor(2)
    sums = executor.map(range(4), lambda x: sum(executor.map(range(10), lambda y: x * y)))
    assert list(sums) == [0, 45, 90, 135]


@pytest.mark.parametrize("threads", [1, 3])
def test_reduce_merges_left_to_right(threads: int) -> None:
    executor = LocalExecutor(threads)
    assert executor.reduce("abcdef", str.upper, lambda a, b: a + b) == "ABCDEF"
    assert executor.reduce(["x"], str.upper, lambda a, b: a + b) == "X"
    assert executor.reduce([], str.upper, lambda a, b: a + b) is None


def test_reduce_treats_none_as_a_value() -> None:
    merged = LocalExecutor(2).reduce([1, 2], lambda _: None, lambda a, b: (a, b))
    assert merged == (None, None)


def test_an_error_of_merge_leaves_no_thread_while_it_is_handled() -> None:
    def merge(a: int, b: int) -> int:
        raise OwnError

    try:
        LocalExecutor(2).reduce(range(100), lambda x: x, merge)
    except OwnError:
        assert workers() == []
    else:
        pytest.fail("the error was lost")


@pytest.mark.parametrize("threads", [0, -2])
def test_no_threads_is_refused(threads: int) -> None:
    with pytest.raises(ArgumentError, match=f"threads is {threads}"):
        LocalExecutor(threads)


def test_the_default_is_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABFEED_THREADS", "3")
    assert repr(LocalExecutor()) == "LocalExecutor(threads=3)"
