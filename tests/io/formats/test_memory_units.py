"""Frames and their folders, looked at from inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tabfeed.io import Dataset
from tabfeed.io.formats.memory import TemporaryFolder
from tabfeed.io.inspect import inspect


def test_a_forked_child_does_not_remove_its_parents_folder(tmp_path: Path) -> None:
    folder = TemporaryFolder(str(tmp_path))
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.exists()
    folder.remove()
    assert not folder.path.exists()


def summed(partitions: int) -> Any:
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"a": np.arange(60), "b": np.arange(60), "k": np.arange(60) % 7})
    ddf = dd.from_pandas(frame, npartitions=partitions)
    ddf["c"] = ddf.a + ddf.b
    return ddf[ddf.c > 10]


def test_nobody_says_how_large_a_dask_frame_is() -> None:
    assert inspect(Dataset(summed(2))).memory_bytes is None


@pytest.mark.parametrize("kind", ["parquet", "feather", "stream"])
@pytest.mark.parametrize("name", ["user", None])
def test_an_index_that_pandas_stored_is_left_out(
    tmp_path: Path, kind: str, name: str | None
) -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=pd.Index([7, 9], name=name))
    table, path = pa.Table.from_pandas(frame), tmp_path / f"a.{kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    else:
        new = pa.ipc.new_file if kind == "feather" else pa.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table)
    stored = name or "__index_level_0__"
    engine = "parquet" if kind == "parquet" else "ipc"
    ds = Dataset(path, engine)
    assert ds.to_arrow().to_pydict() == Dataset(table).to_arrow().to_pydict() == {"x": [1, 2]}
    assert inspect(ds).index == (stored,)
    assert ds.select([stored]).to_arrow().to_pydict() == {stored: [7, 9]}
    assert Dataset(path, engine, columns=[stored]).index_columns == []
    assert Dataset(path, engine, filters=[(stored, ">", 7)]).to_arrow().to_pydict() == {"x": [2]}
