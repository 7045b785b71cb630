"""``reader="auto"`` on a pretended GPU, whose clock says what the test wants it to say."""

from __future__ import annotations

import gc
import logging
import pickle
import threading
import weakref
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import MissingExtraError
from tabfeed.loader.gpu import auto_choice, auto_reader, delivery, memory_plan
from tabfeed.loader.gpu import build as gpu
from tabfeed.loader.gpu.auto_choice import ARROW, GPU, Choice, Stretch
from tabfeed.loader.gpu.auto_reader import AutoPipeline
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.torch import Loader
from tests.loader.gpu.pretend import Event, on_gpu, pretend_gpu

COLUMNS = [f"c{i}" for i in range(4)]


class Script:
    """What the GPU's clock shows: each chunk takes a second, and waits as the reader lets it."""

    def __init__(self):
        self.wait = {ARROW: 0.0, GPU: 0.0}
        self.work = {ARROW: 1.0, GPU: 1.0}
        self.built = []
        self.fails = None


class Timed(Event):
    """An event of a scripted clock."""

    def __init__(self, script, made_by=None):
        self.script, self.made_by = script, made_by

    def elapsed_time(self, other):
        by = self.script.built[-1]
        wait = self.script.wait[other.made_by or by]
        return 1000 * (wait if other.made_by else self.script.work[by] + self.script.wait[by])


class Disguised:
    """Arrow, passing for the GPU."""

    def __init__(self, arrow, device_buffers, *_):
        self.arrow, self.device_buffers = arrow, device_buffers
        self.parts = arrow.parts

    def reading(self, parts):
        return self

    def close(self):
        self.arrow.close()

    def read(self, epoch, numbers):
        if SCRIPT.fails is not None:
            raise SCRIPT.fails
        return self.arrow.read(epoch, numbers)


SCRIPT = Script()


@pytest.fixture
def script(monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)
    vars(SCRIPT).update(vars(Script()))
    monkeypatch.setattr(gpu, "CudfBlockReader", Disguised)
    monkeypatch.setattr(gpu, "find_spec", lambda name: name)
    monkeypatch.setattr(gpu, "why_not_cudf", lambda *_: None)
    monkeypatch.setattr(auto_choice, "_CHUNKS", 2)
    monkeypatch.setattr(auto_choice, "_WARM", 1.0)
    build = gpu.GpuBuilder.build

    def building(self, cudf, spare_batches=0):
        SCRIPT.built.append(GPU if cudf else ARROW)
        monkeypatch.setattr(memory_plan, "_CHUNK_ROWS", 64 * (7 if cudf else 5))
        return build(self, cudf, spare_batches)

    monkeypatch.setattr(gpu.GpuBuilder, "build", building)
    monkeypatch.setattr(auto_reader, "timed_event", lambda stream: Timed(SCRIPT))
    monkeypatch.setattr(delivery, "timed_event", lambda stream: Timed(SCRIPT, SCRIPT.built[-1]))
    return SCRIPT


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for number in range(4):
        table = {c: random.integers(0, 99, 5000, dtype=np.int32) for c in COLUMNS}
        table["y"] = random.integers(0, 2, 5000)
        pq.write_table(pa.table(table), folder / f"{number}.parquet", row_group_size=500)
    return Dataset(str(folder))


def plain(dataset):
    return Loader(dataset, 64, True, targets=["y"], device="cpu")


def auto(dataset):
    """A loader with small chunks, so that there are enough of them."""
    loader = plain(dataset)
    pipeline = loader.pipeline
    small = Pipeline(pipeline.stages, replace(pipeline.plan, chunk=1), pipeline.options)
    loader.pipeline = on_gpu(small, torch.device("cpu"), GpuOptions("auto"))
    assert isinstance(loader.pipeline, AutoPipeline)
    return loader


def take(batches, count):
    """Some batches, with time for the thread that loads."""
    out = []
    for _ in range(count):
        out.append(next(batches))
        for thread in threading.enumerate():
            if thread.name == "tabfeed-loading":
                thread.join()
    return out


def same(some, others):
    return all(
        torch.equal(y, yy) and all(torch.equal(x[n], xx[n]) for n in x)
        for (x, y), (xx, yy) in zip(some, others, strict=True)
    )


