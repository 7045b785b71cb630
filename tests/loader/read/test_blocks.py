"""Lots: whole partitions, permuted, in reused memory and the right dtype."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import BadFileError, LoaderError
from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.loader.plan import Plan
from tabfeed.loader.read.arrow_columns import Group, Layout, Part
from tabfeed.loader.read.blocks import BlockReader, block_dtypes
from tabfeed.loader.read.partition_reader import PartReader
from tests.bit_rot import rot

LAYOUT = Layout(
    groups=(
        Group("cats", ("a", "b"), np.dtype(np.int64)),
        Group("conts", ("x", "n"), np.dtype(np.float32)),
    ),
    lists=(("w", np.dtype(np.int64)),),
    fixed=(("v", 2, np.dtype(np.float32)),),
    extras=("t",),
)


@pytest.fixture
def dataset(tmp_path):
    n = np.arange(30)
    table = pa.table(
        {
            "a": n.astype(np.int32),
            "b": (n * 10).astype(np.int32),
            "x": n.astype(np.float32),
            "n": pa.array(n, mask=n == 7),
            "w": [[k] * (k % 3) for k in n.tolist()],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(n.repeat(2), pa.float32()), 2),
            "t": [f"t{k}" for k in n],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    return Dataset(tmp_path / "a.parquet", npartitions=3)


def reader(ds, layout=LAYOUT, transforms=(), at_once=2**20):
    parts = PartReader(ds, ds.partitions, ds.partition_lens, layout, transforms, at_once)
    return BlockReader(parts, layout, block_dtypes(layout, None if transforms else ds.schema))


@pytest.mark.parametrize("block_rows", [1, 15, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("at_once", [1, 2**20])
def test_rows_of_a_block_stay_whole(dataset, block_rows, shuffle, at_once):
    epoch = Plan((10, 10, 10), batch=5, shuffle=shuffle, block=block_rows).epoch(0)
    seen = []
    for number in range(len(epoch.starts) - 1):
        (block,) = reader(dataset, at_once=at_once).read(epoch, [number])
        order = block.matrices["cats"][0].tolist()
        assert block.rows == len(order)
        assert block.matrices["cats"][1].tolist() == [k * 10 for k in order]
        assert block.matrices["conts"][0].tolist() == order
        filled = np.nan_to_num(block.matrices["conts"][1], nan=7)
        assert filled.tolist() == order
        assert block.fixed["v"].tolist() == [[k, k] for k in order]
        values, offsets = block.lists["w"]
        assert [values[a:b].tolist() for a, b in pairwise(offsets)] == [
            [k] * (k % 3) for k in order
        ]
        assert block.extras["t"].to_pylist() == [f"t{k}" for k in order]
        seen += order
    assert sorted(seen) == list(range(30))
    assert (seen == list(range(30))) is not shuffle


def test_columns_keep_the_dtype_of_the_file_where_they_agree(dataset):
    assert block_dtypes(LAYOUT, dataset.schema) == {"cats": np.int32, "conts": np.float32}
    assert block_dtypes(LAYOUT, None) == {"cats": np.int64, "conts": np.float32}


def test_a_column_that_changed_its_type_is_refused(dataset):
    class Lying:
        def pieces(self, number):
            yield Part(10, {"a": np.full(10, 2**40), "b": np.zeros(10, np.int32)})

    made = BlockReader(Lying(), LAYOUT, block_dtypes(LAYOUT, dataset.schema))
    with pytest.raises(LoaderError, match="column 'a' is int64 where the dataset says int32"):
        made.read(Plan((10,), batch=5).epoch(0), [0])


def test_memory_goes_round(dataset):
    made, epoch = reader(dataset), Plan((10, 10, 10), batch=5).epoch(0)
    first = made.read(epoch, [0])[0].matrices["cats"].ctypes.data
    assert made.read(epoch, [1])[0].matrices["cats"].ctypes.data == first


def test_through_a_transform(dataset):
    def double(table):
        return table.set_column(0, "a", pa.array(np.asarray(table["a"]) * 2))

    (block,) = reader(dataset, transforms=(double,)).read(Plan((10, 10, 10), batch=5).epoch(0), [0])
    assert (block.matrices["cats"][0] * 5).tolist() == block.matrices["cats"][1].tolist()


# -- columns that need nothing but decoding: the straight way ---------------------------------

NUMBERS = Layout(
    groups=(
        Group("cats", ("b", "a"), np.dtype(np.int64)),
        Group("conts", ("x", "n"), np.dtype(np.float32)),
        Group("label", ("a",), np.dtype(np.float32)),
    )
)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("at_once", [1, 60, 2**20])
@pytest.mark.parametrize(("block", "number"), [(1, 1), (11, 0), (30, 0)])
def test_reading_straight_gives_the_same_block(
    dataset, monkeypatch, shuffle, at_once, block, number
):
    """One partition, two, or three side by side."""
    made = reader(dataset, NUMBERS, at_once=at_once)
    epoch = Plan((10,) * 3, 5, shuffle=shuffle, block=block).epoch(0)
    for name in ("pieces", "read"):
        monkeypatch.setattr(PartReader, name, None)  # not that way
    (straight,) = made.read(epoch, [number])
    monkeypatch.undo()
    monkeypatch.setattr(PartReader, "are_plain", False)
    (other,) = made.read(epoch, [number])
    assert straight.rows == other.rows == max(10, -(-block // 10) * 10)
    for name, matrix in other.matrices.items():
        assert straight.matrices[name].dtype == matrix.dtype
        np.testing.assert_array_equal(straight.matrices[name], matrix)


def test_files_with_columns_in_another_order_lie_side_by_side(tmp_path):
    names = ["a", "b", "x"]
    for part, order in enumerate((names, names[::-1])):
        n = np.arange(10 * part, 10 * part + 10, dtype=np.int32)
        columns = {"a": n, "b": n * 2, "x": n * 3}
        pq.write_table(
            pa.table({name: columns[name] for name in order}), tmp_path / f"{part}.parquet"
        )
    layout = Layout(groups=(Group("g", ("x", "a", "b"), np.dtype(np.int32)),))
    (block,) = reader(Dataset(tmp_path), layout).read(
        Plan((10, 10), 5, shuffle=False, block=20).epoch(0), [0]
    )
    n = np.arange(20)
    np.testing.assert_array_equal(block.matrices["g"], [n * 3, n, n * 2])


def test_many_small_partitions_are_not_all_open_at_once(dataset, monkeypatch):
    made, epoch = reader(dataset, NUMBERS), Plan((10,) * 3, 5, shuffle=False, block=30).epoch(0)
    (wanted,) = made.read(epoch, [0])
    monkeypatch.setattr("tabfeed.loader.read.partition_reader._SIDE_BY_SIDE", 2)
    assert made.parts.straight([0, 1, 2], NUMBERS.columns) is None
    (block,) = made.read(epoch, [0])
    np.testing.assert_array_equal(block.matrices["cats"], wanted.matrices["cats"])


def test_straight_columns_keep_their_nulls_as_nan_and_rows_in_order(dataset):
    (block,) = reader(dataset, NUMBERS).read(Plan((10,) * 3, 5, shuffle=False).epoch(0), [0])
    assert block.matrices["cats"].tolist() == [list(range(0, 100, 10)), list(range(10))]
    assert np.flatnonzero(np.isnan(block.matrices["conts"][1])).tolist() == [7]
    assert block.matrices["label"][0].tolist() == list(range(10))


@pytest.mark.parametrize("block", [1, 30])
def test_a_null_among_straight_integers_is_told_with_its_place(tmp_path, block):
    table = pa.table({"n": pa.array(np.arange(30), mask=np.arange(30) == 17)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    layout = Layout(groups=(Group("cats", ("n",), np.dtype(np.int64)),))
    made = reader(Dataset(tmp_path / "a.parquet", npartitions=3), layout)
    epoch = Plan((10,) * 3, 5, shuffle=False, block=block).epoch(0)
    with pytest.raises(LoaderError, match=r"row group 1\): column 'n' has 1 nulls"):
        made.read(epoch, list(range(epoch.blocks)))


def test_what_is_not_straight(dataset, tmp_path):
    def is_straight(ds, layout, **options):
        parts = reader(ds, layout, **options).parts
        return parts.straight([0], layout.columns) is not None

    def group(name, dtype):
        return Layout(groups=(Group("g", (name,), np.dtype(dtype)),))

    assert is_straight(dataset, group("n", np.int64))
    assert not is_straight(dataset, group("n", np.int32))  # may not hold every value
    assert not is_straight(dataset, LAYOUT)  # lists, text
    assert not is_straight(dataset, NUMBERS, transforms=(lambda table: table,))
    assert not is_straight(dataset.map(lambda table: table), NUMBERS)
    assert not is_straight(Dataset({"n": np.arange(30)}), group("n", np.int64))
    filtered = Dataset(tmp_path / "a.parquet", filters=[("a", "<", 5)])
    assert not is_straight(filtered, group("a", np.int32))
    lenient = Dataset(tmp_path / "a.parquet", on_bad_file="skip")
    assert not is_straight(lenient, group("a", np.int32))
    larger = Dataset(tmp_path / "a.parquet", npartitions=1)
    assert not is_straight(larger, group("a", np.int32))  # three row groups in one


def test_a_type_that_the_file_keeps_otherwise_goes_the_longer_way(dataset, monkeypatch):
    monkeypatch.setattr(ParquetFile, "stored_as_given", False)
    made = reader(dataset, NUMBERS)
    assert made.parts.straight([0], NUMBERS.columns) is None
    (block,) = made.read(Plan((10,) * 3, 5, shuffle=False).epoch(0), [0])
    assert block.matrices["cats"][1].tolist() == list(range(10))


def test_damage_met_on_the_straight_way_is_named(dataset, tmp_path):
    path = tmp_path / "a.parquet"
    chunk = pq.read_metadata(path).row_group(1).column(2)
    assert chunk.path_in_schema == "x"
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    damaged = bytearray(path.read_bytes())
    damaged[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    rot(path, damaged)
    made, epoch = reader(dataset, NUMBERS), Plan((10,) * 3, 5, shuffle=False).epoch(0)
    assert made.read(epoch, [0])[0].rows == 10
    with pytest.raises(BadFileError, match="row group 1, column 'x' is damaged"):
        made.read(epoch, [1])
