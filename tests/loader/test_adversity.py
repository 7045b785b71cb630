"""What goes wrong in the middle of an epoch, and where else a loader may be asked to run."""

from __future__ import annotations

import asyncio
import shutil
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import BadFileError, LoaderError, TabfeedError
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tabfeed.testing.loader import make_rows, write_rows
from tabfeed.trace import ListRecorder, recording
from tests.bit_rot import rot
from tests.waiting import wait_until


def threads():
    return {t for t in threading.enumerate() if t.name.startswith("tabfeed")}


def wait_for_threads_to_end(before):
    wait_until(lambda: threads() <= before, lambda: f"left: {threads() - before}")


def keys(loader):
    return [k for x, _ in loader for k in x["key"].tolist()]


# A few rows ahead, one thread: what is far off has not been read when the first batch comes.
NEAR = {"threads": 1, "depth": 1, "host_memory": 200_000}


def write_many(folder):
    for number in range(30):
        rows = make_rows(range(number * 1000, (number + 1) * 1000), lists=False)
        pq.write_table(rows, folder / f"{number:02}.parquet")
    return Dataset(str(folder))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "how", ["vanishes", "is cut short", "is damaged", "is another", "is copied"]
)
def test_a_file_that_changes_in_mid_epoch_ends_it_with_an_error(tmp_path, how, shuffle):
    before = threads()
    loader = Loader(write_many(tmp_path), 50, shuffle, **NEAR)
    batches = iter(loader)
    good = [next(batches)[0]["key"] for _ in range(3)]
    assert all(len(set(k.tolist())) == 50 for k in good)
    for path in tmp_path.glob("*.parquet"):
        spoil(path, how)
    with pytest.raises((OSError, TabfeedError), match=r"\d\d\.parquet"):
        for x, _ in batches:
            key = x["key"].numpy()
            assert np.array_equal(x["x"], key * 0.5)  # no wrong batch before the error
    wait_for_threads_to_end(before)


def spoil(path, how):
    if how == "vanishes":
        path.unlink()
    elif how == "is cut short":
        path.write_bytes(path.read_bytes()[:-2000])
    elif how == "is copied":  # as many bytes, and who knows which
        path.with_suffix(".new").write_bytes(path.read_bytes())
        path.with_suffix(".new").replace(path)
    elif how == "is another":
        pq.write_table(make_rows(range(7), lists=False), path)
    else:
        data = bytearray(path.read_bytes())
        data[4 : len(data) - 3000] = bytes(b ^ 0xFF for b in data[4 : len(data) - 3000])
        rot(path, bytes(data))


def test_a_column_missing_in_one_file_is_no_wrong_batch(tmp_path):
    write_rows(tmp_path, (20, 20), lists=False)
    short = make_rows(range(40, 60), lists=False).drop_columns(["check"])
    pq.write_table(short, tmp_path / "part_002.parquet")
    dataset = Dataset(str(tmp_path))
    itr = TorchAsyncItr(dataset, ["key", "check"], ["x"], ["y"], batch_size=7)
    with pytest.raises(LoaderError, match=r"part_002\.parquet.*column 'check' has 20 nulls"):
        list(itr)
    assert sorted(keys(Loader(dataset, 7, columns=["key", "x"]))) == list(range(60))


