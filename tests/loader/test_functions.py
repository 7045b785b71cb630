"""What a user's functions raise arrives: with its own type, a note, and never as the end."""

from __future__ import annotations

import importlib
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import FunctionError
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr
from tabfeed.testing.loader import write_rows
from tests.loader.gpu.pretend import on_gpu, pretend_gpu

ENDS = "it would end the loop that calls it"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows"), lists=False)  # 132 rows in 7 files


def later(error, first=50):
    """Fails for rows from some number on; the loader has seen good ones by then."""

    def function(table, *_):
        key = table["key"] if isinstance(table, dict) else table["key"].to_numpy()
        if len(key) and int(key[-1]) >= first:
            raise error
        return (table, *_) if _ else table

    return function


def notes(error):
    return " ".join(getattr(error, "__notes__", ()))


noted = pytest.mark.skipif(sys.version_info < (3, 11), reason="an error has no notes before")


def test_stop_iteration_in_map_is_no_end(dataset):
    loader = Loader(dataset, 10, targets=["y"]).map(later(StopIteration("mine")))
    with pytest.raises(
        FunctionError, match=f"given to map.., on batch 5 of the epoch: {ENDS}"
    ) as e:
        list(loader)
    assert isinstance(e.value, RuntimeError)
    assert isinstance(e.value.__cause__, StopIteration)


@pytest.mark.parametrize("columns", [["key", "y"], None])
def test_stop_iteration_in_map_on_a_gpu(dataset, monkeypatch, columns):
    pretend_gpu(monkeypatch, free=10**8)
    loader = Loader(dataset, 10, targets=["y"], columns=columns)
    loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("arrow"))
    with pytest.raises(FunctionError, match="on batch 5 of the epoch"):
        list(loader.map(later(StopIteration())))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("where", ["map", "collate_fn", "worker_init_fn", "transforms"])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning:torch")
def test_stop_iteration_in_what_a_data_loader_calls(dataset, workers, where):
    if where == "worker_init_fn" and not workers:
        pytest.skip("there is no worker to begin")
    transforms = later(StopIteration(), 70) if where == "transforms" else None
    loader = Loader(dataset, 10, targets=["y"], transforms=transforms)
    if where == "map":
        loader = loader.map(later(StopIteration()))
    options = {"multiprocessing_context": "fork"} if workers else {}
    if where == "collate_fn":
        options["collate_fn"] = lambda batch: later(StopIteration())(*batch)
    if where == "worker_init_fn":
        options["worker_init_fn"] = lambda number: next(iter(()))
    with pytest.raises(FunctionError, match=f"{where}|a transform"):
        list(DLDataLoader(loader, num_workers=workers, **options))


def module(framework):
    pytest.importorskip(framework)
    return importlib.import_module(f"tabfeed.loader.{framework}")


DOORS = {
    "TorchAsyncItr": lambda ds, **o: TorchAsyncItr(ds, ["key"], ["x"], ["y"], 10, **o),
    "torch": lambda ds, **o: Loader(ds, 10, **o),
    "jax": lambda ds, **o: module("jax").Loader(ds, 10, **o),
    "keras": lambda ds, **o: module("keras").KerasSequenceLoader(
        ds, 10, ["y"], cat_names=["key"], cont_names=["x"], **o
    ),
}


@pytest.mark.parametrize("make", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_stop_iteration_in_a_transform_on_every_framework(dataset, make, shuffle):
    loader = make(dataset, transforms=later(StopIteration(), 70), shuffle=shuffle)
    with pytest.raises(FunctionError, match=r"a transform, on partition \d+ \(.*part_004.parquet"):
        list(loader)


def test_stop_iteration_where_a_transform_is_tried_out(dataset):
    where = r"on the first rows of partition 0 \(.*part_000.parquet, row group 0\)"
    with pytest.raises(FunctionError, match=f"a transform, {where}"):
        Loader(dataset, 10, transforms=later(StopIteration(), 0))


def test_stop_iteration_in_seed_fn(dataset):
    def seeds():
        raise StopIteration

    with pytest.raises(FunctionError, match="seed_fn"):
        next(iter(Loader(dataset, 10, True, seed_fn=seeds)))


@noted
def test_other_errors_keep_their_type_and_get_a_note(dataset):
    loader = Loader(dataset, 10, targets=["y"]).map(later(ZeroDivisionError("mine")))
    with pytest.raises(ZeroDivisionError, match="mine") as e:
        list(loader)
    assert notes(e.value) == "raised by the function given to map(), on batch 5 of the epoch"
    with pytest.raises(KeyError) as e:
        list(Loader(dataset, 10, transforms=later(KeyError("mine"), 70)))
    assert "raised by a transform, on partition" in notes(e.value)
    assert "part_004.parquet, row group 0)" in notes(e.value)


@noted
def test_the_batch_of_a_note_counts_from_the_start_of_the_epoch(dataset):
    loader = Loader(dataset, 10, targets=["y"], buffer_size=1)  # a chunk is a batch
    state = {**loader.state_dict(), "step": 3}
    loader.load_state_dict(state)
    with pytest.raises(ZeroDivisionError) as e:
        list(loader.map(later(ZeroDivisionError())))
    assert "on batch 5 of the epoch" in notes(e.value)


@pytest.mark.usefixtures("no_loader_threads")
def test_no_thread_is_left_behind(dataset):
    with pytest.raises(FunctionError):
        list(Loader(dataset, 10, targets=["y"]).map(later(StopIteration())))
    assert not [t for t in threading.enumerate() if t.name.startswith("tabfeed-loader")]


def sizes_of_calls(dataset, keeps_rows=True):
    """Rows of each call of a mapped function in an epoch, without those that show its sizes."""
    calls = []

    def watch(table):
        calls.append(table.num_rows)
        return table

    mapped = dataset.map(watch, schema=dataset.schema, keeps_rows=keeps_rows)
    loader = Loader(mapped, 100, targets=["y"], host_memory="8MB", device="cpu")
    del calls[:]
    assert sum(len(y) for _, y in loader) == dataset.num_rows
    return calls


def test_a_mapped_partition_that_is_too_large_is_read_in_slices(tmp_path):
    rows = 100_000
    table = pa.table({"key": np.zeros(rows, np.int64), "x": np.arange(rows), "y": np.zeros(rows)})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = Dataset(tmp_path / "a.parquet")
    assert max(sizes_of_calls(dataset)) * 24 * 2 <= 8_000_000 // 10
    assert sizes_of_calls(dataset, keeps_rows=False) == [rows]
    assert sizes_of_calls(dataset.shuffle_by_keys("key")) == [rows]


def test_what_a_function_adds_counts(tmp_path):
    rows = 20_000
    pq.write_table(pa.table({"x": np.arange(rows), "y": np.zeros(rows)}), tmp_path / "a.parquet")
    calls = []

    def widen(table):
        calls.append(table.num_rows)
        for i in range(50):
            table = table.append_column(f"d{i}", pc.add(table["x"], i))
        return table

    for dataset, transforms in (
        (Dataset(tmp_path / "a.parquet").map(widen), None),
        (Dataset(tmp_path / "a.parquet"), widen),
    ):
        loader = Loader(dataset, 100, transforms=transforms, host_memory="16MB", device="cpu")
        del calls[:]
        assert sum(1 for _ in loader) == rows // 100
        assert max(calls) * 8 * 52 <= 1_600_000
