"""Partitions: cut finely, read whole or in pieces, errors that say where."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import ColumnNotFoundError, LoaderError
from tabfeed.loader.columns import Group, Layout
from tabfeed.loader.readers import PartReader, cut_fine
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
    parts, lens = cut_fine(ds, 20)
    tables = [ds.read(p) for p in parts]
    assert [t.num_rows for t in tables] == lens
    assert pa.concat_tables(tables).column("key").to_pylist() == list(range(104))


def test_columns_come_a_few_at_a_time(tmp_path):
    ds = write_rows(tmp_path, (64, 40))
    layout = Layout(groups=(Group("g", ("key",), np.dtype(np.int64)),), extras=())
    reader = PartReader(ds, ds.partitions, ds.partition_lens, layout)
    whole = reader.read(1)
    (piece,) = reader.pieces(1)
    assert piece.scalars["key"].tolist() == whole.scalars["key"].tolist()
