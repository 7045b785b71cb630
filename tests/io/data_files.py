"""What the tests of every file format share."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.io.formats.base import DataFile
from tabfeed.io.storage.files import FileRef


def locate(path: str | Path) -> FileRef:
    return FileRef(str(path), str(path), pafs.LocalFileSystem(), os.path.getsize(path))


def write(path: Path, data: bytes) -> FileRef:
    path.write_bytes(data)
    return locate(path)


def rows_of(file: DataFile, columns: Sequence[str] | None = None) -> list[dict[str, object]]:
    """All units, read at once."""
    names = file.schema.names if columns is None else list(columns)
    return file.read(range(len(file.unit_rows)), names).to_pylist()


def check_data_file(file: DataFile, table: pa.Table) -> None:
    """Every way to read a file gives the table that was written."""
    names = table.column_names
    units = range(len(file.unit_rows))
    assert file.schema.names == names
    assert [f.type for f in file.schema] == [f.type for f in table.schema]

    parts = [file.read([u], names) for u in units]
    assert all(p.schema.equals(file.schema) for p in parts)
    assert [p.num_rows for p in parts] == [file.count(u) for u in units]
    assert all(k is None or k == p.num_rows for k, p in zip(file.unit_rows, parts, strict=True))
    assert joined(file, parts).equals(table)
    assert file.read(list(units), names).equals(table)

    for rows in (1, 3, 1000):
        slices = [list(file.batches(u, names, rows)) for u in units]
        sizes = [[b.num_rows for b in s] for s in slices]
        assert all(n == rows for s in sizes for n in s[:-1])
        assert all(0 < n <= rows for s in sizes for n in s)
        batches = [b for s in slices for b in s]
        assert pa.Table.from_batches(batches, file.schema).equals(table)

    turned = names[::-1]
    assert file.read(list(units), turned).equals(table.select(turned))
    assert file.read(list(units), []).num_rows == table.num_rows
    nothing = [b for u in units for b in file.batches(u, [], 3)]
    assert sum(b.num_rows for b in nothing) == table.num_rows
    assert all(file.nbytes(u, names) >= file.nbytes(u, names[:1]) > 0 for u in units)

    copy = pickle.loads(pickle.dumps(file))
    assert copy.schema.equals(file.schema)
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda u: copy.read([u], names), [*units, *units]))
    assert joined(file, read[: len(units)]).equals(table)
    assert joined(file, read[len(units) :]).equals(table)


def joined(file: DataFile, parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([file.schema.empty_table(), *parts])
