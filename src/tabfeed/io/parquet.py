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
from tabfeed.errors import BadFileError, DuplicateColumnError, UnreadableFileError
from tabfeed.io.source import Location, ReadOptions
from tabfeed.io.unify import conform

__all__ = ["ParquetFile", "open_parquet"]

_MAGIC = b"PAR1"


def open_parquet(location: Location, options: ReadOptions) -> ParquetFile:
    """Read the footer of a Parquet file."""
    try:
        with location.open() as f:
            metadata = pq.read_metadata(f)
            schema = metadata.schema.to_arrow_schema()
    except PermissionError as e:
        raise UnreadableFileError(f"{location.name} may not be read: {e.strerror}") from e
    except (pa.ArrowException, OSError) as e:
        raise _explain_bad_footer(location, e) from e
    _refuse_duplicates(location, schema.names)
    return ParquetFile(location, metadata, _restore_dictionaries(schema, metadata))


def _explain_bad_footer(location: Location, error: Exception) -> Exception:
    """Tell an empty, a cut and a foreign file apart."""
    try:
        with location.open() as f:
            start = f.read(4)
    except OSError:
        return UnreadableFileError(f"{location.name} cannot be read: {error}")
    if location.size == 0:
        what = "is empty (0 bytes)"
    elif start == _MAGIC:
        what = f"is a Parquet file cut short or damaged at its end ({location.size:,} bytes)"
    else:
        what = f"is not a Parquet file: it starts with {bytes(start)!r}, not {_MAGIC!r}"
    return BadFileError(
        f'{location.name} {what}. Write it again, remove it, or pass on_bad_file="skip"',
        file=location.name,
    )


def _refuse_duplicates(location: Location, names: list[str]) -> None:
    twice = [] if len(set(names)) == len(names) else [n for n in names if names.count(n) > 1]
    if twice:
        raise DuplicateColumnError(
            f"{location.name} has more than one column named {twice[0]!r}; rename them: a column "
            "is found by its name"
        )


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
            path = schema.column(i).path
            name = path if path in leaves else path.split(".")[0]
            leaves.setdefault(name, []).append(i)
        return leaves

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Estimate of what these columns of a row group take in memory once decoded."""
        rows = self.unit_rows[unit]
        total = 0
        for name in columns:
            dtype = self.schema.field(name).type
            width = _fixed_width(dtype)
            total += rows * width if width is not None else self._variable_bytes(unit, name, dtype)
        return max(total, 1)

    def _variable_bytes(self, unit: int, name: str, dtype: pa.DataType) -> int:
        """Text and lists: from the number of values, and how long the ones in the footer are."""
        group = self.metadata.row_group(unit)
        total = 0
        for i in self._leaves[name]:
            chunk = group.column(i)
            width = _fixed_width(leaf_type(dtype)) or (_text_length(chunk) + 4)
            total += max(chunk.num_values * width, chunk.total_uncompressed_size)
        return total + (4 * group.num_rows if is_list_type(dtype) else 0)

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
        except (pa.ArrowException, OSError) as e:
            raise self._locate_damage(units, wanted, e) from e
        return self._finish(table, wanted, dictionary)

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A row group as a stream; at no time is more of it decoded than the batch at hand."""
        wanted = list(columns)
        try:
            with self._reader(buffer_size=1 << 20) as reader:
                for batch in reader.iter_batches(
                    rows, row_groups=[unit], columns=wanted, use_threads=False
                ):
                    table = self._finish(pa.Table.from_batches([batch]), wanted)
                    yield from table.to_batches()
        except (pa.ArrowException, OSError) as e:
            raise self._locate_damage([unit], wanted, e) from e

    def _reader(self, dictionary: Sequence[str] = (), buffer_size: int = 0) -> pq.ParquetFile:
        return pq.ParquetFile(
            self.location.open(),
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

    def _locate_damage(
        self, units: Sequence[int], columns: list[str], error: Exception
    ) -> Exception:
        """Read row group by row group and column by column to say where the damage is."""
        if isinstance(error, PermissionError | FileNotFoundError):
            return UnreadableFileError(
                f"{self.location.name} was there when the dataset was opened and cannot be read "
                f"now: {error}"
            )
        for unit in units:
            for column in columns:
                try:
                    with self._reader() as reader:
                        reader.read_row_group(unit, columns=[column], use_threads=False)
                except (pa.ArrowException, OSError):
                    return self._damage(error, unit, column)
        return self._damage(error, units[0] if len(units) == 1 else None, None)

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

    def prune(self, expression: pc.Expression, schema: pa.Schema) -> list[int]:
        """The row groups whose statistics do not rule the filter out."""
        import pyarrow.dataset as pads  # imports pandas where it is installed: not at the top

        fragment = pads.ParquetFileFormat().make_fragment(
            self.location.path, filesystem=self.location.filesystem
        )
        kept = fragment.split_by_row_group(filter=expression, schema=schema)
        return [group.id for part in kept for group in part.row_groups]

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location, "metadata": self.metadata, "schema": self.schema}


def _fixed_width(dtype: pa.DataType) -> int | None:
    """Bytes a value takes, or None where that varies."""
    if pa.types.is_dictionary(dtype):
        return _fixed_width(dtype.index_type)
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
