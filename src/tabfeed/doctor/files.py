"""Parquet files as the doctor sees them: what their footers say, and the loader that times them.

Nothing here judges; `tabfeed.doctor.rules` does. Footers are read when the dataset is opened, so
this costs nothing, except for page sizes, which take a look at the headers of a few column chunks.

The data is read by the loader's own pipeline, without a framework. Text and whole numbers with
nulls fit no tensor; in training a workflow turns them into numbers. Here the cheapest function that
needs them decoded does: the length of a text, 0 for a null.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError, BadFileError, LoaderError, UnreadableFileError
from tabfeed.io.dataset import Dataset
from tabfeed.io.fileset import unannounced
from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.io.formats.parquet.pages import Page, pages_of
from tabfeed.io.inspect import ColumnFacts, inspect
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.arrow_columns import numpy_dtype
from tabfeed.loader.shuffle_quality import sorted_columns
from tabfeed.profile.collect.probe import array_pipeline
from tabfeed.schema import ColumnSchema, Schema, Tags
from tabfeed.schema.dtypes import is_list_type

Batch = dict[str, np.ndarray[Any, Any]]
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Dataset


def open_parquet_files(
    data: Source, storage_options: Mapping[str, Any] | None = None
) -> tuple[Dataset, list[str]]:
    """The dataset of the Parquet files that can be opened, and what is wrong with the others."""
    if isinstance(data, Dataset):
        return _only_parquet(data), []
    try:
        return _only_parquet(Dataset(data, storage_options=storage_options)), []
    except (BadFileError, UnreadableFileError):
        with unannounced():
            rest = Dataset(data, storage_options=storage_options, on_bad_file="skip")
        bad = [s.reason for s in rest.skipped]
        return _only_parquet(Dataset(rest.files, storage_options=storage_options)), bad


def _only_parquet(dataset: Dataset) -> Dataset:
    if dataset.condition is not None or dataset.mapped:
        raise ArgumentError("this dataset has a filter or a map; give the files themselves")
    for name, file in zip(dataset.files, dataset.fileset.files, strict=True):
        if not file.row_groups:
            raise ArgumentError(
                f"{name} is not Parquet; only Parquet files can be examined. "
                "Convert it first: tabfeed convert IN OUT"
            )
    return dataset


def is_local(dataset: Dataset) -> bool:
    """Whether every file is on this machine."""
    refs = [f.ref for f in dataset.fileset.files]
    return all(r is not None and isinstance(r.filesystem, pafs.LocalFileSystem) for r in refs)


def name_of(data: Source) -> str:
    """What to call the data in a report."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    names = data.files if isinstance(data, Dataset) else [os.fspath(p) for p in data]
    return names[0] if len(names) == 1 else f"{len(names)} files"


_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_SAMPLED_COLUMNS = 6  # columns whose page headers are read
_TARGET_NAMES = {"label", "target", "y", "clicked", "click"}


@dataclass(frozen=True)
class StoredColumn:
    """One column: how it is stored, and what a loader can do with it.

    Attributes
    ----------
    kind
        "number", "text", "list", "text list", or "other" where no tensor can hold the values.
    nullable, nulls
        Whether nulls are allowed, and how many there are; None if the footers have no count.
    encoding
        "dictionary", or the name of the encoding of its values.
    """

    name: str
    kind: str
    nullable: bool
    nulls: int | None
    encoding: str
    codecs: tuple[str, ...]
    stored: int
    memory: int


@dataclass(frozen=True)
class PageFacts:
    """How a few column chunks are cut into pages, and whether their checksums are verified.

    ``bytes`` and ``values`` are medians over all pages but the last of each chunk, whose size the
    writer's limits did not decide; 0 if every chunk is one page.
    """

    bytes: float
    values: float
    checksums: bool
    version: int


@dataclass(frozen=True)
class DatasetFacts:
    """What the footers of a dataset of Parquet files say."""

    rows: int
    stored: int
    memory: int
    file_rows: tuple[int, ...]
    group_rows: tuple[int, ...]
    columns: tuple[StoredColumn, ...]
    pages: PageFacts | None
    sorted_by: tuple[str, ...]
    targets: tuple[str, ...]

    def of_kind(self, *kinds: str) -> list[StoredColumn]:
        """The columns of these kinds."""
        return [c for c in self.columns if c.kind in kinds]


