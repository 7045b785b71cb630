"""Files sorted by what is to be learned draw a warning, where shuffling does not make up for it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import TabfeedWarning
from tabfeed.loader.torch import Loader, TorchAsyncItr

LITTLE = {"batch_size": 20, "shuffle": True, "streams": 2, "buffer_size": 1000}  # is mixed


def write(folder, label):
    table = pa.table({"x": np.arange(len(label)), "label": label})
    pq.write_table(table, folder / "a.parquet", row_group_size=100)
    return Dataset(str(folder))


def test_a_sorted_file_draws_a_warning_with_the_fix(tmp_path):
    ds = write(tmp_path, np.sort(np.arange(4000) % 2))
    with pytest.warns(
        TabfeedWarning, match=r"sorted by 'label'.*to_parquet\(path, shuffle=\"full\"\)"
    ):
        Loader(ds, targets=["label"], **LITTLE)
    with pytest.warns(TabfeedWarning, match="sorted by 'label'"):
        TorchAsyncItr(ds, ["x"], labels=["label"], **LITTLE)


def test_no_warning_where_it_does_not_matter(tmp_path):
    ds = write(tmp_path, np.sort(np.arange(4000) % 2))
    Loader(ds, 20, shuffle=True, targets=["label"])  # all of it is shuffled at once
    Loader(ds, 20, targets=["label"])  # in order, as asked
    for name in ("label", "x"):
        with pytest.warns(TabfeedWarning, match=f"sorted by '{name}'"):
            Loader(ds, targets=[name], **LITTLE)


def test_mixed_labels_are_not_sorted(tmp_path):
    ds = write(tmp_path, np.arange(4000) % 2)
    Loader(ds, targets=["label"], **LITTLE)
    with pytest.warns(TabfeedWarning, match="sorted by 'x'"):
        Loader(ds, targets=["x"], **LITTLE)
    in_memory = Dataset({"label": np.sort(np.arange(4000) % 2)}, npartitions=40)
    Loader(in_memory, targets=["label"], **LITTLE)  # no footer tells
