"""Tables that are in memory already, or come from another library.

Each becomes the same thing a file is: units that can be read. A frame is one unit that is
sliced without copying. What can be read only once (a record batch reader, a lazy frame, a
scanner) is first put on disk as an Arrow stream, since a dataset must be readable again for
every epoch; the file goes when the dataset does. An Arrow dataset of plain Parquet files is
not copied: `tabfeed.io.open_table` opens its files.

Text of another library is not trusted to be UTF-8, no more than that of files: each column is
looked at once, when it is first read (`refuse_bad_text`).

A pandas index without a name only numbers the rows, and goes; one with a name is a column that is
left out unless it is selected, as in files (`tabfeed.io.formats.base.index_columns`).
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError, DatasetError, DuplicateColumnError, SchemaError
from tabfeed.execute.executor import refuse_forked
from tabfeed.io.align import cast_table, normalize_type
from tabfeed.io.formats.base import DataFile, ReadOptions, index_columns
from tabfeed.io.formats.parquet.layout import check_texts
from tabfeed.io.formats.parquet.row_sizes import sizes_in_table
from tabfeed.io.storage.files import FileRef
from tabfeed.io.storage.local import TemporaryFolder

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "DaskFrame",
    "MemoryTable",
    "TemporaryFolder",
    "arrow_from_frame",
    "as_data_file",
    "refuse_bad_text",
]


class MemoryTable(DataFile):
    """An Arrow table as a file of one unit."""

    def __init__(self, table: pa.Table, index: tuple[str, ...] = ()) -> None:
        _refuse_twins(table.column_names, "table")
        self.table = table
        self._checked: set[str] = set()  # columns whose text is known to be UTF-8
        only_index = len(index) == table.num_columns
        noted = index_columns(table.column_names, table.schema.metadata)
        index = noted if only_index else index or noted
        super().__init__(table.schema.remove_metadata(), None, index)

    @property
    def unit_rows(self) -> list[int]:
        """Its rows, all in one unit."""
        return [self.table.num_rows]

    def count(self, unit: int) -> int:
        """Rows."""
        return int(self.table.num_rows)

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Bytes of these columns."""
        return max(1, sum(int(self.table.column(c).nbytes) for c in columns))

    def row_bytes(self, unit: int, columns: Sequence[str]) -> np.ndarray[Any, Any] | None:
        """Bytes of each row; None if all are of one size."""
        encoded = [c for c in columns if pa.types.is_dictionary(self.schema.field(c).type)]
        sizes = sizes_in_table(self.table.select([c for c in columns if c not in encoded]))
        if sizes is not None and encoded:
            sizes += self.nbytes(unit, encoded) / len(sizes)
        return sizes

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """The columns, without a copy."""
        new = [c for c in columns if c not in self._checked]
        refuse_bad_text(self.table.select(new), "the table")
        self._checked.update(new)
        return self.table.select(list(columns)).replace_schema_metadata(None)

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Slices, without a copy."""
        yield from self.read([0], columns).to_batches(max_chunksize=rows)


def _refuse_twins(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        twice = next(n for n in names if list(names).count(n) > 1)
        raise DuplicateColumnError(
            f"the {what} has more than one column named {twice!r}; rename them: a column is found "
            "by its name"
        )


class DaskFrame(DataFile):
    """A Dask DataFrame: a unit a partition, computed when it is read.

    Threads compute partitions side by side, but one at a time plans: Dask's expressions are full
    of ``functools.cached_property``, which until Python 3.12 holds one lock for each property of
    each class while it computes, so two threads that plan can wait for each other without end.
    """

    def __init__(self, frame: Any) -> None:
        with _PLANNING:
            name = frame.index.name
            self.frame = frame if name is None else frame.reset_index()
            only_index = not len(frame.columns)
            meta = _from_pandas(self.frame._meta_nonempty).schema.remove_metadata()
            partitions = self.frame.npartitions
        schema = pa.schema([f.with_type(_wide_index(f.type)) for f in meta])
        super().__init__(schema, None, () if name is None or only_index else (str(name),))
        self._partitions = partitions

    @property
    def unit_rows(self) -> list[None]:
        """None for each partition: only computing it would tell."""
        return [None] * self._partitions

    def count(self, unit: int) -> int:
        """Rows of a partition; computes it."""
        return len(self._compute(unit, []))

    def nbytes(self, unit: int, columns: Sequence[str]) -> int | None:
        """None: only computing a partition would tell."""
        return None

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Compute partitions."""
        wanted = list(columns)
        schema = pa.schema([self.schema.field(c) for c in wanted])
        frames = [self._compute(u, wanted) for u in units]
        tables = [_from_pandas(f).replace_schema_metadata(None) for f in frames]
        for table in tables:
            refuse_bad_text(table, "the Dask frame")
        if not wanted:
            return pa.table({"rows": pa.nulls(sum(len(f) for f in frames))}).select([])
        return pa.concat_tables([cast_table(t, schema, where="the Dask frame") for t in tables])

    def _compute(self, unit: int, columns: list[str]) -> Any:
        """Some columns of a partition, by Dask's scheduler of choice or on this thread."""
        from dask import base, local

        with _PLANNING:
            plan = self.frame[columns].partitions[unit].optimize()
            graph, (key,) = plan.__dask_graph__(), plan.__dask_keys__()
        choose: Callable[[], Any] = base.get_scheduler
        compute = choose() or local.get_sync
        return compute(graph, [key])[0]

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A partition in batches."""
        yield from self.read([unit], columns).to_batches(max_chunksize=rows)


_PLANNING = threading.RLock()


def _wide_index(dtype: pa.DataType) -> pa.DataType:
    """Room for the categories of every partition, which the first does not know."""
    if not pa.types.is_dictionary(dtype):
        return dtype
    return pa.dictionary(pa.int32(), normalize_type(dtype.value_type), dtype.ordered)


def as_data_file(source: Any) -> DataFile | None:
    """A frame, table, mapping or reader as a data file; None if it is none of these."""
    if isinstance(source, pa.RecordBatchReader):
        return _spool(source)
    pads = sys.modules.get("pyarrow.dataset")  # nobody has one of its objects without importing it
    if pads is not None and isinstance(source, pads.Scanner):
        return _spool(source.to_reader())
    if pads is not None and isinstance(source, pads.Dataset):
        return _spool(source.scanner().to_reader())
    polars = sys.modules.get("polars")  # likewise
    if polars is not None and isinstance(source, polars.LazyFrame):
        return _spool_lazy(source)
    if _is_dask_frame(source):
        return DaskFrame(source)
    table = arrow_from_frame(source)
    return None if table is None else MemoryTable(table, _named_levels(source))


def refuse_bad_text(table: pa.Table, what: str) -> None:
    """Raise `SchemaError` for a column whose text is not UTF-8; 0.03 s a GB where all is ASCII."""
    try:
        check_texts(table)
    except pa.ArrowInvalid:
        for name in table.column_names:
            try:
                check_texts(table.select([name]))
            except pa.ArrowInvalid as e:
                raise SchemaError(
                    f"column {name!r} of {what} is damaged: {e}; decode its bytes with the "
                    "encoding they have, or give them as binary"
                ) from e


def _named_levels(source: Any) -> tuple[str, ...]:
    """The named levels of the index of a pandas frame; nothing for other frames."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(source, pandas.DataFrame):
        return ()
    return tuple(str(n) for n in source.index.names if n is not None)


