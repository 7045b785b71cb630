"""What the footers say of files, as far as it bears on reading them.

Nothing here judges: `tabfeed.doctor.rules` does. Footers are read when the dataset is opened, so
all of this is free; only how pages were cut takes a look into a few column chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import pyarrow as pa

from tabfeed.errors import LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.io.formats.parquet.page_headers import Page, pages_of
from tabfeed.io.inspect import ColumnFacts, inspect
from tabfeed.loader.read.arrow_columns import numpy_dtype
from tabfeed.loader.sorted_files import sorted_columns
from tabfeed.schema import ColumnSchema, Tags

__all__ = ["Column", "Facts", "Pages", "facts_of"]

_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_LOOKED_AT = 6  # columns whose pages are looked at
_TARGET_NAMES = {"label", "target", "y", "clicked", "click"}


@dataclass(frozen=True)
class Column:
    """One column: how it is stored, and what a loader can do with it.

    Attributes
    ----------
    kind
        "number", "text", "list", "text list", or "other" for what no tensor holds.
    nullable, nulls
        Whether nulls are allowed, and how many there are; None if the footers do not tell.
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
class Pages:
    """How a few column chunks were cut into pages, and whether their checksums are verified.

    ``bytes`` and ``values`` are medians over the pages that were ended by the writer's limits, the
    last of a chunk aside; 0 if every chunk is one page.
    """

    bytes: float
    values: float
    checksums: bool
    version: int


@dataclass(frozen=True)
class Facts:
    """A dataset of Parquet files, as its footers tell."""

    rows: int
    stored: int
    memory: int
    file_rows: tuple[int, ...]
    group_rows: tuple[int, ...]
    columns: tuple[Column, ...]
    pages: Pages | None
    sorted_by: tuple[str, ...]
    targets: tuple[str, ...]

    def of_kind(self, *kinds: str) -> list[Column]:
        """The columns of these kinds."""
        return [c for c in self.columns if c.kind in kinds]


def facts_of(dataset: Dataset) -> Facts:
    """Collect them.

    Parameters
    ----------
    dataset
        Of Parquet files, without filters or maps.
    """
    told = inspect(dataset)
    files = [f for f in dataset.fileset.files if isinstance(f, ParquetFile)]
    columns = tuple(_column(dataset.schema[c.name], c, files[0].schema) for c in told.columns)
    targets = dataset.schema.select_by_tag(Tags.TARGET).column_names
    targets = targets or [c.name for c in columns if c.name.lower() in _TARGET_NAMES]
    flat = [c.name for c in columns if c.kind in ("number", "text", "other") and c.stored]
    return Facts(
        rows=told.rows or 0,
        stored=sum(f.stored_bytes or 0 for f in told.files),
        memory=told.memory_bytes or 0,
        file_rows=tuple(sum(f.unit_rows) for f in files),
        group_rows=tuple(r for f in files for r in f.unit_rows),
        columns=columns,
        pages=_pages(files, [c.name for c in columns]),
        sorted_by=tuple(sorted_columns(dataset, flat)),
        targets=tuple(targets),
    )


def _column(column: ColumnSchema, told: ColumnFacts, schema: pa.Schema) -> Column:
    encodings = set(told.encodings)
    other = sorted(encodings - _DICTIONARIES - {"PLAIN"})
    encoding = "dictionary" if encodings & _DICTIONARIES else next(iter(other), "PLAIN")
    index = schema.get_field_index(column.name)
    return Column(
        name=column.name,
        kind=_kind(column),
        nullable=index < 0 or schema.field(index).nullable,
        nulls=told.nulls,
        encoding=encoding,
        codecs=tuple(c for c in told.codecs if c != "UNCOMPRESSED"),
        stored=told.stored_bytes or 0,
        memory=told.memory_bytes or 0,
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


def _pages(files: list[ParquetFile], columns: list[str]) -> Pages | None:
    """Of a few columns in the middle row group of the middle file."""
    whole = [f for f in files if f.metadata.num_row_groups]
    if not whole:
        return None
    file = whole[len(whole) // 2]
    file.check()
    group = file.metadata.row_group(file.metadata.num_row_groups // 2)
    step = max(1, group.num_columns // _LOOKED_AT)
    pages: list[Page] = []
    full: list[Page] = []
    with file.location.open() as source:
        for i in range(0, group.num_columns, step)[:_LOOKED_AT]:
            found = pages_of(source, group.column(i))
            pages += found
            full += found[:-1]
    if not pages:
        return None
    return Pages(
        bytes=median(p.bytes for p in full) if full else 0,
        values=median(p.values for p in full) if full else 0,
        checksums=any(p.checksum for p in pages) and not file._fast,  # verified, that is
        version=max(p.version for p in pages),
    )
