"""From records to tables, by types that are fixed.

What the first records of a file show holds for all of it, as for every format of tabfeed: a
feature that changes its type or its shape later is an error that says which ``dtypes=`` would read
it, if any does. So is one that the first records lack, when all columns are read; leaving it out
would lose data in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tabfeed.dtypes import format_type
from tabfeed.errors import BadFileError, SchemaError
from tabfeed.io.failures import bad_file
from tabfeed.io.source import Location
from tabfeed.io.tfrecord_records import Records, records_of
from tabfeed.io.tfrecord_slow import BYTES, KINDS
from tabfeed.io.tfrecord_types import Column, is_text
from tabfeed.io.tfrecord_values import WIRE_TYPES, Values, lists_of, scalars_of
from tabfeed.io.tfrecord_walk import Ints, Spans
from tabfeed.io.unify import conform

__all__ = ["Columns"]


@dataclass(frozen=True)
class Columns:
    """How records of a file become tables. Threads share it; it pickles."""

    location: Location
    columns: tuple[Column, ...]
    given: frozenset[str]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns' types."""
        return pa.schema([(c.name, c.dtype) for c in self.columns])

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {c.name: c for c in self.columns}

    def tables(self, data: bytes, offset: int, names: Sequence[str]) -> Iterator[pa.Table]:
        """Tables of whole frames, which start at `offset` in the file."""
        for records in records_of(self.location, data, offset):
            yield self.table(records, names)

    def table(self, records: Records, names: Sequence[str]) -> pa.Table:
        """The table of some records."""
        if len(set(names)) == len(self.columns):
            self._refuse_new(records)
        columns = [self._by_name[n] for n in names]
        arrays = [self._array(records, c) for c in columns]
        wire = pa.Table.from_arrays(arrays, [c.name for c in columns])
        schema = pa.schema([self.schema.field(n) for n in names])
        try:
            return conform(wire, schema, where=self.location.name)
        except SchemaError as e:
            raise self._explain(records, columns, arrays, e) from e

    def _array(self, records: Records, column: Column) -> pa.Array:
        """One feature of all records, null where it is missing."""
        pieces, rows = [], []
        left = set(records.odd)
        spans = records.walk.features.get(column.name.encode("utf-8"))
        if spans is not None:
            spans, values = self._walked(records, column, spans)
            pieces.append(values.array)
            rows.append(spans.rows[values.fine])
            left.update(spans.rows[~values.fine].tolist())
        if left:
            parsed = [(r, v) for r in sorted(left) if (v := self._parsed(records, column, r))]
            plain = [v[0] if column.scalar else v for _, (v,) in parsed]
            pieces.append(pa.array(plain, column.wire_type))
            rows.append(np.array([r for r, _ in parsed], np.int64))
        return _spread(pieces, rows, len(records), column.wire_type)

    def _walked(self, records: Records, column: Column, spans: Spans) -> tuple[Spans, Values]:
        if not spans.kinds.all():
            spans = spans.where(spans.kinds > 0)
        wrong = spans.kinds != column.kind
        if wrong.any():
            raise self._conflict(records, column, int(spans.rows[wrong.argmax()]))
        read = scalars_of if column.scalar else lists_of
        return spans, read(column.kind, records.data, spans)

    def _parsed(self, records: Records, column: Column, row: int) -> tuple[list[object]] | None:
        """The values of one record that was read alone."""
        features = records.odd.get(row) or records.parse(row)
        kind, values = features.get(column.name, (0, []))
        if not kind:
            return None
        if kind != column.kind or (column.scalar and len(values) != 1):
            raise self._conflict(records, column, row)
        return (values,)

    # -- what went wrong --------------------------------------------------------------

    def _conflict(self, records: Records, column: Column, row: int) -> BadFileError:
        kind, values = records.parse(row)[column.name]
        name, whence = column.name, self._whence(column)
        if kind != column.kind:
            return bad_file(
                self.location,
                f"cannot be read: feature {name!r} is {KINDS[kind]} in {records.where(row)}, and "
                f"{KINDS[column.kind]} {whence}",
                column=name,
            )
        listed = format_type(pa.list_(column.dtype))
        return bad_file(
            self.location,
            f"cannot be read: feature {name!r} has {len(values)} values in {records.where(row)}, "
            f"and one {whence}",
            column=name,
            remedy=f'Pass dtypes={{"{name}": "{listed}"}} to read it as lists',
        )

    def _whence(self, column: Column) -> str:
        return "as dtypes= asks" if column.name in self.given else "in the first records"

    def _refuse_new(self, records: Records) -> None:
        """Complain of a feature that is no column."""
        for key, spans in records.walk.features.items():
            if key.decode("utf-8") not in self._by_name and spans.kinds.any():
                raise self._new(records, key.decode("utf-8"), int(spans.rows[spans.kinds > 0][0]))
        for row, features in records.odd.items():
            for name, (kind, _) in features.items():
                if kind and name not in self._by_name:
                    raise self._new(records, name, row)

    def _new(self, records: Records, name: str, row: int) -> BadFileError:
        kind, values = records.parse(row)[name]
        dtype = pa.string() if kind == BYTES and is_text(pa.array(values)) else WIRE_TYPES[kind]
        listed = format_type(dtype if len(values) == 1 else pa.list_(dtype))
        return bad_file(
            self.location,
            f"has a feature {name!r} in {records.where(row)} that its first records lack",
            column=name,
            remedy=f'Pass dtypes={{"{name}": "{listed}"}} to read it, or columns= to leave it out',
        )

    def _explain(
        self, records: Records, columns: list[Column], arrays: list[pa.Array], error: SchemaError
    ) -> BadFileError:
        """Which value does not fit the type of its column."""
        for column, array in zip(columns, arrays, strict=True):
            row = _first_that_fails(array, column.dtype)
            if row is None:
                continue
            remedy = "Pass dtypes= with a type that holds all of its values"
            if column.kind == BYTES:
                wire = format_type(column.wire_type)
                remedy = f'Pass dtypes={{"{column.name}": "{wire}"}} to read what is not text'
            whence = self._whence(column).removeprefix("as ")
            return bad_file(
                self.location,
                f"cannot be read: feature {column.name!r} is not {format_type(column.dtype)}, as "
                f"{whence}, in {records.where(row)}: {array[row]}",
                column=column.name,
                remedy=remedy,
            )
        return bad_file(self.location, f"cannot be read: {error}")


def _spread(
    pieces: list[pa.Array], rows: list[Ints], count: int, wire_type: pa.DataType
) -> pa.Array:
    """Values of some records as a column of all of them."""
    if not pieces:
        return pa.nulls(count, wire_type)
    if len(pieces) == 1 and len(rows[0]) == count:
        return pieces[0]
    index = np.full(count, -1, np.int64)
    for which, first in zip(rows, np.cumsum([0, *map(len, pieces)]), strict=False):
        index[which] = first + np.arange(len(which))
    values = pa.concat_arrays(pieces) if len(pieces) > 1 else pieces[0]
    return values.take(pa.array(index, mask=index < 0))


def _first_that_fails(array: pa.Array, dtype: pa.DataType) -> int | None:
    """The first row that cannot be cast, by halves."""
    if _casts(array, dtype):
        return None
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _casts(array[low:middle], dtype):
            low = middle
        else:
            high = middle
    return low


def _casts(array: pa.Array, dtype: pa.DataType) -> bool:
    table = pa.Table.from_arrays([array], [""])
    try:
        conform(table, pa.schema([("", dtype)]))
    except SchemaError:
        return False
    return True
