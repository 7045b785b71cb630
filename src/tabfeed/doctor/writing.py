"""A sample of the data written again: exactly as it is, or with one thing changed.

`Writing` says how Parquet is written, column by column, far enough to write files that read as
fast as the ones at hand (their *twin*). Change one field and the difference in reading is what
that one thing costs.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.doctor.facts import Facts
from tabfeed.errors import WriteError
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.parquet.page_options import FAST, plain_inside

__all__ = [
    "NumberedTable",
    "Writing",
    "as_codes",
    "filled",
    "without",
    "write_sample",
    "writing_as",
]

_LEVELS = ("GZIP", "ZSTD", "BROTLI")  # slow to write at their usual levels, and read no faster
PAGE_BYTES = 2**20
PAGE_ROWS = 2**31 - 1
NumberedTable = tuple[int, pa.Table]  # the number of the file it belongs to, and a row group


@dataclass(frozen=True)
class Writing:
    """How files are written.

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
        Whether all goes into one file.
    required
        Whether columns without a null are declared so; None for what the schema says.
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


def writing_as(facts: Facts) -> Writing:
    """How the files at hand were written."""
    pages = facts.pages
    return Writing(
        codecs={c.name: c.codecs[0] if c.codecs else "NONE" for c in facts.columns},
        encodings={c.name: c.encoding for c in facts.columns},
        page_bytes=max(1024, int(pages.bytes)) if pages and pages.bytes else PAGE_BYTES,
        page_rows=max(1, int(pages.values)) if pages and pages.values else PAGE_ROWS,
        version=pages.version if pages else 1,
        checksums=bool(pages and pages.checksums),
    )


# -- changes of the data themselves ----------------------------------------------------------------


def as_codes(columns: Iterable[str]) -> Callable[[pa.Table], pa.Table]:
    """Texts as whole numbers, as Categorify would leave them."""

    def encode(column: pa.ChunkedArray) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        codes = column.combine_chunks().dictionary_encode()
        return pc.fill_null(codes.indices, 0)

    return _on(columns, encode)


def filled(columns: Iterable[str]) -> Callable[[pa.Table], pa.Table]:
    """0 for each null."""
    return _on(columns, lambda column: pc.fill_null(column, pa.scalar(0).cast(column.type)))


def without(columns: Iterable[str]) -> Callable[[pa.Table], pa.Table]:
    """The other columns."""
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


def write_sample(tables: Iterable[NumberedTable], folder: Path, writing: Writing) -> Dataset:
    """Write tables into an empty folder, and open what was written."""
    try:
        folder.mkdir(parents=True)
        for number, groups in _by_file(tables, one_file=writing.one_file):
            _write_file(folder / f"part_{number:06d}.parquet", groups, writing)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        raise WriteError(
            f"a sample of the data cannot be written to {folder.parent} ({os.strerror(e.errno)}): "
            "make room there, or set TMPDIR to another folder"
        ) from e
    return Dataset(folder, engine="parquet")


def _by_file(
    tables: Iterable[NumberedTable], *, one_file: bool
) -> Iterator[tuple[int, Iterator[pa.Table]]]:
    """Runs of tables that go into the same file; each run must be used up before the next."""
    from itertools import groupby

    for number, run in groupby(tables, key=lambda item: 0 if one_file else item[0]):
        yield number, (table for _, table in run)


def _write_file(path: Path, tables: Iterator[pa.Table], writing: Writing) -> None:
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
            writer.add_key_value_metadata(FAST)  # read without looking for them
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


def _options(schema: pa.Schema, writing: Writing) -> dict[str, Any]:
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
    """The column each of Parquet's own columns belongs to, by its path."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    parquet = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    paths = [parquet.column(i).path for i in range(len(parquet.names))]
    names = {p: next(n for n in schema.names if p == n or p.startswith(f"{n}.")) for p in paths}
    return names
