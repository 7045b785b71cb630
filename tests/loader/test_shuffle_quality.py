from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import TabfeedWarning
from tabfeed.loader.plan import Plan
from tabfeed.loader.shuffle_quality import shuffle_quality, sorted_columns
from tabfeed.loader.torch import Loader, TorchAsyncItr


def test_from_file_order_to_uniform():
    sizes = (1000,) * 32
    in_order = shuffle_quality(Plan(sizes, batch=100, chunk=1, shuffle=False))
    one = shuffle_quality(Plan(sizes, batch=100, streams=1, chunk=50))
    eight = shuffle_quality(Plan(sizes, batch=100, streams=8, chunk=50))
    whole = shuffle_quality(Plan(sizes, batch=100, streams=1, block=32_000))
    assert in_order.score < 0.1
    assert in_order.score < one.score < eight.score < whole.score + 0.05
    assert whole.score > 0.95
    assert "shuffle quality" in str(eight)


def write(folder, label):
    table = pa.table({"x": np.arange(len(label)), "label": label})
    pq.write_table(table, folder / "a.parquet", row_group_size=100)
    return Dataset(str(folder))


def test_a_sorted_file_draws_a_warning_with_the_fix(tmp_path):
    ds = write(tmp_path, np.sort(np.arange(4000) % 2))
    small = {"batch_size": 20, "shuffle": True, "streams": 2, "buffer_size": 1000}
    with pytest.warns(
        TabfeedWarning, match=r"sorted by 'label'.*to_parquet\(path, shuffle=\"full\"\)"
    ):
        Loader(ds, targets=["label"], **small)
    with pytest.warns(TabfeedWarning, match="sorted by 'label'"):
        TorchAsyncItr(ds, ["x"], labels=["label"], **small)


def test_no_warning_where_it_does_not_matter(tmp_path):
    ds = write(tmp_path, np.sort(np.arange(4000) % 2))
    Loader(ds, 20, shuffle=True, targets=["label"])  # all of it is shuffled at once
    Loader(ds, 20, targets=["label"])  # in order, as asked
    assert sorted_columns(ds, ["label", "x"]) == ["label", "x"]


def test_mixed_labels_are_not_sorted(tmp_path):
    ds = write(tmp_path, np.arange(4000) % 2)
    assert sorted_columns(ds, ["label"]) == []
    assert sorted_columns(Dataset({"label": [1, 2]}), ["label"]) == []