def _is_dask_frame(source: Any) -> bool:
    library = type(source).__module__.split(".")[0]
    frame_like = hasattr(source, "columns") and hasattr(source, "npartitions")
    return library in ("dask", "dask_expr") and frame_like


def arrow_from_frame(source: Any) -> pa.Table | None:
    """An in-memory frame as an Arrow table; None if `source` is not one."""
    if isinstance(source, pa.Table):
        return source
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(source, polars.DataFrame):
        refuse_forked("frames of its own", DatasetError)
        oldest = polars.CompatLevel.oldest()
        return _taken_over(source, lambda: source.to_arrow(compat_level=oldest))
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return _from_pandas(source)
    if isinstance(source, Mapping):
        return _from_mapping(source)
    if hasattr(source, "__arrow_c_stream__"):
        return _taken_over(source, lambda: pa.table(source))
    return None


def _taken_over(source: Any, convert: Callable[[], pa.Table]) -> pa.Table:
    """What another library gives in Arrow's terms."""
    try:
        return convert()
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise SchemaError(
            f"the columns of a {type(source).__name__} cannot be taken over: {e}; cast the column "
            "of that type to one that Arrow has"
        ) from e


def _from_pandas(frame: Any) -> pa.Table:
    """The columns of a pandas frame, the named levels of its index first."""
    named = [n for n in frame.index.names if n is not None]
    _refuse_twins([str(n) for n in [*named, *frame.columns]], "frame")
    if named:
        frame = frame.reset_index(level=named)
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        return table.rename_columns([str(c) for c in frame.columns])
    except (pa.ArrowException, OverflowError) as e:
        _explain_pandas(frame)
        raise SchemaError(f"a pandas frame cannot be made into a table: {e}") from e