def test_nothing_waits(script, dataset):
    loader = auto(dataset)
    assert loader.reader_choice == "Arrow: nothing was measured yet"
    assert same(take(iter(loader), 313), plain(dataset))
    assert script.built == [ARROW]
    assert loader.reader_choice.startswith("Arrow: training waits 0% of its time for batches (")
    assert "Arrow: training waits 0%" in loader._repr_html_()


def test_it_waits_and_goes_over_and_stays(script, dataset, caplog):
    script.wait = {ARROW: 1.0, GPU: 0.0}
    script.work[GPU] = 1.2
    loader = auto(dataset)
    with caplog.at_level(logging.INFO, "tabfeed"):
        first = take(iter(loader), 313)
    assert same(first, plain(dataset))
    assert script.built == [ARROW, GPU]
    why = loader.reader_choice
    # A chunk of Arrow's: 5 steps in 2 s. Of the GPU's: 7 in 1.2 s.
    assert why.startswith("the GPU: steps came 2.33 times as fast with the GPU, waiting 0% of")
    assert "as with Arrow, waiting 50%" in why and why.count("million rows/s") == 2
    ours = [r.getMessage() for r in caplog.records if r.name.startswith("tabfeed")]
    assert ours == [f"reader: {why}"]
    assert loader.pipeline.plan.chunk == 7 and loader.epoch == 0
    second, expected = list(loader), plain(dataset)
    expected.set_epoch(1)
    assert same(second, expected) and loader.epoch == 1
    assert script.built == [ARROW, GPU] and loader.reader_choice == why


def test_it_got_slower_and_goes_back(script, dataset):
    script.wait = {ARROW: 0.2, GPU: 0.0}
    script.work[GPU] = 2.0  # for 7 steps: 0.29 s each, after 0.24
    loader = auto(dataset)
    assert same(take(iter(loader), 313), plain(dataset))
    assert script.built == [ARROW, GPU, ARROW]
    assert loader.reader_choice.startswith("Arrow: steps came 0.84 times as fast with the GPU")
    assert loader.pipeline.plan.chunk == 5 and loader.state.choice.settled


def test_a_trial_that_fails_goes_back(script, dataset):
    script.wait[ARROW], script.fails = 1.0, ValueError("an odd page")
    loader = auto(dataset)
    assert same(take(iter(loader), 313), plain(dataset))
    assert script.built == [ARROW, GPU, ARROW]
    assert (
        "waited 50% of its time, but it failed: ValueError('an odd page')" in loader.reader_choice
    )


def test_a_trial_that_cannot_begin(script, dataset, monkeypatch):
    def missing(*_):
        raise MissingExtraError("gpu", "reading Parquet on the GPU")

    monkeypatch.setattr(gpu, "CudfBlockReader", missing)
    script.wait[ARROW] = 1.0
    loader = auto(dataset)
    assert same(take(iter(loader), 313), plain(dataset))
    assert script.built == [ARROW, GPU, ARROW] and "it cannot begin" in loader.reader_choice


def test_a_library_that_cannot_be_loaded(script, dataset, monkeypatch):
    monkeypatch.setattr(gpu, "why_not_cudf", lambda *_: "the driver is too old")
    script.wait[ARROW] = 1.0
    loader = auto(dataset)
    assert same(take(iter(loader), 313), plain(dataset))
    assert script.built == [ARROW] and loader.reader_choice.endswith("the driver is too old")


def test_the_first_memory_is_gone_before_the_second_comes(script, dataset, monkeypatch):
    script.wait[ARROW] = 1.0
    loader = auto(dataset)
    device_buffers = weakref.ref(loader.pipeline.stages.maker.device_buffers)
    taken, held = [], []
    build = gpu.GpuBuilder.build

    def building(self, cudf, spare_batches=0):
        if cudf:
            inputs, target = taken[-1]
            tensors = [*inputs.values(), target]
            held.append(
                (device_buffers(), sum(t.untyped_storage().nbytes() - t.nbytes for t in tensors))
            )
        return build(self, cudf, spare_batches)

    monkeypatch.setattr(gpu.GpuBuilder, "build", building)
    gc.disable()  # it must not depend on that
    try:
        batches = iter(loader)
        for _ in range(313):
            taken[:] = take(batches, 1)
    finally:
        gc.enable()
    assert held == [(None, 0)]  # what the program has is a batch, not a chunk