def facts_of(dataset: Dataset) -> DatasetFacts:
    """Collect the facts of a dataset from its footers.

    Parameters
    ----------
    dataset
        Parquet files, without filters or maps.
    """
    inspection = inspect(dataset)
    files = [f.row_groups for f in dataset.fileset.files if f.row_groups]
    columns = tuple(_column(dataset.schema[c.name], c, files[0].schema) for c in inspection.columns)
    targets = dataset.schema.select_by_tag(Tags.TARGET).column_names
    targets = targets or [c.name for c in columns if c.name.lower() in _TARGET_NAMES]
    flat = [c.name for c in columns if c.kind in ("number", "text", "other") and c.stored]
    return DatasetFacts(
        rows=inspection.rows or 0,
        stored=sum(f.stored_bytes or 0 for f in inspection.files),
        memory=inspection.memory_bytes or 0,
        file_rows=tuple(sum(f.unit_rows) for f in files),
        group_rows=tuple(r for f in files for r in f.unit_rows),
        columns=columns,
        pages=_pages(files, [c.name for c in columns]),
        sorted_by=tuple(sorted_columns(dataset, flat)),
        targets=tuple(targets),
    )


def _column(column: ColumnSchema, facts: ColumnFacts, schema: pa.Schema) -> StoredColumn:
    encodings = set(facts.encodings)
    other = sorted(encodings - _DICTIONARIES - {"PLAIN"})
    encoding = "dictionary" if encodings & _DICTIONARIES else next(iter(other), "PLAIN")
    index = schema.get_field_index(column.name)
    return StoredColumn(
        name=column.name,
        kind=_kind(column),
        nullable=index < 0 or schema.field(index).nullable,
        nulls=facts.nulls,
        encoding=encoding,
        codecs=tuple(c for c in facts.codecs if c != "UNCOMPRESSED"),
        stored=facts.stored_bytes or 0,
        memory=facts.memory_bytes or 0,
    )


def _kind(column: ColumnSchema) -> str:
    leaf = column.leaf_dtype
    if leaf is None:
        return "other"
    value = leaf.value_type if pa.types.is_dictionary(leaf) else leaf
    if pa.types.is_string(value) or pa.types.is_large_string(value):
        return "text list" if column.is_list else "text"
    try:
        numpy_dtype(leaf, column.name)
    except LoaderError:
        return "other"
    return "list" if column.is_list else "number"


def _pages(files: list[ParquetFile], columns: list[str]) -> PageFacts | None:
    """The pages of a few columns in the middle row group of the middle file."""
    whole = [f for f in files if f.metadata.num_row_groups]
    if not whole:
        return None
    file = whole[len(whole) // 2]
    file.check()
    group = file.metadata.row_group(file.metadata.num_row_groups // 2)
    step = max(1, group.num_columns // _SAMPLED_COLUMNS)
    pages: list[Page] = []
    full: list[Page] = []
    with file.ref.open() as source:
        for i in range(0, group.num_columns, step)[:_SAMPLED_COLUMNS]:
            found = pages_of(source, group.column(i))
            pages += found
            full += found[:-1]
    if not pages:
        return None
    return PageFacts(
        bytes=median(p.bytes for p in full) if full else 0,
        values=median(p.values for p in full) if full else 0,
        checksums=any(p.checksum for p in pages) and file.verifies_pages,
        version=max(p.version for p in pages),
    )


# -- the loader that is timed ---------------------------------------------------------------------

_BATCH_SIZE = 65_536


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
            made = pc.fill_null(made, 0) if made.null_count else made
            table = table.set_column(table.column_names.index(name), name, made)
        return table


def _lengths(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if is_list_type(column.type):
        return pc.list_value_length(column).cast(pa.int32())
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return pc.binary_length(column).cast(pa.int32())


def readable(dataset: Dataset, kinds: dict[str, str]) -> list[str]:
    """The columns that can be timed: all but those of kind "other" (see `StoredColumn`)."""
    kept = [n for n in dataset.column_names if kinds[n] != "other"]
    if not kept:
        raise ArgumentError(
            f"no column can be fed to a model: {', '.join(dataset.column_names[:8])}; "
            "convert them to numbers with a Workflow first"
        )
    return kept


def loader_of(dataset: Dataset, kinds: dict[str, str], *, ranks: int = 1) -> Pipeline[Batch]:
    """A loader of the dataset with default options."""
    size = max(1, min(_BATCH_SIZE, dataset.num_rows // ranks))
    options = LoaderOptions(
        batch_size=size, shuffle=True, global_size=ranks, global_rank=0, last="short"
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
    if dtype is None or numpy_dtype(dtype, name).kind == "f":
        return False
    if not dataset.fileset.schema.field(name).nullable:
        return False
    stored = (file.stored(name) for file in dataset.fileset.files)
    return any(s is None or s.nulls != 0 for s in stored)
