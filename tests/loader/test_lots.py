"""Lots: whole partitions, permuted, in reused memory and the right dtype."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import LoaderError
from tabfeed.loader.columns import Group, Layout, Part
from tabfeed.loader.lots import LotReader, lot_dtypes
from tabfeed.loader.plan import Plan
from tabfeed.loader.readers import PartReader

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
    return LotReader(parts, layout, lot_dtypes(layout, None if transforms else ds.schema))


@pytest.mark.parametrize("lot_rows", [1, 15, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("at_once", [1, 2**20])
def test_rows_of_a_lot_stay_whole(dataset, lot_rows, shuffle, at_once):
    epoch = Plan((10, 10, 10), batch=5, shuffle=shuffle, lot=lot_rows).epoch(0)
    seen = []
    for number in range(len(epoch.starts) - 1):
        (lot,) = reader(dataset, at_once=at_once).read(epoch, [number])
        order = lot.matrices["cats"][0].tolist()
        assert lot.rows == len(order)
        assert lot.matrices["cats"][1].tolist() == [k * 10 for k in order]
        assert lot.matrices["conts"][0].tolist() == order
        filled = np.nan_to_num(lot.matrices["conts"][1], nan=7)
        assert filled.tolist() == order
        assert lot.fixed["v"].tolist() == [[k, k] for k in order]
        values, offsets = lot.lists["w"]
        assert [values[a:b].tolist() for a, b in pairwise(offsets)] == [
            [k] * (k % 3) for k in order
        ]
        assert lot.extras["t"].to_pylist() == [f"t{k}" for k in order]
        seen += order
    assert sorted(seen) == list(range(30))
    assert (seen == list(range(30))) is not shuffle


def test_columns_keep_the_dtype_of_the_file_where_they_agree(dataset):
    assert lot_dtypes(LAYOUT, dataset.schema) == {"cats": np.int32, "conts": np.float32}
    assert lot_dtypes(LAYOUT, None) == {"cats": np.int64, "conts": np.float32}


def test_a_column_that_changed_its_type_is_refused(dataset):
    class Lying:
        def pieces(self, number):
            yield Part(10, {"a": np.full(10, 2**40), "b": np.zeros(10, np.int32)})

    made = LotReader(Lying(), LAYOUT, lot_dtypes(LAYOUT, dataset.schema))
    with pytest.raises(LoaderError, match="column 'a' is int64 where the dataset says int32"):
        made.read(Plan((10,), batch=5).epoch(0), [0])


def test_memory_goes_round(dataset):
    made, epoch = reader(dataset), Plan((10, 10, 10), batch=5).epoch(0)
    first = made.read(epoch, [0])[0].matrices["cats"].ctypes.data
    assert made.read(epoch, [1])[0].matrices["cats"].ctypes.data == first


def test_through_a_transform(dataset):
    def double(table):
        return table.set_column(0, "a", pa.array(np.asarray(table["a"]) * 2))

    (lot,) = reader(dataset, transforms=(double,)).read(Plan((10, 10, 10), batch=5).epoch(0), [0])
    assert (lot.matrices["cats"][0] * 5).tolist() == lot.matrices["cats"][1].tolist()
