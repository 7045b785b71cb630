"""A GPU that runs out of memory in mid-epoch: the loader gives its own up, and goes on."""

from __future__ import annotations

import pickle
import queue
import threading
import time
import warnings
import weakref
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import TabfeedWarning
from tabfeed.loader.gpu import buffers, build, memory_plan
from tabfeed.loader.gpu import gather as gpu_chunks
from tabfeed.loader.gpu.auto_reader import AutoPipeline
from tabfeed.loader.gpu.delivery import DeviceLease, GpuStages
from tabfeed.loader.gpu.pipeline import GpuPipeline
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tests.loader.gpu.pretend import Event, on_gpu, pretend_gpu
from tests.waiting import HANG, wait_until

ERRORS = {
    "torch": (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 20.00 MiB"),
    "script": (RuntimeError, "failed in the TorchScript interpreter.\nCUDA out of memory. Tried"),
    "pool": (MemoryError, "std::bad_alloc: out_of_memory: RMM failure"),
}


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)
    monkeypatch.setattr(memory_plan, "_CHUNK_ROWS", 8 * 16)  # so that there are several


@pytest.fixture
def dataset(tmp_path):
    return written(tmp_path, 3, 700)


def written(folder, files, rows):
    random = np.random.default_rng(0)
    for number in range(files):
        table = {"a": random.integers(0, 99, rows, dtype=np.int32)}
        table["b"] = random.standard_normal(rows, dtype=np.float32)
        table["y"] = random.integers(0, 2, rows).astype(np.float32)
        pq.write_table(pa.table(table), folder / f"{number}.parquet")
    return Dataset(str(folder))


def tuples(dataset, **options):
    options = {"batch_size": 16, "shuffle": True, **options}
    return TorchAsyncItr(dataset, ["a"], ["b"], ["y"], **options)


def walked(loader, reader="arrow"):
    pipeline = loader.pipeline
    small = Pipeline(pipeline.stages, replace(pipeline.plan, chunk=1), pipeline.options)
    loader.pipeline = on_gpu(small, torch.device("cpu"), GpuOptions(reader))
    assert isinstance(loader.pipeline, GpuPipeline) and isinstance(
        loader.pipeline.stages, GpuStages
    )
    return loader


def fail_in(monkeypatch, where, kind="torch", after=3):
    """Let what is done on the GPU fail after some calls; with errors of their own, each time."""
    error, said = ERRORS.get(kind, (RuntimeError, kind))
    real, calls = getattr(*where), []

    def failing(*arguments):
        calls.append(None)
        if len(calls) > after:
            raise error(said)
        return real(*arguments)

    monkeypatch.setattr(*where, failing)


def same(one, other):
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


TRAINING, WORKER = (gpu_chunks, "gather_all"), (gpu_chunks, "copy_to_device")


