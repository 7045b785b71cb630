"""Parquet files: units are row groups, rows and sizes come from the footer.

The footer is read once, when the file is opened, and kept; each later read opens the
file anew with that footer, so threads share nothing. Page checksums are verified where
the file has them: without that, a flipped bit in a compressed page can decode into
plausible wrong numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.dtypes import is_list_type, leaf_type
from tabfeed.errors import BadFileError, UnreadableFileError
from tabfeed.io.failures import bad_file, reading, refuse_duplicates, refuse_empty
from tabfeed.io.filters import Filter
from tabfeed.io.prune import facts_of_chunk
from tabfeed.io.small_types import small_type
from tabfeed.io.source import Location, ReadOptions
from tabfeed.io.unify import conform

__all__ = ["ParquetFile", "open_parquet"]

_MAGIC = b"PAR1"
_STREAM_BUFFER = 1 << 20
_LOOK_ROWS = 65_536
# Not the file's fault: these pass, so that skipping never drops good rows for want of memory.
_NOT_DAMAGE = (MemoryError, pa.ArrowCancelled)
_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)


def open_parquet(location: Location, options: ReadOptions) -> ParquetFile:
    """Read the footer of a Parquet file."""
    with reading(location), location.open() as f:
        try:
            metadata = pq.read_metadata(f)
            schema = _restore_dictionaries(metadata.schema.to_arrow_schema(), metadata)
        except _NOT_DAMAGE:
            raise
        except _DAMAGE as e:
            if getattr(e, "errno", None):
                raise
            f.seek(0)
            raise _explain_bad_footer(location, f.read(4)) from e
    refuse_duplicates(location, schema.names)
    return ParquetFile(location, metadata, schema)


def _explain_bad_footer(location: Location, start: bytes) -> BadFileError:
    """Tell a cut file and a foreign one apart."""
    refuse_empty(location)
    if start == _MAGIC:
        what = f"is a Parquet file cut short or damaged at its end ({location.size:,} bytes)"
    else:
        what = f"is not a Parquet file: it starts with {bytes(start)!r}, not {_MAGIC!r}"
    return bad_file(location, what)


def _restore_dictionaries(schema: pa.Schema, metadata: pq.FileMetaData) -> pa.Schema:
    """Parquet itself keeps dictionaries of text only; the writer's schema knows the others."""
    encoded = (metadata.metadata or {}).get(b"ARROW:schema")
    if encoded is None:
        return schema.remove_metadata()
    original = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
    fields = []
    for field in schema:
        index = original.get_field_index(field.name)
        known = original.field(index).type if index >= 0 else field.type
        if pa.types.is_dictionary(known) and not pa.types.is_dictionary(field.type):
            field = field.with_type(known)
        fields.append(field)
    return pa.schema(fields)


