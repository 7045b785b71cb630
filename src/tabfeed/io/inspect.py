"""Describe a dataset without reading its rows, or read all of it to report what is damaged.

For Parquet the description comes from the footers: rows, row groups, sizes, null counts, encodings,
codecs. Other formats hold less of it; the rest is None.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tabfeed.errors import BadFileError, UnreadableFileError
from tabfeed.execute import LocalExecutor
from tabfeed.io.fileset import FileSet
from tabfeed.io.formats.base import DataFile
from tabfeed.io.partition import Piece
from tabfeed.io.storage.files import reading
from tabfeed.schema.dtypes import format_type

if TYPE_CHECKING:
    from tabfeed.io.dataset import Dataset
    from tabfeed.io.table import PartitionedTable
    from tabfeed.schema import ColumnSchema

__all__ = ["ColumnFacts", "FileFacts", "Inspection", "Report", "inspect", "validate"]

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


# -- validating ----------------------------------------------------------------------------

_SMALL_GROUP = 10_000
_SMALL_FILE = 1_000_000
_LARGE_GROUP = 512 * 2**20
_BLOCK = 2**20


@dataclass(frozen=True)
class Report:
    """The result of reading every byte.

    Attributes
    ----------
    rows
        Rows that could be read, before any filter.
    damaged
        Parts that cannot be read, a sentence each.
    advice
        Parts that are readable but slow, a sentence each.
    """

    rows: int
    damaged: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything can be read."""
        return not self.damaged

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        places = "1 place is" if len(self.damaged) == 1 else f"{len(self.damaged)} places are"
        verdict = "all can be read" if self.ok else f"{places} damaged"
        lines = [f"{self.rows:,} rows; {verdict}"]
        lines += [f"  damaged: {d}" for d in self.damaged] + [f"  slow: {a}" for a in self.advice]
        return "\n".join(lines)


def validate(table: PartitionedTable) -> Report:
    """See `Dataset.validate`."""
    files, columns = table.files, table.source_columns

    def check(unit: Piece) -> tuple[int, str | None]:
        try:
            return _rows_of(files, unit, columns), None
        except (BadFileError, UnreadableFileError) as e:
            return 0, str(e)

    results = list(LocalExecutor().map(files.units(), check))
    damaged = [problem for _, problem in results if problem is not None]
    if not damaged:  # a changed checksum would add nothing to a part that cannot be read
        sums = LocalExecutor().map(files.files, _changed_since_written)
        damaged = [problem for problem in sums if problem is not None]
    left_out = [s.reason for s in files.skips.items]
    return Report(
        rows=sum(rows for rows, _ in results),
        damaged=tuple(dict.fromkeys(left_out + damaged)),
        advice=tuple(_advice(files, columns)),
    )


def _changed_since_written(file: DataFile) -> str | None:
    """The problem, if a file no longer has the checksum in the manifest."""
    ref, crc32 = file.ref, 0
    if ref is None or not ref.crc32:
        return None
    if ref.etag and ref.etag in ref.tag:  # the store has compared the bytes
        return None
    try:
        with reading(ref), ref.open() as source:
            while block := source.read(_BLOCK):
                crc32 = zlib.crc32(block, crc32)
    except (BadFileError, UnreadableFileError) as e:
        return str(e)
    if f"{crc32:08x}" == ref.crc32:
        return None
    return (
        f"{ref.name} has the CRC-32 {crc32:08x}, and {ref.crc32} when it was written: "
        "it can be read, but some of it was changed; write the dataset again, or delete "
        "_tabfeed.json to take the file as it is"
    )


def _rows_of(files: FileSet, unit: Piece, columns: list[str]) -> int:
    """Decode a unit to its end, a batch and a few columns at a time, and check every value."""
    rows, *_ = (_rows_in_group(files, unit, g) for g in files.column_groups(unit, columns))
    return rows


def _rows_in_group(files: FileSet, unit: Piece, columns: list[str]) -> int:
    rows = 0
    for batch in files.batches(unit, columns, verify=True):
        rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as e:
                where = f"{files.names[unit.file]}, row group {unit.unit}, column {name!r}"
                raise BadFileError(
                    f"{where} holds an invalid value: {e}",
                    file=files.names[unit.file],
                    row_group=unit.unit,
                    column=name,
                ) from e
    return rows


def _advice(source: FileSet, columns: list[str]) -> list[str]:
    """Advice that follows from the footers."""
    advice = []
    units = [u for u in source.units() if source.files[u.file].row_groups]
    small = [u for u in units if (u.rows or 0) < _SMALL_GROUP]
    if len(units) > 1 and len(small) > len(units) // 2:
        advice.append(
            f"{len(small)} of {len(units)} row groups have fewer than {_SMALL_GROUP:,} rows; "
            "write it again with to_parquet, which makes them larger"
        )
    large = [u for u in units if (source.nbytes(u, columns) or 0) > _LARGE_GROUP]
    if large:
        advice.append(
            f"{len(large)} row groups take more than 512 MiB in memory and are read in slices; "
            "write it again with row_group_size=250_000"
        )
    files = [f.row_groups for f in source.files if f.row_groups]
    tiny = [f for f in files if f.ref.size < _SMALL_FILE]
    if len(tiny) > 100:
        advice.append(f"{len(tiny)} files are smaller than 1 MB; write fewer with output_files=")
    return advice
