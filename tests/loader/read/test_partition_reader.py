"""Partitions: cut finely, read whole or in pieces, errors that say where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import ColumnNotFoundError, LoaderError
from tabfeed.loader.read.arrow_columns import Group, Layout, Part
from tabfeed.loader.read.partition_reader import PartReader, ReadAhead, reading_ahead
from tabfeed.loader.row_sizes import cut_fine
from tabfeed.testing.loader import write_rows

LAYOUT = Layout(groups=(Group("g", ("x",), np.dtype(np.int64)),))


def test_what_a_transform_does_wrong_is_told():
    ds = Dataset({"x": np.arange(10)})

    def read(transform):
        return PartReader(ds, ds.partitions, ds.partition_lens, LAYOUT, (transform,)).read(0)

    assert read(lambda t: t).rows == 10
    with pytest.raises(ColumnNotFoundError, match="there is no column 'x' in partition 0"):
        read(lambda t: t.rename_columns(["y"]))
    with pytest.raises(ZeroDivisionError) as caught:
        read(lambda t: 1 // 0)
    if hasattr(caught.value, "__notes__"):
        assert "partition 0" in caught.value.__notes__[0]
    with pytest.raises(LoaderError, match="gave NoneType"):
        read(lambda t: None)


def test_row_groups_are_partitions_unless_something_applies_to_whole_ones(tmp_path):
    ds = write_rows(tmp_path, (64, 40))
    assert cut_fine(ds, 10**9)[1] == [32, 32, 32, 8]
    assert cut_fine(ds, 20)[1] == [16, 16, 16, 16, 16, 16, 8]
    assert cut_fine(ds.map(lambda t: t), 10**9)[1] == ds.partition_lens
    filtered = Dataset(str(tmp_path), filters=[("key", ">=", 70)])
    assert cut_fine(filtered, 10**9)[1] == filtered.partition_lens
    parts, lens, _ = cut_fine(ds, 20)
    tables = [ds.read(p) for p in parts]
    assert [t.num_rows for t in tables] == lens
    assert pa.concat_tables(tables).column("key").to_pylist() == list(range(104))


def test_row_groups_in_slices_are_whole_again_if_nobody_asked_for_slices(tmp_path, monkeypatch):
    table = pa.table({"key": np.arange(100)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40)
    monkeypatch.setattr("tabfeed.io.partition.DEFAULT_PART_SIZE", 200)
    monkeypatch.setattr("tabfeed.io.dataset.DEFAULT_PART_SIZE", 200)
    ds = Dataset(tmp_path / "a.parquet")
    assert max(ds.partition_lens) < 40 and len(ds.partitions) > 3
    parts, lens, _ = cut_fine(ds, 40)
    assert lens == [40, 40, 20] and all(piece.whole for p in parts for piece in p.pieces)
    assert [ds.read(p)["key"][0].as_py() for p in parts] == [0, 40, 80]
    assert max(cut_fine(ds, 39)[1]) < 39  # too many rows for the loader as well
    for asked in ({"part_size": 160}, {"npartitions": 5}):
        other = Dataset(tmp_path / "a.parquet", **asked)
        assert cut_fine(other, 40)[1] == other.partition_lens != lens
    twice = ds.with_partitions((ds.partitions[0], ds.partitions[0]))
    assert cut_fine(twice, 40)[1] == [ds.partition_lens[0]] * 2  # not one after the other


def test_columns_come_a_few_at_a_time(tmp_path):
    ds = write_rows(tmp_path, (64, 40))
    layout = Layout(groups=(Group("g", ("key",), np.dtype(np.int64)),), extras=())
    reader = PartReader(ds, ds.partitions, ds.partition_lens, layout)
    whole = reader.read(1)
    (piece,) = reader.pieces(1)
    assert piece.scalars["key"].tolist() == whole.scalars["key"].tolist()


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_text_that_nobody_has_counted_is_cut_too(tmp_path, name):
    rows = pl.DataFrame({"x": range(2000), "text": ["t" * 200] * 2000})
    write = rows.write_csv if name.endswith("csv") else rows.write_ndjson
    write(tmp_path / name)
    dataset = Dataset(tmp_path / name)
    assert [part.rows for part in dataset.partitions] == [None]
    cut = cut_fine(dataset, 10**9, 50_000, ["text"])
    assert sum(cut.rows) == 2000
    assert len(cut.rows) > 4
    assert max(cut.nbytes) <= 60_000


@dataclass
class Begun:
    nbytes: int


class Reader:
    remote = True

    def __init__(self, sizes):
        self.sizes = sizes
        self.begun = []

    def begin(self, number):
        self.begun.append(number)
        return [Begun(self.sizes[number])] if self.sizes[number] else []

    def pieces(self, number):
        yield self.read(number)

    def read(self, number):
        if number == 99:
            raise OSError("gone")
        return Part(number)


def test_as_many_as_the_budget_holds_and_one_at_least():
    reader = Reader([10] * 8)
    ahead = ReadAhead(reader, [3, 1, 0, 2, 5], budget=25)
    assert reader.begun == [3, 1, 0]  # the third begins while there is room, and may exceed it
    assert ahead.read(3).rows == 3
    assert reader.begun == [3, 1, 0, 2]
    ahead.read(5)  # which was not begun: no room is made
    assert reader.begun == [3, 1, 0, 2]
    large = Reader([1000, 1000])
    ReadAhead(large, [0, 1], budget=10)
    assert large.begun == [0]


def test_what_is_on_this_machine_is_passed_over():
    reader = Reader([0, 0, 10])
    ReadAhead(reader, [0, 1, 2], budget=5)
    assert reader.begun == [0, 1, 2]


def test_an_error_makes_room_too():
    reader = Reader({99: 10, 1: 10, 2: 10})
    ahead = ReadAhead(reader, [99, 1, 2], budget=5)
    assert reader.begun == [99]
    with pytest.raises(OSError, match="gone"):
        ahead.read(99)
    assert reader.begun == [99, 1]


def test_after_close_nothing_is_begun_or_held():
    reader = Reader([10] * 4)
    ahead = ReadAhead(reader, [0, 1, 2, 3], budget=15)
    ahead.close()
    assert ahead._held == {}
    ahead.read(0)
    assert reader.begun == [0, 1]


def test_only_what_is_remote_is_read_ahead():
    reader = Reader([10] * 4)
    reading_ahead(reader, iter([2, 3, 1]), budget=25)
    assert reader.begun == [2, 3, 1]
    local = Reader([])
    local.remote = False
    assert reading_ahead(local, [0], 10) is local


def test_a_partition_that_comes_in_pieces_is_held_until_its_last():
    reader = Reader([10] * 3)
    ahead = ReadAhead(reader, [0, 1], budget=5)
    pieces = ahead.pieces(0)
    next(pieces)
    assert reader.begun == [0]
    assert list(pieces) == []
    assert reader.begun == [0, 1]
