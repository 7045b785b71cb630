"""Describe a dataset without reading its rows.

For Parquet everything here comes from the footers: rows, row groups, sizes, null counts, encodings,
codecs. Other formats hold less of it; the rest is None.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tabfeed.schema.dtypes import format_type

if TYPE_CHECKING:
    from tabfeed.io.dataset import Dataset
    from tabfeed.io.formats.base import DataFile
    from tabfeed.io.partition import Piece
    from tabfeed.schema import ColumnSchema

__all__ = ["ColumnFacts", "FileFacts", "Inspection", "inspect"]

_LEVELS = {"RLE", "BIT_PACKED"}  # of definition levels; every column chunk names them


@dataclass(frozen=True)
class ColumnFacts:
    """One column over all files."""

    name: str
    dtype: str
    tags: tuple[str, ...]
    values: str
    embedding_size: tuple[int, int] | None
    nulls: int | None
    stored_bytes: int | None
    memory_bytes: int | None
    encodings: tuple[str, ...]
    codecs: tuple[str, ...]


@dataclass(frozen=True)
class FileFacts:
    """One file."""

    name: str
    rows: int | None
    units: int
    smallest_unit: int | None
    largest_unit: int | None
    stored_bytes: int | None


@dataclass(frozen=True)
class Inspection:
    """A dataset's schema, files, row groups, sizes, null counts and encodings.

    ``index`` names the columns that are left out as a pandas index.
    """

    rows: int | None
    partitions: int
    memory_bytes: int | None
    columns: tuple[ColumnFacts, ...]
    files: tuple[FileFacts, ...]
    skipped: tuple[str, ...]
    index: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def inspect(dataset: Dataset) -> Inspection:
    """Describe a dataset without reading its rows.

    Examples
    --------
    >>> from tabfeed import Dataset
    >>> facts = inspect(Dataset({"x": [1, 2, 3]}))
    >>> facts.rows, facts.columns[0].dtype, facts.memory_bytes
    (3, 'int64', 24)
    """
    source = dataset.fileset
    units = source.units()
    columns = tuple(_column(dataset, c, units) for c in dataset.schema)
    return Inspection(
        rows=_total([u.rows for u in units]),
        partitions=dataset.npartitions,
        memory_bytes=_total([c.memory_bytes for c in columns]),
        columns=columns,
        files=tuple(_file(n, f) for n, f in zip(source.names, source.files, strict=True)),
        skipped=tuple(s.reason for s in dataset.skipped),
        index=tuple(dataset.index_columns),
    )


def _total(counts: list[int | None]) -> int | None:
    return None if None in counts else sum(c for c in counts if c is not None)


def _file(name: str, file: DataFile) -> FileFacts:
    rows = list(file.unit_rows)
    known = [r for r in rows if r is not None]
    return FileFacts(
        name=name,
        rows=_total(rows),
        units=len(rows),
        smallest_unit=min(known, default=None),
        largest_unit=max(known, default=None),
        stored_bytes=None if file.ref is None else file.ref.size,
    )


def _column(dataset: Dataset, column: ColumnSchema, units: list[Piece]) -> ColumnFacts:
    source = dataset.fileset
    known = (file.stored(column.name) for file in source.files)
    stored = [s for s in known if s is not None and s.encodings]
    encodings = sum((s.encodings for s in stored), Counter[str]())
    return ColumnFacts(
        name=column.name,
        dtype="?" if column.dtype is None else format_type(column.dtype),
        tags=tuple(str(t) for t in column.tags),
        values=_values(column),
        embedding_size=column.embedding_size,
        nulls=_total([s.nulls for s in stored]) if stored else None,
        stored_bytes=sum(s.nbytes for s in stored) if stored else None,
        memory_bytes=_total([source.nbytes(u, [column.name]) for u in units]),
        encodings=tuple(e for e, _ in encodings.most_common() if e not in _LEVELS),
        codecs=tuple(sorted({c for s in stored for c in s.codecs})),
    )


def _values(column: ColumnSchema) -> str:
    """What the schema says of the values: their range, or how many a list holds."""
    if column.value_count is not None:
        low, high = column.value_count
        return f"{low}..{'' if high is None else high} each"
    if column.domain is None or column.domain.max is None:
        return ""
    low_value = column.domain.min if column.domain.min is not None else ""
    return f"{low_value}..{column.domain.max:,}"
