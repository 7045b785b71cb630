import threading
import time

import numpy as np
import pytest

from tabfeed.profile.collect.spans import Bins, Curve, FinishedSpan, SpanLog, StageSums, describe
from tabfeed.trace import recording, span
from tests.waiting import HANG


def test_own_time_leaves_out_what_is_inside() -> None:
    log = SpanLog()
    with recording(log), span("outer", rows=3):
        time.sleep(0.01)
        with span("inner"):
            time.sleep(0.02)
    inner, outer = log.entries
    assert (inner.name, outer.name, outer.data) == ("inner", "outer", {"rows": 3})
    assert inner.own == inner.end - inner.start
    assert outer.own == (outer.end - outer.start) - inner.own
    assert inner.own >= 20_000_000


def test_an_error_ends_the_span() -> None:
    log = SpanLog()
    with recording(log):
        with pytest.raises(KeyError), span("a"), span("b"):
            raise KeyError
        with span("c"):
            pass
    assert [e.name for e in log.entries] == ["b", "a", "c"]
    assert log.unfinished() == []


def test_spans_still_open_count_to_now() -> None:
    log, inside, go = SpanLog(), threading.Event(), threading.Event()

    def work() -> None:
        with span("chunk"), span("full"):
            inside.set()
            go.wait(HANG)

    with recording(log):
        thread = threading.Thread(target=work, name="tabfeed-loader-7")
        thread.start()
        inside.wait(HANG)
        time.sleep(0.02)
        before = time.perf_counter_ns()
        found = {e.name: e for e in log.unfinished()}
        go.set()
        thread.join()
    assert found["full"].own == found["full"].end - found["full"].start >= 20_000_000
    assert found["full"].end >= before
    assert found["chunk"].own == found["full"].start - found["chunk"].start
    assert found["full"].thread == "tabfeed-loader-7"


def test_sums_by_stage_and_thread() -> None:
    sums = StageSums(origin=0)
    sums.add(
        [
            FinishedSpan("read", 0, 10, 10, 4, 1, "tabfeed-loader-0", {"rows": 5}),
            FinishedSpan("read", 10, 30, 20, 25, 9, "tabfeed-loader-0", {"rows": 6}),
            FinishedSpan(
                "transform",
                30,
                40,
                10,
                2,
                7,
                "tabfeed-loader-1",
                {"what": sorted},
            ),
            FinishedSpan("read", 90, 95, 5, 5, 0, "tabfeed-loader-1", {}),
        ],
        until=80,
    )
    read = sums.sums["tabfeed-loader-0", "read"]
    assert (read.own, read.cpu, read.delay, read.count, read.rows) == (30, 24, 1, 2, 11)
    transform = sums.sums["tabfeed-loader-1", "transform"]
    assert (transform.own, transform.cpu, transform.delay) == (10, 2, 7)
    assert ("tabfeed-loader-1", "read") not in sums.sums
    assert dict(sums.what) == {"sorted": 10}


def test_names_of_what_was_applied() -> None:
    def local() -> None: ...

    assert describe(local) == "local"
    assert describe(SpanLog().span) == "SpanLog.span"
    assert describe(SpanLog()) == "SpanLog"


def test_a_curve_never_grows_beyond_its_size() -> None:
    curve = Curve(most=100)
    for i in range(10_000):
        curve.add(i, float(i))
    assert 50 <= len(curve.points) <= 100
    steps = np.diff([t for t, _ in curve.points])
    assert (steps == steps[0]).all()
    assert curve.points[0] == (0, 0.0)
    assert curve.points[-1][0] > 9_000


def test_bins_keep_every_amount() -> None:
    bins = Bins(width=10, most=8)
    random = np.random.default_rng(0)
    total = 0.0
    for start in range(0, 5_000, 7):
        amount = float(random.random())
        bins.add("a", start, start + int(random.integers(0, 60)), amount)
        total += amount
    assert max(bins.sums["a"]) < 8
    assert sum(bins.sums["a"].values()) == pytest.approx(total)
