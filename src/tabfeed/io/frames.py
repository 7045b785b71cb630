"""Tables that are in memory already, or come from another library.

Each becomes the same thing a file is: units that can be read. A frame is one unit that is
sliced without copying. What can be read only once (a record batch reader, a lazy frame, a
scanner) is first put on disk as an Arrow file, since a dataset must be readable again for
every epoch; the file goes when the dataset does.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError, DuplicateColumnError, SchemaError
from tabfeed.io.source import DataFile, Location, ReadOptions

__all__ = ["DaskFrame", "MemoryTable", "TemporaryFolder", "arrow_from_frame", "as_data_file"]


class MemoryTable:
    """An Arrow table as a file of one unit."""

    def __init__(self, table: pa.Table) -> None:
        if len(set(table.column_names)) < table.num_columns:
            twice = next(n for n in table.column_names if table.column_names.count(n) > 1)
            raise DuplicateColumnError(f"the table has more than one column named {twice!r}")
        self.table = table
        self.schema = table.schema.remove_metadata()
        self.unit_rows: Sequence[int | None] = [table.num_rows]

    def count(self, unit: int) -> int:
        """Rows."""
        return int(self.table.num_rows)

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Bytes of these columns."""
        return max(1, sum(int(self.table.column(c).nbytes) for c in columns))

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """The columns, without a copy."""
        return self.table.select(list(columns)).replace_schema_metadata(None)

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Slices, without a copy."""
        yield from self.read([0], columns).to_batches(max_chunksize=rows)


class DaskFrame:
    """A Dask DataFrame: a unit a partition, computed when it is read."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.schema = pa.Schema.from_pandas(frame._meta_nonempty, preserve_index=False)
        self.schema = self.schema.remove_metadata()
        self.unit_rows: Sequence[int | None] = [None] * frame.npartitions

    def count(self, unit: int) -> int:
        """Rows of a partition; computes it."""
        return len(self.frame.partitions[unit])

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Not known before it is computed."""
        return 1

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Compute partitions."""
        schema = pa.schema([self.schema.field(c) for c in columns])
        parts = [self.frame[list(columns)].partitions[u].compute() for u in units]
        tables = [pa.Table.from_pandas(p, schema=schema, preserve_index=False) for p in parts]
        return pa.concat_tables(tables).replace_schema_metadata(None)

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A partition in batches."""
        yield from self.read([unit], columns).to_batches(max_chunksize=rows)


class TemporaryFolder:
    """A folder that goes when nobody holds it any more, or when the interpreter ends."""

    def __init__(self, parent: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tabfeed-", dir=parent))
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def remove(self) -> None:
        """Remove it now."""
        self._remove()


def as_data_file(source: Any) -> DataFile | None:
    """A frame, table, mapping or reader as a data file; None if it is none of these."""
    if isinstance(source, pa.RecordBatchReader):
        return _spool(source)
    pads = sys.modules.get("pyarrow.dataset")  # nobody has one of its objects without importing it
    if pads is not None and isinstance(source, pads.Scanner):
        return _spool(source.to_reader())
    if pads is not None and isinstance(source, pads.Dataset):
        return _spool(source.scanner().to_reader())
    if isinstance(source, pl.LazyFrame):
        return _spool_lazy(source)
    if type(source).__module__.split(".")[0] in ("dask", "dask_expr"):
        return DaskFrame(source)
    table = arrow_from_frame(source)
    return None if table is None else MemoryTable(table)


def arrow_from_frame(source: Any) -> pa.Table | None:
    """An in-memory frame as an Arrow table; None if `source` is not one."""
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if isinstance(source, pl.DataFrame):
        return source.to_arrow(compat_level=pl.CompatLevel.oldest())
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return _from_pandas(source)
    if isinstance(source, Mapping):
        return _from_mapping(source)
    if hasattr(source, "__arrow_c_stream__"):
        return pa.table(source)
    return None


def _from_pandas(frame: Any) -> pa.Table:
    """The columns of a pandas frame; the index is a label of rows, not a column."""
    names = [str(c) for c in frame.columns]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise DuplicateColumnError(f"the frame has more than one column named {twice!r}")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
        raise SchemaError(f"a pandas column holds values of several types: {e}") from e


def _from_mapping(source: Mapping[Any, Any]) -> pa.Table:
    columns = {str(name): _as_array(str(name), values) for name, values in source.items()}
    lengths = {name: len(a) for name, a in columns.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"the arrays differ in length: {lengths}")
    return pa.table(columns)


def _as_array(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, pl.Series):
        return values.to_arrow(compat_level=pl.CompatLevel.oldest())
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise ArgumentError(
            f"column {name!r} is a single value, {values!r}; give an array or a list of rows"
        )
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as e:
        raise SchemaError(f"column {name!r} cannot be made into a table's column: {e}") from e


def _spool(reader: pa.RecordBatchReader) -> DataFile:
    """Put a stream on disk as an Arrow file, a batch at a time."""
    folder = TemporaryFolder()
    path = str(folder.path / "stream.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch, None)
    return _open_spooled(path, folder)


def _spool_lazy(frame: pl.LazyFrame) -> DataFile:
    """Run a lazy frame's plan into a file, streaming, so that its result may exceed memory."""
    folder = TemporaryFolder()
    path = str(folder.path / "frame.arrow")
    frame.sink_ipc(path, compression="uncompressed", compat_level=pl.CompatLevel.oldest())
    return _open_spooled(path, folder)


def _open_spooled(path: str, folder: TemporaryFolder) -> DataFile:
    from tabfeed.io.ipc import open_ipc

    location = Location(path, path, pafs.LocalFileSystem(), Path(path).stat().st_size)
    file = open_ipc(location, ReadOptions())
    weakref.finalize(file, folder.remove)
    return file
