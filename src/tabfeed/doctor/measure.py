"""How long a loader takes to read the same rows, stored in several ways.

The data is read by the loader's own pipeline, without a framework. Text and whole numbers with
nulls fit no tensor; in training a workflow turns them into numbers. Here the cheapest function that
needs them decoded does: the length of a text, 0 for a null.

The variants are read in turn, several rounds, the order reversed every second round, so that a
busy spell of the machine hits all of them. A cost is the ratio of the medians; the quartiles of
the ratios of single rounds show how certain it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ArgumentError
from tabfeed.io.dataset import Dataset
from tabfeed.io.partition import Partition
from tabfeed.loader.assemble.chunk import ChunkMaker
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.arrow_columns import numpy_dtype
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.buffers import BufferPool
from tabfeed.loader.read.partition_reader import PartReader
from tabfeed.profile.collect.limits import array_pipeline
from tabfeed.schema import ColumnSchema, Schema
from tabfeed.schema.dtypes import is_list_type

__all__ = ["Cost", "RoundTimes", "loader_of", "measure", "partitions_read", "readable"]


Batch = dict[str, np.ndarray[Any, Any]]
_BATCH_SIZE = 65_536
_MIN_SECONDS = 0.3  # a pass, or its start would dominate
_ROUNDS = 5
_MAX_REPEATS = 1000
_POOL_BYTES = 2**28
_MIN_ROUNDS, _MAX_ROUNDS = 3, 15


@dataclass(frozen=True)
class Cost:
    """How many times as long one variant takes to read as another.

    Attributes
    ----------
    ratio
        The ratio of the medians.
    low, high
        The quartiles of the ratios of single rounds.
    """

    ratio: float
    low: float
    high: float

    @property
    def matters(self) -> bool:
        """Whether it is above 5 % and above the noise between rounds."""
        return self.ratio >= 1.05 and self.low > 1.0

    def __str__(self) -> str:
        return f"{self.ratio:.2f}"


@dataclass(frozen=True)
class RoundTimes:
    """Seconds per row in each round, by variant."""

    seconds: Mapping[str, tuple[float, ...]]

    def cost(self, slow: str, fast: str) -> Cost:
        """How many times as long `slow` took as `fast`.

        Examples
        --------
        >>> RoundTimes({"a": (2.0, 2.0, 8.0), "b": (1.0, 1.0, 1.0)}).cost("a", "b")
        Cost(ratio=2.0, low=2.0, high=5.0)
        """
        a, b = np.array(self.seconds[slow]), np.array(self.seconds[fast])
        low, high = np.percentile(a / b, [25, 75])
        return Cost(float(np.median(a) / np.median(b)), float(low), float(high))

    def rate(self, name: str) -> float:
        """Rows per second, in the median round."""
        return 1 / max(1e-12, float(np.median(self.seconds[name])))


def measure(
    variants: Mapping[str, Dataset],
    loader: Callable[[Dataset], Pipeline[Any]],
    seconds: float,
    *,
    short: Sequence[str] = (),
) -> RoundTimes:
    """Read the variants in turn for about `seconds` in total, at least three rounds.

    The first pass over each warms up and is not counted. A variant with few row groups is read as
    if it had many copies of them, so that all threads have work and the start of a pass does not
    matter. The variants in `short` are read as they are.
    """
    # The start of a pass costs the same for all, which would blur their differences.
    shortest = min(_MIN_SECONDS, seconds / len(variants) / _ROUNDS)
    pool = BufferPool(keep=_POOL_BYTES)
    pipelines = {
        name: _with_pool(loader(v if name in short else _long_enough(v, loader, shortest)), pool)
        for name, v in variants.items()
    }
    times: dict[str, list[float]] = {name: [] for name in pipelines}
    end = time.monotonic() + seconds
    for number in range(_MAX_ROUNDS):
        for name in list(pipelines) if number % 2 else reversed(pipelines):
            times[name].append(_time(pipelines[name]) / pipelines[name].plan.rows)
        if number + 1 >= _MIN_ROUNDS and time.monotonic() > end:
            break
    return RoundTimes({name: tuple(seconds) for name, seconds in times.items()})


def _with_pool(pipeline: Pipeline[Any], pool: BufferPool) -> Pipeline[Any]:
    """The pipeline with a shared buffer pool: one runs at a time, so one pool is enough."""
    reader, maker = pipeline.stages.reader, pipeline.stages.maker
    if isinstance(reader, BlockReader) and isinstance(maker, ChunkMaker):
        reader, maker = replace(reader, pool=pool), replace(maker, pool=pool)
        return replace(pipeline, stages=replace(pipeline.stages, reader=reader, maker=maker))
    return pipeline


def _long_enough(
    data: Dataset, loader: Callable[[Dataset], Pipeline[Any]], shortest: float
) -> Dataset:
    pipeline = loader(data)
    _time(pipeline)
    by_time = round(shortest / max(_time(pipeline), 1e-6))
    by_threads = -(-2 * pipeline.options.workers // len(pipeline.plan.sizes))
    return data.with_partitions(data.partitions * min(max(by_time, by_threads), _MAX_REPEATS))


def _time(pipeline: Pipeline[Any]) -> float:
    """Seconds of an epoch."""
    start = time.perf_counter()
    for _ in pipeline:
        pass
    return time.perf_counter() - start


# -- the loader -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AsNumbers:
    """Replaces texts by their lengths, and fills nulls where a tensor can have none."""

    text: tuple[str, ...]
    fill: tuple[str, ...]

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table with numbers in these columns."""
        for name in (*self.text, *self.fill):
            column = table.column(name)
            made = _lengths(column) if name in self.text else column
            if made.null_count:
                made = pc.fill_null(made, 0)
            table = table.set_column(table.column_names.index(name), name, made)
        return table