def _explain_pandas(frame: Any) -> None:
    """Name the first column that Arrow does not take."""
    for name in frame.columns:
        try:
            pa.array(frame[name], from_pandas=True)
        except (pa.ArrowException, OverflowError) as e:
            raise SchemaError(
                f"column {name!r} of a pandas frame holds values of several types, or of one that "
                f"Arrow does not have: {e.args[0]}; convert it to numbers or text"
            ) from e


def _from_mapping(source: Mapping[Any, Any]) -> pa.Table:
    _refuse_twins([str(name) for name in source], "dict")
    columns = {str(name): _as_array(str(name), values) for name, values in source.items()}
    lengths = {name: len(a) for name, a in columns.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"the arrays differ in length: {lengths}")
    return pa.table(columns)


def _as_array(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(values, polars.Series):
        return values.to_arrow(compat_level=polars.CompatLevel.oldest())
    if isinstance(values, str | bytes | Mapping) or not _has_rows(values):
        raise ArgumentError(
            f"column {name!r} is a single value, {values!r}; give an array or a list of rows"
        )
    try:
        if isinstance(values, np.ndarray) and values.ndim > 1:
            return _from_matrix(values)
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        raise SchemaError(f"column {name!r} cannot be made into a table's column: {e}") from e


def _has_rows(values: Any) -> bool:
    try:
        len(values)
    except TypeError:
        return False
    return True


def _from_matrix(values: np.ndarray[Any, Any]) -> pa.Array:
    """Rows of equal length as lists of that length, nested as deep as the array is."""
    if values.ndim == 1:
        return pa.array(values)
    rows, width, *rest = values.shape
    inner = _from_matrix(np.ascontiguousarray(values).reshape(rows * width, *rest))
    if width == 0:
        return pa.array([[]] * rows, pa.list_(inner.type))
    return pa.FixedSizeListArray.from_arrays(inner, width)


def _spool(reader: pa.RecordBatchReader) -> DataFile:
    """Put a stream on disk, a batch at a time; a stream, as its dictionaries may change."""
    _refuse_twins(reader.schema.names, "stream")
    folder = TemporaryFolder()
    path = str(folder.path / "stream.arrows")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return _open_spooled(path, folder)


def _spool_lazy(frame: pl.LazyFrame) -> DataFile:
    """Run a lazy frame's plan into a file, streaming, so that its result may exceed memory."""
    import polars as pl

    refuse_forked("frames of its own", DatasetError)
    folder = TemporaryFolder()
    path = str(folder.path / "frame.arrow")
    frame.sink_ipc(path, compression="uncompressed", compat_level=pl.CompatLevel.oldest())
    return _open_spooled(path, folder)


def _open_spooled(path: str, folder: TemporaryFolder) -> DataFile:
    from tabfeed.io.formats.ipc import open_ipc

    ref = FileRef(path, path, pafs.LocalFileSystem(), Path(path).stat().st_size)
    file = open_ipc(ref, ReadOptions())
    weakref.finalize(file, folder.remove)
    return file