def test_nothing_changes_while_others_use_the_memory(script, dataset):
    script.wait[ARROW] = 1.0
    loader = auto(dataset)
    other = loader.map(lambda x, y: (x, y + 1))
    assert len(take(iter(loader), 313)) == 313
    assert script.built == [ARROW]
    del loader
    got = take(iter(other), 313)
    assert same([(x, y - 1) for x, y in got], plain(dataset))
    assert script.built == [ARROW, GPU]
    other.close()


def test_a_state_from_behind_the_change(script, dataset):
    script.wait[ARROW] = 1.0
    loader = auto(dataset)
    batches = iter(loader)
    take(batches, 100)
    assert script.built == [ARROW, GPU]
    state = loader.state_dict()
    expected = plain(dataset)
    expected.load_state_dict(state)
    assert state["step"] == 100
    rest = list(expected)
    loader.load_state_dict(state)
    assert same(rest, loader)
    assert same(rest, batches)


@pytest.mark.usefixtures("no_loader_threads")
def test_an_early_end_on_trial(script, dataset):
    script.wait[ARROW] = 1.0
    loader = auto(dataset)
    batches = iter(loader)
    take(batches, 45)
    assert loader.state.choice.trying
    loader.close()
    assert list(batches) == []
    assert not [t for t in threading.enumerate() if t.name.startswith("tabfeed-loader")]


def test_a_copy_for_another_process_is_of_the_cpu(script, dataset):
    mapped = auto(dataset).map(_twice)
    copied = pickle.loads(pickle.dumps(mapped.state))
    assert type(copied.pipeline) is Pipeline
    assert type(copied.pipeline.stages) is type(plain(dataset).pipeline.stages)
    assert same([(x, y / 2) for x, y in copied], plain(dataset))


def _twice(inputs, target):
    return inputs, target * 2


def test_what_cannot_be_read_is_said_and_not_warned_of(script, dataset, monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    loader = plain(dataset)
    assert loader.reader_choice == "Arrow: batches are made in host memory"
    loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("auto"))
    assert not isinstance(loader.pipeline, AutoPipeline)
    assert loader.reader_choice == (
        "Arrow: no decoder for GPUs is installed; pip install tabfeed[gpu]"
    )
    loader = plain(dataset)
    loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("arrow"))
    assert loader.map(_twice).reader_choice == "Arrow: as requested"


def test_too_short_to_conclude():
    choice = Choice()
    for _ in range(17):  # two seconds to warm up, and fifteen chunks
        choice.add(1.0, waited=0.9, steps=1)
    assert choice.wanted == ARROW
    choice.add(1.0, waited=0.9, steps=1)
    assert choice.wanted == GPU


def test_it_waited_only_at_first():
    choice = Choice()
    for waited in [0.5] * 10 + [0.0] * 8 + [0.5] * 8 + [0.0] * 8:
        choice.add(1.0, waited=waited, steps=1)
    assert choice.wanted == ARROW and choice.why.startswith("Arrow: training waits 0%")


def test_a_pause_is_neither_work_nor_waiting():
    stretch = Stretch()
    for seconds in (1.0, 1.0, 1000.0, 1.0):
        stretch.add(seconds, waited=0.2, steps=4)
    assert stretch.step_seconds == pytest.approx(0.25)
    assert stretch.waits == pytest.approx(0.2)


# -- several passes, and no memory ----------------------------------------------------------


def test_a_pass_that_is_kept_does_not_keep_it_from_changing(script, dataset):
    loader, wanted = auto(dataset), list(plain(dataset))
    script.wait[ARROW] = 0.5
    old = iter(loader)
    begun = take(old, 3)
    loader.set_epoch(0)
    new = iter(loader)
    assert same(wanted, take(new, len(loader)))
    assert loader.reader_choice.startswith("the GPU: ")
    assert same(wanted, begun + list(old))


def no_room(on_gpu):
    raise RuntimeError("CUDA error: out of memory")


def test_no_memory_for_either_reader_leaves_copies(script, dataset, monkeypatch):
    loader, wanted = auto(dataset), list(plain(dataset))
    script.wait[ARROW] = 0.5
    backends = loader.pipeline.backends._replace(build=no_room, why_not=lambda: None)
    monkeypatch.setattr(loader.state, "pipeline", replace(loader.pipeline, backends=backends))
    assert same(wanted, take(iter(loader), len(loader)))
    assert "copied: it cannot begin: CUDA error: out of memory" in loader.reader_choice
    loader.set_epoch(0)
    assert same(wanted, loader)