def _lengths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if is_list_type(column.type):
        return pc.list_value_length(column).cast(pa.int32())
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return pc.binary_length(column).cast(pa.int32())


def readable(dataset: Dataset, kinds: dict[str, str]) -> list[str]:
    """The columns that can be timed: all but those of kind "other".

    Parameters
    ----------
    dataset
        What is read.
    kinds
        The kind of each column, as in `tabfeed.doctor.files.StoredColumn`.
    """
    kept = [n for n in dataset.column_names if kinds[n] != "other"]
    if not kept:
        raise ArgumentError(
            f"no column can be fed to a model: {', '.join(dataset.column_names[:8])}; "
            "convert them to numbers with a Workflow first"
        )
    return kept


def loader_of(
    dataset: Dataset,
    kinds: dict[str, str],
    *,
    batch_size: int = _BATCH_SIZE,
    ranks: int = 1,
    shuffle: bool = True,
) -> Pipeline[Batch]:
    """A loader of the dataset with default options."""
    rows = dataset.num_rows
    size = max(1, min(batch_size, rows // ranks))
    options = LoaderOptions(
        batch_size=size, shuffle=shuffle, global_size=ranks, global_rank=0, last="short"
    )
    columns = readable(dataset, kinds)
    text = tuple(n for n in columns if kinds[n].startswith("text"))
    fill = tuple(n for n in columns if kinds[n] == "number" and _may_hold_nulls(dataset, n))
    known = dataset.select(columns).schema
    schema = Schema(ColumnSchema(c.name, pa.int32()) if c.name in text else c for c in known)
    steps = (_AsNumbers(text, fill),) if text or fill else ()
    return array_pipeline(dataset.select(columns), options, columns, steps, schema=schema)


def _may_hold_nulls(dataset: Dataset, name: str) -> bool:
    """Whether a column of whole numbers may hold nulls, which its tensor can't."""
    dtype = dataset.schema[name].leaf_dtype
    whole = dtype is not None and numpy_dtype(dtype, name).kind != "f"
    return whole and dataset.fileset.schema.field(name).nullable and _has_nulls(dataset, name)


def _has_nulls(dataset: Dataset, name: str) -> bool:
    """False only if every footer counts none."""
    for file in dataset.fileset.files:
        stored = file.stored(name)
        if stored is None or stored.nulls != 0:
            return True
    return False


def partitions_read(pipeline: Pipeline[Any]) -> tuple[list[Partition], list[int]]:
    """The partitions a loader reads, and the rows of each."""
    reader = pipeline.stages.reader.parts
    if not isinstance(reader, PartReader):
        raise ArgumentError("this loader has a cache")
    return list(reader.partitions), list(reader.lens)