@pytest.mark.parametrize("where", [TRAINING, WORKER], ids=["training thread", "worker"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("after", [0, 3])
def test_the_epoch_goes_on_with_the_same_rows(dataset, monkeypatch, where, error, after):
    plain, loader = tuples(dataset), walked(tuples(dataset))
    device_buffers = weakref.ref(loader.pipeline.stages.maker.device_buffers)
    fail_in(monkeypatch, where, error, after)
    with pytest.warns(TabfeedWarning, match="no memory left on the GPU") as told:
        assert same(plain, loader)
    assert len([w for w in told if w.category is TabfeedWarning]) == 1
    assert device_buffers() is None, "its memory is given up"
    assert "given up its own" in loader.reader_choice
    assert same(plain, loader)  # the next epoch, without a word


def test_no_thread_waits_for_memory_that_nobody_gives_back(tmp_path, monkeypatch):
    """The lots of the chunk that failed are let go, and who waits for their slabs goes on."""
    monkeypatch.setattr(buffers, "_PATIENCE", 600.0)
    monkeypatch.setattr(memory_plan, "_CHUNK_ROWS", 8 * 1000)
    dataset, options = written(tmp_path, 6, 40_000), {"batch_size": 1000, "streams": 1}
    plain, loader = tuples(dataset, **options), walked(tuples(dataset, **options))
    device_buffers = loader.pipeline.stages.maker.device_buffers
    real, taken, waiting = device_buffers.take, [], threading.Event()

    def take(stream, count=1):
        taken.append(count)
        if len(taken) == 2:
            while not device_buffers._free.empty():  # none is left but those in use
                device_buffers._free.get_nowait()
            waiting.set()
        return real(stream, count)

    monkeypatch.setattr(device_buffers, "take", take)
    gather = gpu_chunks.gather_all

    def failing(*arguments):
        if waiting.is_set():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gather(*arguments)

    monkeypatch.setattr(gpu_chunks, "gather_all", failing)
    with pytest.warns(TabfeedWarning, match="no memory left"):
        assert same(plain, loader)
    for thread in [t for t in threading.enumerate() if t.name.startswith("tabfeed-loader")]:
        thread.join()  # one may be about to end
        assert not thread.is_alive()


def test_with_auto_as_well(dataset, monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: name)
    monkeypatch.setattr("tabfeed.loader.gpu.auto_reader.timed_event", lambda stream: Never())
    monkeypatch.setattr("tabfeed.loader.gpu.delivery.timed_event", lambda stream: Never())
    plain, loader = tuples(dataset), walked(tuples(dataset), "auto")
    assert isinstance(loader.pipeline, AutoPipeline)
    fail_in(monkeypatch, TRAINING)
    with pytest.warns(TabfeedWarning, match="no memory left on the GPU"):
        assert same(plain, loader)
    assert "given up its own" in loader.reader_choice and loader.state.choice.settled
    assert same(plain, loader)


class Never(Event):
    """An event that has not happened yet."""

    def query(self):
        return False


def test_a_state_from_there_is_good_anywhere(dataset, monkeypatch):
    plain, loader = tuples(dataset), walked(tuples(dataset))
    fail_in(monkeypatch, TRAINING, after=2)
    batches = iter(loader)
    with pytest.warns(TabfeedWarning, match="no memory left"):
        for _ in range(100):
            next(batches)
    plain.load_state_dict(loader.state_dict())
    assert same(plain, batches)


def test_a_loader_made_by_map_gives_up_its_own(dataset, monkeypatch):
    def twice(x, y):
        return x, y * 2

    loader = walked(Loader(dataset, 16, True, targets=["y"]))
    mapped = loader.map(twice)
    fail_in(monkeypatch, TRAINING)
    expected = [y * 2 for _, y in Loader(dataset, 16, True, targets=["y"])]
    with pytest.warns(TabfeedWarning, match="no memory left"):
        assert all(torch.equal(y, e) for (_, y), e in zip(mapped, expected, strict=True))


def both(one, other):
    """What two iterators give, batch by batch in turns."""
    found = [], []
    for batches in zip(one, other, strict=True):
        for passed, batch in zip(found, batches, strict=True):
            passed.append(tuple(t.clone() for t in batch))
    return found


def test_two_passes_at_a_time_go_over_one_after_the_other(dataset, monkeypatch):
    plain, loader = list(tuples(dataset)), walked(tuples(dataset))
    fail_in(monkeypatch, TRAINING, after=6)
    one, other = iter(loader), iter(loader)
    with pytest.warns(TabfeedWarning, match="no memory left") as told:
        found = both(one, other)
    assert len([w for w in told if w.category is TabfeedWarning]) == 1
    assert same(plain, found[0]) and same(plain, found[1])
    assert other._stages is loader.pipeline.stages
    for batches in (one, other):
        assert not isinstance(batches._stages, GpuStages)


# -- several passes at a time: the memory is enough for one ---------------------------------


@pytest.fixture
def many(tmp_path):
    """Rows of which few are on the GPU at a time."""
    return written(tmp_path, 8, 30_000)


MANY = {"batch_size": 1000, "streams": 2, "buffer_size": 1}


@pytest.mark.parametrize("begun", [0, 1, 50])
def test_a_pass_that_lies_open_goes_on_in_the_computers_memory(many, begun):
    plain, loader = list(tuples(many, **MANY)), walked(tuples(many, **MANY))
    loader.set_epoch(0)
    old = iter(loader)
    before = [next(old) for _ in range(begun)]
    loader.set_epoch(0)
    assert same(plain, loader), "the new one has the memory"
    assert same(plain, before + list(old)), "and the old one goes on"
    assert not isinstance(old._stages, GpuStages)
    assert isinstance(loader.pipeline.stages, GpuStages)


def test_passes_in_turns(many):
    plain, loader = list(tuples(many, **MANY)), walked(tuples(many, **MANY))
    one = iter(loader)
    loader.set_epoch(0)
    for found in both(one, iter(loader)):
        assert same(plain, found)


def test_a_loader_made_by_map_and_its_own_share_the_memory(many):
    def load():
        return Loader(many, 1000, shuffle=True, streams=2, buffer_size=1, targets=["y"])

    plain, loader = list(load()), walked(load())
    twice = loader.map(lambda inputs, y: ({"a": inputs["a"] * 2}, y))
    for (x, y), (one, _), (two, other) in zip(plain, loader, twice, strict=True):
        assert torch.equal(x["a"], one["a"]) and torch.equal(x["a"] * 2, two["a"])
        assert torch.equal(y, other)


def test_single_batches_do_not_take_memory_from_a_pass(many):
    plain, loader = list(tuples(many, **MANY)), walked(tuples(many, **MANY))
    loader.set_epoch(0)
    found = []
    for number, batch in enumerate(loader):
        found.append(batch)
        if number % 40 == 7:
            loader.peek()
            loader.state.set_epoch(0)
            assert same([plain[number]], [next(loader.state.seek(number))])
    assert same(plain, found)
    loader.state.set_epoch(0)
    walk = loader.state.seek(3)
    assert isinstance(walk._stages, GpuStages), "without a pass they may have it"
    assert same(plain[3:5], [next(walk), next(walk)])
    loader.state.set_epoch(0)
    assert same(plain, loader)


def test_a_pass_that_steps_aside_for_another_thread(many):
    plain, loader = list(tuples(many, **MANY)), walked(tuples(many, **MANY))
    found, begun = [], threading.Event()

    def walk():
        for batch in loader:
            found.append(batch)
            if len(found) == 5:
                begun.set()

    loader.set_epoch(0)
    thread = threading.Thread(target=walk)
    thread.start()
    assert begun.wait(HANG)
    loader.set_epoch(0)
    assert same(plain, loader)
    thread.join()
    assert same(plain, found)


def test_a_state_is_loaded_into_a_pass_that_stepped_aside(many):
    plain, loader = list(tuples(many, **MANY)), walked(tuples(many, **MANY))
    old = iter(loader)
    for _ in range(9):
        next(old)
    state = old.state_dict()
    loader.set_epoch(0)
    new = iter(loader)
    assert same(plain[:3], [next(new) for _ in range(3)])
    old.load_state_dict(state)
    assert same(plain[9:], old) and same(plain[3:], new)


# -- memory that the program wants back -----------------------------------------------------


@pytest.mark.parametrize("reader", ["arrow", "auto"])
@pytest.mark.parametrize("taken", [0, 3, 100])
def test_memory_is_back_at_once_and_the_pass_goes_on(dataset, monkeypatch, reader, taken):
    monkeypatch.setattr(build, "find_spec", lambda name: name)
    monkeypatch.setattr("tabfeed.loader.gpu.auto_reader.timed_event", lambda stream: Never())
    monkeypatch.setattr("tabfeed.loader.gpu.delivery.timed_event", lambda stream: Never())
    plain, loader = tuples(dataset), walked(tuples(dataset), reader)
    device_buffers, batches = weakref.ref(loader.pipeline.stages.maker.device_buffers), iter(loader)
    expected, found = list(plain), [next(batches) for _ in range(taken)]
    loader.release_memory()
    assert device_buffers() is None
    assert loader.reader_choice.startswith("Arrow: as requested, batches are made in host memory")
    assert same(expected, found + list(batches))
    loader.release_memory()  # there is nothing left
    assert same(plain, loader)


def test_memory_of_several_passes(many):
    plain, loader = list(tuples(many, **MANY)), walked(tuples(many, **MANY))
    device_buffers, old = weakref.ref(loader.pipeline.stages.maker.device_buffers), iter(loader)
    before = [next(old) for _ in range(5)]
    loader.set_epoch(0)
    new = iter(loader)
    after = [next(new) for _ in range(7)]
    loader.release_memory()
    assert device_buffers() is None
    assert same(plain, before + list(old)) and same(plain, after + list(new))


@pytest.mark.parametrize("released", [False, True])
def test_a_pass_that_was_closed_keeps_no_memory(many, monkeypatch, released):
    loader = walked(tuples(many, **MANY))
    device_buffers, closed = weakref.ref(loader.pipeline.stages.maker.device_buffers), iter(loader)
    next(closed)
    closed.close()
    if released:
        loader.release_memory()
    else:
        fail_in(monkeypatch, TRAINING, after=2)
        with pytest.warns(TabfeedWarning, match="no memory left"):
            list(loader)
    assert device_buffers() is None
    with pytest.raises(StopIteration):
        next(closed)


def test_memory_of_a_pass_that_another_thread_walks(many):
    plain, loader = list(tuples(many, **MANY)), walked(tuples(many, **MANY))
    device_buffers, ready = weakref.ref(loader.pipeline.stages.maker.device_buffers), queue.Queue(2)

    def produce():
        for batch in loader:
            ready.put(batch)

    producer = threading.Thread(target=produce)
    producer.start()
    found = [ready.get(timeout=HANG) for _ in range(3)]
    wait_until(lambda: ready.not_full._waiters)  # for room
    loader.release_memory()
    assert device_buffers() is None
    found += [ready.get(timeout=HANG) for _ in range(len(loader) - 3)]
    producer.join()
    assert same(plain, found)


def test_a_loader_made_by_map_after_memory_was_given_back(dataset, monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: name)
    loader = walked(Loader(dataset, 16, True, targets=["y"]), "auto")
    loader.release_memory()
    mapped = loader.map(lambda x, y: (x, y * 2))
    assert mapped.reader_choice == loader.reader_choice
    expected = [y * 2 for _, y in Loader(dataset, 16, True, targets=["y"])]
    assert all(torch.equal(y, e) for (_, y), e in zip(mapped, expected, strict=True))


def test_a_program_for_which_warnings_are_errors_can_go_on(dataset, monkeypatch):
    plain, loader = list(tuples(dataset)), walked(tuples(dataset))
    fail_in(monkeypatch, TRAINING, after=2)
    batches, found = iter(loader), []
    with pytest.raises(TabfeedWarning), warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in batches:
            found.append(batch)
    assert 0 < len(found) < len(plain)
    assert same(plain, found + list(batches))


# -- states of other plans: memory was divided for one ----------------------------------------


def ranks(size, rank):
    return {"global_size": size, "global_rank": rank, "batch_size": 2400 // size}


@pytest.mark.parametrize("reader", ["arrow", "auto"])
@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (ranks(8, 0), ranks(1, 0)),
        (ranks(1, 0), ranks(8, 3)),
        (ranks(2, 0), ranks(3, 1)),
        ({"batch_size": 800, "streams": 12}, {"batch_size": 800, "streams": 2}),
        ({"batch_size": 800, "streams": 2}, {"batch_size": 800, "streams": 2, "buffer_size": 1}),
    ],
)
def test_a_state_of_other_ranks_and_streams(tmp_path, monkeypatch, reader, saved, loaded):
    monkeypatch.setattr(build, "find_spec", lambda name: name)
    monkeypatch.setattr("tabfeed.loader.gpu.auto_reader.timed_event", lambda stream: Never())
    monkeypatch.setattr("tabfeed.loader.gpu.delivery.timed_event", lambda stream: Never())
    dataset = written(tmp_path, 24, 5000)
    before = tuples(dataset, **saved)
    batches = iter(before)
    for _ in range(9):
        next(batches)
    state, plain = before.state_dict(), tuples(dataset, **loaded)
    batches.close()
    plain.load_state_dict(state)
    loader = walked(tuples(dataset, **loaded), reader)
    device_buffers = weakref.ref(loader.pipeline.stages.maker.device_buffers)
    left = iter(loader)
    loader.load_state_dict(state)
    assert device_buffers() is None, "there is other memory now"
    assert isinstance(loader.pipeline.stages, GpuStages)
    for _ in range(2):
        assert same(plain, loader)
    left.load_state_dict(state)  # of a pass that had the memory
    plain.load_state_dict(state)
    assert same(plain, left)


def test_a_state_of_a_like_plan_leaves_memory_as_it_is(dataset):
    loader = walked(tuples(dataset))
    device_buffers, batches = loader.pipeline.stages.maker.device_buffers, iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    assert loader.pipeline.stages.maker.device_buffers is device_buffers


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_that_have_more_streams_than_others(tmp_path, monkeypatch, rank):
    dataset = written(tmp_path, 9, 3000)
    options = {"batch_size": 100, "streams": 2, "buffer_size": 1}
    options |= {"global_size": 3, "global_rank": rank}
    assert same(tuples(dataset, **options), walked(tuples(dataset, **options)))


def test_who_has_no_memory_on_a_gpu_has_none_to_give_back(dataset):
    plain = tuples(dataset)
    batches = iter(plain)
    found = [next(batches) for _ in range(3)]
    plain.release_memory()
    assert same(tuples(dataset), found + list(batches))


def test_other_errors_are_not_taken_for_it(dataset, monkeypatch):
    loader = walked(tuples(dataset))
    fail_in(monkeypatch, TRAINING, "an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        list(loader)


def test_no_memory_without_a_share_to_give_up_is_an_error(dataset, monkeypatch):
    loader = walked(tuples(dataset))
    fail_in(monkeypatch, TRAINING)
    finish = type(loader.pipeline.stages.finish)
    real = finish.__call__

    def failing(self, chunk):
        if not isinstance(loader.pipeline.stages, GpuStages):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, chunk)

    monkeypatch.setattr(finish, "__call__", failing)
    with (
        pytest.warns(TabfeedWarning, match="no memory left"),
        pytest.raises(torch.OutOfMemoryError),
    ):
        list(loader)


def test_a_copy_for_another_process_is_of_the_cpu(dataset):
    copied = pickle.loads(pickle.dumps(walked(tuples(dataset)).state))
    assert type(copied.pipeline) is Pipeline
    assert not isinstance(copied.pipeline.stages, GpuStages)
    assert same(copied, tuples(dataset))


def test_a_pass_that_went_over_is_not_sent_aside_by_those_it_left(many, monkeypatch):
    def load():
        return Loader(many, 1000, shuffle=True, streams=2, buffer_size=1, targets=["y"])

    plain, loader = list(load()), walked(load())
    twice = loader.map(lambda inputs, y: (inputs, y))
    fail_in(monkeypatch, TRAINING, after=2)
    found = []
    with pytest.warns(TabfeedWarning, match="no memory left"):
        for number, (inputs, _) in enumerate(loader):
            found.append(inputs["a"].clone())
            if number == 100:
                kept = iter(twice)  # of the memory that was given up
    kept.close()
    assert len(found) == len(plain)
    assert all(torch.equal(x["a"], a) for (x, _), a in zip(plain, found, strict=True))


def test_a_pass_that_is_closed_gives_up_nothing(many):
    loader = walked(tuples(many, **MANY))
    old = iter(loader)
    next(old)
    new = iter(loader)
    old.close()
    with pytest.raises(StopIteration):
        for _ in range(len(loader)):
            next(old)
    assert isinstance(loader.pipeline.stages, GpuStages)
    assert len(list(new)) == len(loader)


def test_a_pass_that_is_kept_holds_no_memory_of_the_gpu(many, monkeypatch):
    loader = walked(tuples(many, **MANY))
    device_buffers = weakref.ref(loader.pipeline.stages.maker.device_buffers)
    old = iter(loader)
    next(old)
    fail_in(monkeypatch, TRAINING, after=2)
    with pytest.warns(TabfeedWarning, match="no memory left"):
        list(loader)
    assert device_buffers() is None
    assert len(list(old)) == len(loader) - 1


def test_blocks_that_were_being_read_are_not_kept(many, monkeypatch):
    """Of a pass that was sent aside: others need the desks they lie on."""
    loader = walked(tuples(many, **MANY))
    kept = []
    for _ in range(6):
        loader.set_epoch(0)
        kept.append(iter(loader))
        time.sleep(0.02)
    assert len(list(loader)) == len(loader)


def test_the_collector_may_end_a_pass_while_another_takes_its_turn():
    turn, ended = DeviceLease(), []

    class Pass:
        def evict(self, turn):
            turn.give_back(self)
            ended.append(self)

    one, other = Pass(), Pass()
    turn.take(one)
    with turn._lock:
        turn.take(other)
    assert ended == [one] and turn.taken