class ParquetFile:
    """One Parquet file whose footer has been read."""

    def __init__(self, location: Location, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
        self.location = location
        self.metadata = metadata
        self.schema = schema

    @cached_property
    def unit_rows(self) -> Sequence[int]:
        """Rows of each row group."""
        return [self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups)]

    def count(self, unit: int) -> int:
        """Rows of a row group."""
        return self.unit_rows[unit]

    # -- sizes ----------------------------------------------------------------------

    @cached_property
    def _leaves(self) -> dict[str, list[int]]:
        """Which column chunks make up each column."""
        leaves: dict[str, list[int]] = {name: [] for name in self.schema.names}
        schema = self.metadata.schema
        for i in range(len(schema)):
            parts = schema.column(i).path.split(".")
            prefixes = (".".join(parts[:k]) for k in range(len(parts), 0, -1))
            leaves[next(p for p in prefixes if p in leaves)].append(i)
        return leaves

    @cached_property
    def _row_widths(self) -> dict[str, float | None]:
        """Bytes a row of each column takes, or None where the footer must say."""
        return {f.name: _row_width(f) for f in self.schema}

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Estimate of what these columns of a row group take in memory once decoded."""
        widths = self._row_widths
        varying = [c for c in columns if widths[c] is None]
        fixed = sum(widths[c] or 0 for c in columns) * self.unit_rows[unit]
        return max(1, int(fixed) + sum(self._variable_bytes(unit, c) for c in varying))

    def _variable_bytes(self, unit: int, name: str) -> int:
        """Text and lists: from the number of values, and how long the ones in the footer are."""
        dtype = self.schema.field(name).type
        group = self.metadata.row_group(unit)
        chunks = [group.column(i) for i in self._leaves[name]]
        stored = sum(c.total_uncompressed_size for c in chunks)
        if pa.types.is_dictionary(dtype):  # the file holds indices and values, too
            return stored + group.num_rows * (_fixed_width(dtype.index_type) or 4)
        leaf = _fixed_width(leaf_type(dtype))
        decoded = sum(c.num_values * (leaf or _text_length(c) + 4) for c in chunks)
        levels = 4 * group.num_rows if is_list_type(dtype) else 0
        return max(decoded, stored) + levels + group.num_rows // 8

    def chunks(self, column: str) -> Iterator[pq.ColumnChunkMetaData]:
        """The footer's entries for a column, one or more a row group."""
        for unit in range(self.metadata.num_row_groups):
            group = self.metadata.row_group(unit)
            yield from (group.column(i) for i in self._leaves.get(column, ()))

    # -- reading --------------------------------------------------------------------

    def read(
        self, units: Sequence[int], columns: Sequence[str], dictionary: Sequence[str] = ()
    ) -> pa.Table:
        """Whole row groups, decoded on the calling thread, which is free of the GIL meanwhile."""
        wanted = list(columns)
        try:
            with self._reader(dictionary) as reader:
                table = reader.read_row_groups(list(units), columns=wanted, use_threads=False)
        except _NOT_DAMAGE:
            raise
        except _DAMAGE as e:
            raise self._locate_damage(units, wanted, e) from e
        self._check_rows(units, table.num_rows)
        return self._finish(table, wanted, dictionary)

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A row group as a stream; at no time is more of it decoded than the batch at hand."""
        wanted = list(columns)
        count = 0
        try:
            with self._reader(buffer_size=_STREAM_BUFFER) as reader:
                for batch in self._stream(reader, unit, wanted, rows):
                    count += batch.num_rows
                    table = self._finish(pa.Table.from_batches([batch]), wanted)
                    yield from table.to_batches()
        except _NOT_DAMAGE:
            raise
        except _DAMAGE as e:
            raise self._locate_damage([unit], wanted, e) from e
        self._check_rows([unit], count)

    def _stream(
        self, reader: pq.ParquetFile, unit: int, columns: list[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        yield from reader.iter_batches(rows, row_groups=[unit], columns=columns, use_threads=False)

    def _reader(self, dictionary: Sequence[str] = (), buffer_size: int = 0) -> pq.ParquetFile:
        file = self.location.open()
        if self.location.size > 0 and file.size() != self.location.size:
            raise self._changed(f"it has {file.size():,} bytes now, not {self.location.size:,}")
        return pq.ParquetFile(
            file,
            metadata=self.metadata,
            read_dictionary=list(dictionary),
            buffer_size=buffer_size,
            pre_buffer=False,
            page_checksum_verification=True,
        )

    def _finish(
        self, table: pa.Table, columns: list[str], dictionary: Sequence[str] = ()
    ) -> pa.Table:
        table = table.select(columns)
        fields = [
            table.schema.field(n) if n in dictionary else self.schema.field(n) for n in columns
        ]
        return conform(table, pa.schema(fields))

    # -- damage ---------------------------------------------------------------------

    def _changed(self, how: str) -> UnreadableFileError:
        return UnreadableFileError(
            f"{self.location.name} has changed since the dataset was opened: {how}. Open the "
            "dataset again"
        )

    def _check_rows(self, units: Sequence[int], rows: int) -> None:
        expected = sum(self.unit_rows[u] for u in units)
        if rows != expected:
            error = ValueError(f"it holds {rows:,} rows where its footer says {expected:,}")
            raise self._damage(error, units[0] if len(units) == 1 else None, None)

    def _locate_damage(
        self, units: Sequence[int], columns: list[str], error: Exception
    ) -> Exception:
        """Read row group by row group and column by column to say where the damage is."""
        if isinstance(error, BadFileError | UnreadableFileError):
            return error
        if isinstance(error, OSError) and error.errno:  # the system's, not the decoder's
            return self._changed(f"it cannot be read any more ({error})")
        for unit in units:
            for column in columns:
                if (found := self._try(unit, column)) is not None:
                    return self._damage(found, unit, column)
        return self._damage(error, units[0] if len(units) == 1 else None, None)

    def _try(self, unit: int, column: str) -> Exception | None:
        """Decode one column of a row group; what goes wrong, if anything does."""
        try:
            with self._reader(buffer_size=_STREAM_BUFFER) as reader:
                for _ in self._stream(reader, unit, [column], _LOOK_ROWS):
                    pass
        except _NOT_DAMAGE:
            raise
        except _DAMAGE as e:
            return e
        return None

    def _damage(self, error: Exception, unit: int | None, column: str | None) -> BadFileError:
        where = "" if unit is None else f", row group {unit}"
        where += "" if column is None else f", column {column!r}"
        return BadFileError(
            f"{self.location.name}{where} is damaged: {error}. Write the file again, or pass "
            'on_bad_file="skip" to go on without the row groups that cannot be read',
            file=self.location.name,
            row_group=unit,
            column=column,
        )

    # -- filters --------------------------------------------------------------------

    def facts(self, unit: int, condition: Filter, schema: pa.Schema) -> list[pc.Expression]:
        """What the footer says of a row group, in the columns a filter looks at."""
        facts = []
        group = self.metadata.row_group(unit)
        for name in condition.columns:
            leaves = self._leaves.get(name, ())
            if len(leaves) == 1:
                stored = small_type(self.schema.field(name).type)
                chunk = group.column(leaves[0])
                facts += facts_of_chunk(chunk, stored, schema.field(name), condition)
        return facts

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "metadata": self.metadata, "schema": self.schema}


def _row_width(field: pa.Field) -> float | None:
    """Bytes a row takes, a bit for null included; None where that varies."""
    width = None if pa.types.is_dictionary(field.type) else _fixed_width(field.type)
    return None if width is None else width + field.nullable / 8


def _fixed_width(dtype: pa.DataType) -> int | None:
    """Bytes a value takes, or None where that varies."""
    if pa.types.is_fixed_size_list(dtype):
        inner = _fixed_width(dtype.value_type)
        return None if inner is None else inner * dtype.list_size
    if pa.types.is_boolean(dtype) or pa.types.is_null(dtype):
        return 1
    try:
        return max(1, int(dtype.bit_width) // 8)
    except ValueError:
        return None


def _text_length(chunk: pq.ColumnChunkMetaData) -> int:
    """How long a text value is, judging by the smallest and the largest one."""
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return 16
    lengths = [len(v) for v in (statistics.min_raw, statistics.max_raw) if isinstance(v, bytes)]
    return max(lengths, default=16)
