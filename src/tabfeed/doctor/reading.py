"""Reading as a loader reads: the same cutting, threads, decoding and gathering, no framework.

Text has no tensor, and whole numbers with nulls have none either; in training a workflow makes
numbers of them. Here the cheapest function does that has them decoded: the length of a text, 0 for
a null. So their decoding is timed, and little else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ArgumentError
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.parquet.file import known_nulls
from tabfeed.io.partition import Partition
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.arrow_columns import numpy_dtype
from tabfeed.loader.read.partition_reader import PartReader
from tabfeed.profile.collect.baseline import array_pipeline
from tabfeed.schema import ColumnSchema, Schema
from tabfeed.schema.dtypes import is_list_type

__all__ = ["BATCH", "AsNumbers", "loader_of", "parts_of", "readable"]

BATCH = 65_536
Batch = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class AsNumbers:
    """Makes a number of each text, and fills nulls where a tensor has none."""

    text: tuple[str, ...]
    fill: tuple[str, ...]

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table with only numbers in these columns."""
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
    """The columns that can be timed: all but those that neither tensor nor workflow takes.

    Parameters
    ----------
    dataset
        What is read.
    kinds
        What each column is, as in `tabfeed.doctor.facts.Column.kind`.
    """
    kept = [n for n in dataset.column_names if kinds[n] != "other"]
    if not kept:
        raise ArgumentError(
            f"no column here can be fed to a model: {', '.join(dataset.column_names[:8])}; make "
            "numbers of them with a Workflow first"
        )
    return kept


def loader_of(
    dataset: Dataset,
    kinds: dict[str, str],
    *,
    batch_size: int = BATCH,
    ranks: int = 1,
    shuffle: bool = True,
) -> Pipeline[Batch]:
    """The loader of a dataset, with the options a user gets by default."""
    rows = dataset.num_rows
    size = max(1, min(batch_size, rows // ranks))
    options = LoaderOptions(
        batch_size=size, shuffle=shuffle, global_size=ranks, global_rank=0, last="short"
    )
    columns = readable(dataset, kinds)
    text = tuple(n for n in columns if kinds[n].startswith("text"))
    fill = tuple(n for n in columns if kinds[n] == "number" and _may_lack(dataset, n))
    known = dataset.select(columns).schema
    schema = Schema(ColumnSchema(c.name, pa.int32()) if c.name in text else c for c in known)
    steps = (AsNumbers(text, fill),) if text or fill else ()
    return array_pipeline(dataset.select(columns), options, columns, steps, schema=schema)


def _may_lack(dataset: Dataset, name: str) -> bool:
    """Whether a column of whole numbers may hold nulls, which its tensor could not."""
    dtype = dataset.schema[name].leaf_dtype
    whole = dtype is not None and numpy_dtype(dtype, name).kind != "f"
    return whole and dataset.fileset.schema.field(name).nullable and _has_nulls(dataset, name)


def _has_nulls(dataset: Dataset, name: str) -> bool:
    """False only if every footer says that there is none."""
    for file in dataset.fileset.files:
        chunks = getattr(file, "chunks", None)
        if chunks is None:
            return True
        if any(known_nulls(chunk) != 0 for chunk in chunks(name)):
            return True
    return False


def parts_of(feed: Pipeline[Any]) -> tuple[list[Partition], list[int]]:
    """What a loader reads at once, and the rows of each."""
    reader = feed.stages.reader.parts
    if not isinstance(reader, PartReader):  # a cache around one; never asked for here
        raise ArgumentError("this loader keeps what it read")
    return list(reader.partitions), list(reader.lens)
