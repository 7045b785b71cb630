"""A pipeline never changes, and reads each block once; where a loader stands is in its state."""

from __future__ import annotations

import os
import pickle
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pytest

from tabfeed import ColumnSchema, Dataset, Schema
from tabfeed.errors import LoaderError
from tabfeed.loader import EmbeddingOperator, Padding
from tabfeed.loader.build import Steps, build_pipeline, dict_layout, output_schema, split_steps
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Ahead, BlockWindow
from tabfeed.loader.read.arrow_columns import Part
from tests.waiting import HANG, wait_until


def keys(chunk):
    """The batches of a chunk, as lists of keys."""
    column = chunk.columns["key"].tolist()
    return [column[low:high] for low, high in pairwise(chunk.bounds.tolist())]


@pytest.fixture
def pipeline():
    dataset = Dataset({"key": np.arange(1000)}, npartitions=4)
    options = LoaderOptions(batch_size=50, shuffle=True, threads=2)
    return build_pipeline(dataset, dict_layout(dataset.schema, ["key"]), options, keys, Steps())


def test_a_pipeline_cannot_be_changed(pipeline):
    with pytest.raises(FrozenInstanceError):
        pipeline.plan = replace(pipeline.plan, chunk=1)


def test_states_of_one_pipeline_are_independent(pipeline):
    one, other = pipeline.start(), pipeline.start()
    first, second = list(one), list(one)
    assert first != second
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second)) == list(range(1000))
    assert list(other) == first == list(pipeline) == list(pipeline)
    assert (one.epoch, one.rows_given, other.epoch, other.rows_given) == (1, 2000, 0, 1000)
    assert len(pipeline) == len(one) == 20


def test_a_state_goes_over_to_another_pipeline_of_the_same_rows(pipeline):
    state, plain = pipeline.start(), pipeline.start()
    begun = list(islice(state, 7))
    chunk = pipeline.plan.chunk // 2 or 2
    state.go_over(replace(pipeline, plan=replace(pipeline.plan, chunk=chunk)))
    assert state.pipeline.plan.chunk == chunk != pipeline.plan.chunk
    plain.load_state_dict(state.state_dict())
    assert begun == list(pipeline)[:7]
    assert list(plain) == list(pipeline)[7:]
    assert list(state) == list(plain)  # the next epoch, in chunks of either size


def test_a_forked_child_goes_on_where_its_parent_stood(pipeline):
    expected = list(pipeline)
    iterator = iter(replace(pipeline, plan=replace(pipeline.plan, chunk=4)))
    begun = list(islice(iterator, 6))  # the rest of a chunk is ready; threads make the next ones
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if begun + list(iterator) == expected else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert begun + list(iterator) == expected


def test_a_copy_stands_where_the_state_stood(pipeline):
    state = pipeline.start()
    list(islice(state, 3))
    finishing = state.finishing(keys)
    finishing.load_state_dict(state.state_dict())
    assert list(finishing) == list(pipeline)[3:]
    options = replace(pipeline.options, threads=1)
    dataset = Dataset({"key": np.arange(100)}, npartitions=2)
    made = build_pipeline(dataset, dict_layout(dataset.schema, ["key"]), options, keys, Steps())
    state = made.start()
    list(state)
    copied = pickle.loads(pickle.dumps(state))
    assert copied.state_dict() == state.state_dict() and copied.rows_given == 100
    assert list(copied) == list(state)


class Slow:
    def __init__(self, fail=()):
        self.reads, self.fail, self.lock = [], fail, threading.Lock()

    def read_all(self, numbers):
        return [self.read(n) for n in numbers]

    def read(self, number):
        with self.lock:
            self.reads.append(number)
        time.sleep(0.01)
        if number in self.fail:
            raise OSError(f"part {number}")
        return Part(number)


def test_threads_that_need_the_same_blocks_read_each_once():
    reader = Slow()
    blocks = BlockWindow(reader.read_all, dict.fromkeys(range(6), 9))
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(blocks.get([0, 1, 2, 3, 4, 5])))
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(reader.reads) == [0, 1, 2, 3, 4, 5]
    assert [sorted((n, p.rows) for n, p in g.items()) for g in got] == [
        [(n, n) for n in range(6)]
    ] * 4


def test_a_thread_without_a_core_keeps_no_block_alive():
    class Kept:
        pass

    blocks = BlockWindow(lambda numbers: [Kept() for _ in numbers], {0: 0})
    thread = threading.Thread(target=blocks.read_ahead)
    paused, go_on = threading.Event(), threading.Event()

    class Pausing(threading.Condition):
        """Stops the thread once it has read a block and given the lock back."""

        def __exit__(self, *exc):
            super().__exit__(*exc)
            if threading.current_thread() is thread and blocks._blocks:
                paused.set()
                go_on.wait(HANG)

    blocks._changed = Pausing()
    thread.start()
    assert paused.wait(HANG)
    kept = weakref.ref(blocks.get([0])[0])
    blocks.done(0)
    alive = kept() is not None
    go_on.set()
    thread.join()
    assert not alive


