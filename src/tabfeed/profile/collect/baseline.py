"""What the same data would give through tabfeed, measured on a sample.

One batch of the foreign loader is written as Parquet, repeated until there are enough rows to time,
and read back shuffled, in batches of the same size. The rows repeat, so they compress better than
the real ones would; files are written without compression for that reason.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.io import Dataset
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.build import Steps, build_pipeline, dict_layout
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.state import LoaderState
from tabfeed.profile.collect.batch_sizes import arrays_of, batch_rows
from tabfeed.profile.run import Through
from tabfeed.schema import Schema

__all__ = ["array_pipeline", "measure"]

Array = npt.NDArray[Any]
_ROWS = 200_000
_BYTES = 64 * 2**20
_COLUMNS = 1024
_SECONDS = 0.5


def array_pipeline(
    dataset: Dataset,
    options: LoaderOptions,
    columns: list[str],
    transforms: Any = (),
    *,
    schema: Schema | None = None,
) -> Pipeline[dict[str, Array]]:
    """Batches as dicts of NumPy arrays: the loader without a framework.

    ``schema`` is what comes out of the transforms; by default what the dataset has.
    """
    layout = dict_layout(schema or dataset.schema, columns)
    return build_pipeline(dataset, layout, options, _cut, Steps(tuple(transforms)))


def _cut(chunk: Chunk) -> list[dict[str, Array]]:
    return [
        {name: array[low:high] for name, array in chunk.columns.items()}
        for low, high in pairwise(chunk.bounds.tolist())
    ]


def measure(batch: Any) -> Through | None:
    """Rows a second through tabfeed; None if the batch has nothing tabfeed could load."""
    rows = batch_rows(batch)
    table = _table(batch, rows) if rows else None
    if table is None or rows is None:
        return None
    with tempfile.TemporaryDirectory(prefix="tabfeed-profile-") as folder:
        repeats = max(1, min(_ROWS // rows, _BYTES // max(1, table.nbytes)))
        whole = pa.concat_tables([table] * repeats).combine_chunks()
        pq.write_table(whole, Path(folder) / "sample.parquet", compression="none")
        dataset = Dataset(folder)
        options = LoaderOptions(batch_size=min(rows, whole.num_rows), shuffle=True)
        feed = array_pipeline(dataset, options, dataset.column_names).start()
        return Through(_rate(feed, feed.__iter__), whole.num_rows, table.num_columns)


def _rate(feed: LoaderState[Any], begin: Callable[[], Any]) -> float:
    for _ in begin():  # the first pass warms up
        break
    before, start, spent = feed.rows_given, time.perf_counter(), 0.0
    while spent < _SECONDS:
        for _ in begin():
            spent = time.perf_counter() - start
            if spent >= _SECONDS:
                break
    feed.close()
    return (feed.rows_given - before) / spent


def _table(batch: Any, rows: int) -> pa.Table | None:
    columns: dict[str, Array] = {}
    for path, leaf in arrays_of(batch):
        array = _numpy(leaf)
        if array is None or array.ndim == 0 or len(array) != rows or array.dtype.kind not in "iufb":
            continue
        name = "_".join(str(key) for key in path) or "column"
        flat = array.reshape(rows, -1)
        for i in range(min(flat.shape[1], _COLUMNS - len(columns))):
            columns[f"{name}_{i}"] = np.ascontiguousarray(flat[:, i])
    return pa.table(columns) if columns else None


def _numpy(leaf: Any) -> Array | None:
    for convert in ("detach", "cpu", "numpy"):
        method = getattr(leaf, convert, None)
        if method is not None:
            leaf = method()
    try:
        return np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError):
        return None
