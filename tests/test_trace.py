"""Spans: nothing by default, everything while recording, and what was there before comes back."""

import threading

import pytest

from tabfeed import trace
from tabfeed.trace import ListRecorder, recording, span


def test_without_a_recorder_a_span_is_the_same_empty_block_every_time() -> None:
    first, second = span("decode", rows=1), span("write")
    assert first is second
    with first as nothing:
        assert nothing is None


def test_a_recorded_span_says_what_how_long_and_where() -> None:
    recorder = ListRecorder()
    with recording(recorder), span("decode", rows=3, file="a.parquet"):
        pass
    (seen,) = recorder.spans
    assert (seen.name, seen.data) == ("decode", {"rows": 3, "file": "a.parquet"})
    assert seen.thread == threading.current_thread().name
    assert seen.start <= seen.end


def test_nested_spans_are_recorded_inner_first_and_inside() -> None:
    recorder = ListRecorder()
    with recording(recorder), span("outer"), span("inner"):
        pass
    inner, outer = recorder.spans
    assert (inner.name, outer.name) == ("inner", "outer")
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_a_span_that_fails_is_recorded_and_the_error_goes_on() -> None:
    recorder = ListRecorder()
    with recording(recorder), pytest.raises(ValueError, match="bad"), span("decode"):
        raise ValueError("bad")
    assert [s.name for s in recorder.spans] == ["decode"]


def test_recorders_nest_and_the_silent_one_returns() -> None:
    before = trace._recorder
    outer, inner = ListRecorder(), ListRecorder()
    with recording(outer):
        with recording(inner), span("a"):
            pass
        with span("b"):
            pass
    assert [s.name for s in inner.spans] == ["a"]
    assert [s.name for s in outer.spans] == ["b"]
    assert trace._recorder is before


def test_the_recorder_is_removed_after_an_error() -> None:
    recorder = ListRecorder()
    with pytest.raises(RuntimeError), recording(recorder):
        raise RuntimeError
    with span("later"):
        pass
    assert recorder.spans == []


def test_threads_share_a_recorder_and_are_told_apart() -> None:
    recorder = ListRecorder()

    def work() -> None:
        for _ in range(100):
            with span("work"):
                pass

    with recording(recorder):
        threads = [threading.Thread(target=work, name=f"worker-{i}") for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(recorder.spans) == 400
    assert {s.thread for s in recorder.spans} == {f"worker-{i}" for i in range(4)}