def test_a_folder_that_goes_is_told_at_once(tmp_path):
    (tmp_path / "data").mkdir()
    dataset = write_rows(tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    before = threads()
    with pytest.raises((OSError, BadFileError)):
        list(Loader(dataset, 10))
    wait_for_threads_to_end(before)


def test_after_an_error_the_next_pass_begins_anew(tmp_path):
    dataset = write_rows(tmp_path)
    failing = {"on": True}

    def sometimes(table):
        if failing["on"] and table.num_rows and table.column("key")[0].as_py() > 60:
            raise RuntimeError("once")
        return table

    failing["on"] = False
    loader = Loader(dataset, 10, transforms=sometimes)
    failing["on"] = True
    with pytest.raises(RuntimeError, match="once"):
        list(loader)
    failing["on"] = False
    assert keys(loader) == list(range(132))


def test_close_waits_for_the_threads_of_an_iterator_that_was_dropped(tmp_path):
    dataset = write_rows(tmp_path)
    reading, closed = threading.Event(), threading.Event()

    def slow(table):
        if armed.is_set():
            reading.set()
            closed.wait(1)  # ends by itself, since close() waits for this thread
        return table

    armed = threading.Event()
    loader = Loader(dataset, 10, transforms=slow)
    before = threads()
    armed.set()
    iterator = iter(loader)
    assert reading.wait()
    del iterator
    loader.close()
    left = threads() - before
    closed.set()
    assert not left


# -- where loaders run -----------------------------------------------------------------------


def test_inside_a_running_event_loop_as_in_a_notebook(tmp_path):
    dataset = write_rows(tmp_path)

    async def cell():
        return keys(Loader(dataset, 10, shuffle=True))

    assert sorted(asyncio.run(cell())) == list(range(132))


def test_from_another_thread_and_from_two_at_once(tmp_path):
    loader = Loader(write_rows(tmp_path), 10)
    found = {}

    def take(name):
        found[name] = keys(iter(loader))

    pair = [threading.Thread(target=take, args=(name,)) for name in "ab"]
    for thread in pair:
        thread.start()
    for thread in pair:
        thread.join()
    assert found == {"a": list(range(132)), "b": list(range(132))}


def test_a_cell_that_was_interrupted_can_be_run_again(tmp_path):
    before = threads()
    loader = Loader(write_rows(tmp_path), 5, shuffle=True)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            for _ in loader:
                raise KeyboardInterrupt
    wait_for_threads_to_end(before)
    assert sorted(keys(loader)) == list(range(132))


# -- what a loader tells and keeps ---------------------------------------------------------------


def test_shuffle_quality_is_a_number_a_person_can_judge(tmp_path):
    dataset = Dataset({"x": np.arange(20_000)}, npartitions=10)
    mixed = Loader(dataset, 100, shuffle=True).shuffle_quality()
    ordered = Loader(dataset, 100).shuffle_quality()
    assert mixed.score > 0.9 and ordered.score < 0.05
    assert mixed.file_order == pytest.approx(ordered.distance, abs=0.05)
    assert str(mixed).startswith("shuffle quality ") and "the files' order" in str(mixed)
    few = Loader(dataset, 100, shuffle=True, streams=1, host_memory=50_000).shuffle_quality()
    assert ordered.score < few.score < mixed.score


@pytest.mark.parametrize(("cache", "again"), [(None, True), ("memory", False), ("disk", False)])
def test_with_a_cache_later_epochs_decode_nothing(tmp_path, cache, again, monkeypatch):
    monkeypatch.setenv("TABFEED_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    loader = Loader(write_rows(tmp_path / "data"), 10, shuffle=True, cache=cache)
    orders, reads = [], []
    for _ in range(2):
        recorder = ListRecorder()
        with recording(recorder):
            orders.append(keys(loader))
        reads.append(sum(s.name == "read" for s in recorder.spans))
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(132)) and orders[0] != orders[1]
    assert reads[0] > 0 and reads[1] == (reads[0] if again else 0)


def test_what_does_not_fit_the_cache_is_streamed(tmp_path):
    dataset = write_many(tmp_path)
    loader = Loader(dataset, 100, shuffle=True, cache="memory", host_memory=200_000)
    for _ in range(2):
        assert sorted(keys(loader)) == list(range(30_000))


def test_batches_of_every_kind_that_are_kept_stay_as_they_were():
    rows = 5000
    data = {
        "key": np.arange(rows),
        "name": [f"n{i}" for i in range(rows)],
        "w": pa.array([[i, i + 1] if i % 3 else [] for i in range(rows)], pa.list_(pa.int64())),
        "v": pa.array([[i, i] for i in range(rows)], pa.list_(pa.int32(), 2)),
    }
    loader = Loader(Dataset(data, npartitions=7), 64, shuffle=True, extras=["name"], lists="padded")
    kept = [*loader, *loader]
    for x, _ in kept:
        ids = x["key"].tolist()
        assert x["name"].to_pylist() == [f"n{i}" for i in ids]
        assert x["v"].tolist() == [[i, i] for i in ids]
        assert x["w"].tolist() == [[i, i + 1] if i % 3 else [0, 0] for i in ids]


def test_columns_of_folder_names_may_be_read_in_slices(tmp_path):
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        rows = pa.table({"x": np.arange(3000)})
        pq.write_table(rows, tmp_path / f"day={day}" / "a.parquet")
    ds = Dataset(str(tmp_path))
    loader = TorchAsyncItr(ds, ["day", "x"], batch_size=500, device="cpu", host_memory="40kB")
    rows = torch.cat([x for x, _, _ in loader]).tolist()
    assert rows == [[day, x] for day in (1, 2) for x in range(3000)]