def test_a_block_goes_after_its_last_chunk_even_out_of_turn():
    blocks = BlockWindow(Slow().read_all, {0: 0, 1: 1, 2: 5})
    blocks.get([0, 1, 2])
    blocks.done(1)
    assert set(blocks._blocks) == {0, 1, 2}  # chunk 0 may still need them
    blocks.done(0)
    assert set(blocks._blocks) == {2}


def test_a_block_needed_again_is_read_again():
    reader = Slow()
    blocks = BlockWindow(reader.read_all, {0: 0})
    blocks.get([0])
    blocks.done(0)
    blocks.get([0])
    assert reader.reads == [0, 0]


def test_an_error_reaches_all_who_ask():
    blocks = BlockWindow(Slow(fail=[1]).read_all, {0: 0, 1: 0})
    for _ in range(2):
        with pytest.raises(OSError, match="part 1"):
            blocks.get([0, 1])


def test_after_close_nothing_is_read():
    blocks = BlockWindow(Slow().read_all, {})
    blocks.close()
    with pytest.raises(LoaderError, match="closed"):
        blocks.get([0])


def test_a_thread_that_would_wait_reads_what_is_needed_next():
    begun, release = threading.Event(), threading.Event()

    class Held(Slow):
        def read(self, number):
            if number == 0:
                begun.set()
                assert release.wait(HANG)
            return super().read(number)

    reader = Held()
    blocks = BlockWindow(reader.read_all, {0: 1, 1: 2, 2: 3, 3: 4})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(blocks.get, [0])
        assert begun.wait(HANG)
        second = pool.submit(blocks.get, [0])
        wait_until(lambda: 1 in blocks._blocks)
        release.set()
        assert list(first.result()) == list(second.result()) == [0]
    assert reader.reads == [1, 0]  # block 1 early, 2 and 3 not: one at a time
    assert list(blocks.get([1])) == [1]
    assert reader.reads == [1, 0]


def test_as_many_blocks_are_read_ahead_as_allowed():
    reader = Slow()
    blocks = BlockWindow(reader.read_all, {0: 1, 1: 2, 2: 3, 3: 4}, ahead=Ahead(2))
    assert [blocks.read_ahead() for _ in range(3)] == [True, True, False]
    assert reader.reads == [0, 1]
    blocks.get([0])
    assert blocks.read_ahead()
    assert reader.reads == [0, 1, 2]
    blocks.close()
    assert not blocks.read_ahead()


def test_blocks_that_are_faster_together_are_read_together():
    calls = []

    def read(numbers):
        calls.append(list(numbers))
        return list(numbers)

    blocks = BlockWindow(read, dict.fromkeys(range(7), 9), ahead=Ahead(4, together=3))
    assert blocks.get([0, 1, 2, 3]) == {n: n for n in range(4)}
    assert calls == [[0, 1, 2], [3]]
    assert blocks.read_ahead() and calls[-1] == [4, 5, 6]
    assert not blocks.read_ahead()


def test_with_many_threads_a_chunk_waits_for_its_blocks():
    begun, release = threading.Event(), threading.Event()
    reads = []

    def read(numbers):
        reads.extend(numbers)
        begun.set()
        assert release.wait(HANG)
        return list(numbers)

    blocks = BlockWindow(read, {0: 1, 1: 2}, ahead=Ahead(2, by_all=False))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(blocks.get, [0])]
        assert begun.wait(HANG)
        both.append(pool.submit(blocks.get, [0]))
        wait_until(lambda: blocks._changed._waiters)
        release.set()
        assert [f.result() for f in both] == [{0: 0}, {0: 0}]
    assert reads == [0]


class Declares:
    """A function of tables that says what it makes."""

    output_schema = Schema([ColumnSchema("w", "list<int64>", value_count=(2, 2))])

    def __call__(self, table: pa.Table) -> pa.Table:
        return table


def test_the_schema_is_that_of_the_last_function_of_tables() -> None:
    step = Declares()
    dataset = Dataset({"w": [[1, 2], [0, 1]]})
    vectors = EmbeddingOperator(np.eye(3, dtype=np.float32), "w")
    for transforms in (step, [step], [step, vectors], [step, vectors, Padding(2)]):
        assert output_schema(dataset, transforms, split_steps(transforms)) == step.output_schema
