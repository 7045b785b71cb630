"""How fast the loop could be, measured after it: the step alone, and the data through tabfeed.

The *ceiling* is the training step repeated on one batch in memory: no input can make training
faster. The step really trains, so measure it on a model that may be changed.

The *baseline* is what tabfeed would deliver. One batch of the other loader is written as Parquet,
repeated until there are enough rows to time, and read back shuffled in batches of the same size.
Repeated rows compress better than real ones, so the file is written without compression.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError
from tabfeed.io import Dataset
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.build import Steps, build_pipeline, dict_layout
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.state import LoaderState
from tabfeed.profile.collect.accelerator import cuda_in_use
from tabfeed.profile.collect.batch_sizes import arrays_of, batch_rows
from tabfeed.profile.run import Baseline, Ceiling
from tabfeed.schema import Schema

__all__ = ["array_pipeline", "halve", "measure_baseline", "measure_ceiling"]


Array = npt.NDArray[Any]
_ROWS = 200_000
_BYTES = 64 * 2**20
_COLUMNS = 1024
_SECONDS = 0.5
_WARM_UP = 3
_MIN_STEPS = 5


def array_pipeline(
    dataset: Dataset,
    options: LoaderOptions,
    columns: list[str],
    transforms: Any = (),
    *,
    schema: Schema | None = None,
) -> Pipeline[dict[str, Array]]:
    """A loader without a framework: batches are dicts of NumPy arrays.

    ``schema`` is the schema after the transforms; by default that of the dataset.
    """
    layout = dict_layout(schema or dataset.schema, columns)
    return build_pipeline(dataset, layout, options, _cut, Steps(tuple(transforms)))


def _cut(chunk: Chunk) -> list[dict[str, Array]]:
    return [
        {name: array[low:high] for name, array in chunk.columns.items()}
        for low, high in pairwise(chunk.bounds.tolist())
    ]


def measure_baseline(batch: Any) -> Baseline | None:
    """Rows per second through tabfeed; None if the batch has no arrays of numbers."""
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
        state = array_pipeline(dataset, options, dataset.column_names).start()
        return Baseline(_rows_per_second(state), whole.num_rows, table.num_columns)


def _rows_per_second(state: LoaderState[Any]) -> float:
    for _ in state:  # warm up
        break
    before, start, spent = state.rows_given, time.perf_counter(), 0.0
    while spent < _SECONDS:
        for _ in state:
            spent = time.perf_counter() - start
            if spent >= _SECONDS:
                break
    state.close()
    return (state.rows_given - before) / spent


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


# -- the ceiling -----------------------------------------------------------------------------------


def measure_ceiling(
    step: Callable[[Any], Any], batch: Any, *, seconds: float = 1.0, halves: bool = False
) -> Ceiling:
    """Time `step` on `batch` for about `seconds`; with `halves` on half of its rows too."""
    if not callable(step):
        raise ArgumentError(f"step must be a function of a batch, not {type(step).__name__}")
    if seconds <= 0:
        raise ArgumentError(f"seconds is {seconds!r}; it must be above 0")
    mean, steps = _time(step, batch, seconds)
    half = _time(step, halve(batch), seconds)[0] if halves else None
    return Ceiling(mean, batch_rows(batch), steps, half)


def _time(step: Callable[[Any], Any], batch: Any, limit: float) -> tuple[float, int]:
    for _ in range(_WARM_UP):
        _synchronize(step(batch))
    start, steps, spent = time.perf_counter(), 0, 0.0
    result = None
    while steps < _MIN_STEPS or spent < limit:
        result = step(batch)
        steps += 1
        spent = time.perf_counter() - start
    _synchronize(result)
    return (time.perf_counter() - start) / steps, steps


def _synchronize(result: Any) -> None:
    """Wait until asynchronous work is done."""
    cuda = cuda_in_use()
    if cuda is not None:
        cuda.synchronize()
    for _, array in arrays_of(result):
        wait = getattr(array, "block_until_ready", None)
        if wait is not None:
            wait()


def halve(batch: Any) -> Any:
    """The first half of a batch's rows.

    Examples
    --------
    >>> import numpy as np
    >>> halve({"x": np.arange(4), "y": [np.arange(4)]})
    {'x': array([0, 1]), 'y': [array([0, 1])]}
    """
    rows = batch_rows(batch)
    if rows is None or rows < 2:
        raise ArgumentError(f"a batch of {rows} rows cannot be halved; leave halves=False")
    return _first(batch, rows, rows // 2)


def _first(part: Any, rows: int, kept: int) -> Any:
    if hasattr(part, "shape") and hasattr(part, "dtype"):
        return part[:kept] if len(part.shape) and int(part.shape[0]) == rows else part
    if isinstance(part, Mapping):
        return {key: _first(value, rows, kept) for key, value in part.items()}
    if isinstance(part, list | tuple):
        values = [_first(value, rows, kept) for value in part]
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
    return part
