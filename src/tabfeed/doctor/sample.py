"""A sample of a dataset, read in place, or written again with one thing changed.

The sample is a few stretches spread evenly over the data, each a run of neighbouring row groups, so
that many small files show up in it as many small files. Row groups stay whole, since their size
affects how fast they are read: of large ones there are few, possibly one. In place they are read
completely, as a loader reads them; only their first rows are written again.

`WriteSettings` describes how Parquet files were written, column by column, precisely enough to
write a *baseline* that reads as fast as the original. Change one setting, and the difference in
reading time is what that setting costs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.doctor.files import DatasetFacts, loader_of, readable
from tabfeed.errors import WriteError
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.parquet.pages import FAST, plain_inside
from tabfeed.io.partition import Partition, first_rows
from tabfeed.loader.plan import Plan

SAMPLE_BYTES = 32 * 2**20
_STRETCHES = 8
_MAX_GROUPS = 128


@dataclass(frozen=True)
class Sample:
    """Some rows of a dataset.

    Attributes
    ----------
    dataset
        Whole row groups, or the slices of them that a loader reads, in place.
    pieces
        The rows of each that are written again.
    plan
        The loader's order for all of the data.
    slices
        Whether row groups are so large that a loader cuts them.
    few
        Whether there are fewer row groups than reading threads; the sample then holds all of them.
    threads
        How many threads the loader reads with.
    """

    dataset: Dataset
    pieces: tuple[Partition, ...]
    plan: Plan
    slices: bool
    few: bool
    threads: int

    @property
    def rows(self) -> int:
        """How many rows are written again."""
        return sum(p.rows or 0 for p in self.pieces)

    def tables(self) -> Iterator[NumberedTable]:
        """The rows to write again, one table per row group."""
        for piece in self.pieces:
            yield piece.files[0], self.dataset.read(piece)


def take_sample(dataset: Dataset, facts: DatasetFacts, *, nbytes: int = SAMPLE_BYTES) -> Sample:
    """Choose the stretches."""
    kinds = {c.name: c.kind for c in facts.columns}
    loader = loader_of(dataset, kinds)
    reader: Any = loader.stages.reader.parts  # a PartReader, since there is no cache
    parts, lens = reader.partitions, reader.lens
    width = max(1, facts.memory // max(1, facts.rows))
    rows = max(1, nbytes // width)
    few = len(parts) < loader.options.workers
    numbers = range(len(parts)) if few else choose(lens, rows)
    chosen = [parts[i] for i in numbers if lens[i]]
    each = max(1, rows // len(chosen)) if len(chosen) <= _STRETCHES else rows
    return Sample(
        dataset=dataset.select(readable(dataset, kinds)).with_partitions(chosen),
        pieces=tuple(first_rows(p, each) for p in chosen),
        plan=loader.plan,
        slices=any(not piece.whole for part in parts for piece in part.pieces),
        few=few,
        threads=loader.options.workers,
    )


def choose(lens: Sequence[int], rows: int) -> list[int]:
    """The numbers of the partitions to sample: about `rows` rows, in evenly spread stretches.

    Examples
    --------
    >>> choose([10] * 4, 1000), choose([1000] * 99, 10)
    ([0, 1, 2, 3], [49])
    >>> choose([10] * 1600, 160)
    [99, 100, 299, 300, 499, 500, 699, 700, 899, 900, 1099, 1100, 1299, 1300, 1499, 1500]
    """
    count = len(lens)
    mean = max(1, sum(lens) // max(1, count))
    wanted = min(count, max(1, rows // mean), _MAX_GROUPS)
    stretches = min(_STRETCHES, wanted)
    each = wanted // stretches
    if each * stretches >= count:
        return list(range(count))
    middles = [int(count * (i + 0.5) / stretches) for i in range(stretches)]
    starts = [min(count - each, max(0, m - each // 2)) for m in middles]
    return sorted({n for s in starts for n in range(s, s + each)})


_LEVELS = ("GZIP", "ZSTD", "BROTLI")  # written at level 1: quicker, and read as fast
PAGE_BYTES = 2**20
PAGE_ROWS = 2**31 - 1
NumberedTable = tuple[int, pa.Table]  # the number of its file, and a row group


@dataclass(frozen=True)
class WriteSettings:
    """How Parquet files are written.

    Attributes
    ----------
    codecs, encodings
        By column; an encoding is "dictionary" or one of Parquet's own.
    page_bytes, page_rows, version
        When a page ends, and the version of its header.
    checksums
        Whether pages have them, and reading verifies them.
    group_rows
        Rows in a row group; None for what the tables have.
    one_file
        Whether all rows go into one file.
    required
        Whether columns without nulls are declared not nullable.
    change
        A function of each table before it is written.
    """

    codecs: dict[str, str]
    encodings: dict[str, str]
    page_bytes: int = PAGE_BYTES
    page_rows: int = PAGE_ROWS
    version: int = 1
    checksums: bool = False
    group_rows: int | None = None
    one_file: bool = False
    required: bool = False
    change: Callable[[pa.Table], pa.Table] | None = None


def settings_of(facts: DatasetFacts) -> WriteSettings:
    """How the files at hand were written."""
    pages = facts.pages
    return WriteSettings(
        codecs={c.name: c.codecs[0] if c.codecs else "NONE" for c in facts.columns},
        encodings={c.name: c.encoding for c in facts.columns},
        page_bytes=max(1024, int(pages.bytes)) if pages and pages.bytes else PAGE_BYTES,
        page_rows=max(1, int(pages.values)) if pages and pages.values else PAGE_ROWS,
        version=pages.version if pages else 1,
        checksums=bool(pages and pages.checksums),
    )


# -- changes of the data ---------------------------------------------------------------------------


def as_codes(columns: Iterable[str]) -> Callable[[pa.Table], pa.Table]:
    """Replace texts by whole numbers, as Categorify does."""

    def encode(column: pa.ChunkedArray) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        codes = column.combine_chunks().dictionary_encode()
        return pc.fill_null(codes.indices, 0)

    return _on(columns, encode)


def filled(columns: Iterable[str]) -> Callable[[pa.Table], pa.Table]:
    """Replace nulls by 0."""
    return _on(columns, lambda column: pc.fill_null(column, pa.scalar(0).cast(column.type)))


def without(columns: Iterable[str]) -> Callable[[pa.Table], pa.Table]:
    """Drop these columns."""
    names = list(columns)
    return lambda table: table.drop_columns(names)


def _on(columns: Iterable[str], work: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    names = tuple(columns)

    def change(table: pa.Table) -> pa.Table:
        for name in names:
            index = table.column_names.index(name)
            table = table.set_column(index, name, work(table.column(name)))
        return table

    return change


# -- writing ---------------------------------------------------------------------------------------


def write_sample(tables: Iterable[NumberedTable], folder: Path, writing: WriteSettings) -> Dataset:
    """Write tables into an empty folder, and open the result."""
    try:
        folder.mkdir(parents=True)
        for number, run in groupby(tables, key=lambda item: 0 if writing.one_file else item[0]):
            groups = (table for _, table in run)
            _write_file(folder / f"part_{number:06d}.parquet", groups, writing)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise WriteError(
            f"cannot write a sample of the data to {folder.parent} ({os.strerror(e.errno)}): "
            "free some space there, or set TMPDIR to another folder"
        ) from e
    return Dataset(folder, engine="parquet")


def _write_file(path: Path, tables: Iterator[pa.Table], writing: WriteSettings) -> None:
    if writing.change is not None:
        tables = map(writing.change, tables)
    writer: pq.ParquetWriter | None = None
    try:
        for table in _grouped(tables, writing.group_rows):
            if writer is None:
                schema = _declared(table, required=writing.required)
                writer = pq.ParquetWriter(path, schema, **_options(schema, writing))
            table = pa.Table.from_arrays(table.columns, schema=writer.schema)
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        if writer is not None and not writing.checksums:
            writer.add_key_value_metadata(FAST)  # readers then skip the checksums
    finally:
        if writer is not None:
            writer.close()


def _grouped(tables: Iterator[pa.Table], rows: int | None) -> Iterator[pa.Table]:
    if rows is None:
        yield from tables
        return
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        while sum(t.num_rows for t in held) >= rows:
            whole = pa.concat_tables(held)
            yield whole.slice(0, rows).combine_chunks()
            held = [whole.slice(rows)] if whole.num_rows > rows else []
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _declared(table: pa.Table, *, required: bool) -> pa.Schema:
    fields = []
    for field, column in zip(plain_inside(table.schema), table.columns, strict=True):
        sure = required and not column.null_count and not field.type.num_fields
        fields.append(field.with_nullable(False) if sure else field)
    return pa.schema(fields)


def _options(schema: pa.Schema, writing: WriteSettings) -> dict[str, Any]:
    leaves = _leaves(schema)
    encodings = {path: writing.encodings.get(name, "PLAIN") for path, name in leaves.items()}
    dictionary = [path for path, e in encodings.items() if e == "dictionary"]
    return {
        "compression": {p: writing.codecs.get(n, "NONE") for p, n in leaves.items()},
        "compression_level": {p: 1 for p, n in leaves.items() if writing.codecs.get(n) in _LEVELS},
        "use_dictionary": dictionary or False,
        "column_encoding": {p: e for p, e in encodings.items() if e not in ("dictionary", "PLAIN")},
        "data_page_size": writing.page_bytes,
        "max_rows_per_page": writing.page_rows,
        "write_batch_size": max(1, min(1024, writing.page_rows)),
        "data_page_version": "1.0" if writing.version == 1 else "2.0",
        "write_page_checksum": writing.checksums,
        "store_schema": True,
    }


def _leaves(schema: pa.Schema) -> dict[str, str]:
    """The top-level column of each Parquet leaf, by its path."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    paths = [parquet.column(i).path for i in range(len(parquet.names))]
    return {p: next(n for n in schema.names if p == n or p.startswith(f"{n}.")) for p in paths}
