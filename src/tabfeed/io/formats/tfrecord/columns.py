"""The columns of a TFRecord file: their types, and tables of them.

A feature becomes a column of values if every record that has it has exactly one, and of lists
otherwise; a record without it, or with a feature that names no list, has null. int64 stays int64,
float is float32, bytes are text if all of them are UTF-8, else binary. Lists that happen to be of
one length are still lists; ``dtypes=`` may say that their length is fixed. Columns come in the
order of their names, ``x2`` before ``x10``: an Example has no order.

The first records of a file fix the types for all of it, as for every format of tabfeed: a feature
that changes its type or its shape later is an error that says which ``dtypes=`` would read it, if
any does. So is one that the first records lack, when all columns are read; leaving it out would
lose data in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tabfeed.errors import BadFileError, SchemaError
from tabfeed.io.align import cast_table
from tabfeed.io.formats.tfrecord.records import Records, records_of
from tabfeed.io.formats.tfrecord.values import (
    BYTES,
    FLOATS,
    INTS,
    KINDS,
    WIRE_TYPES,
    Values,
    lists_of,
    scalars_of,
)
from tabfeed.io.formats.tfrecord.walk import Ints, Spans
from tabfeed.io.storage.files import FileRef, bad_file, natural_key
from tabfeed.lazy import cached_property
from tabfeed.schema.dtypes import format_type, is_list_type, leaf_type

__all__ = ["Column", "Columns", "infer_columns", "is_text"]


@dataclass(frozen=True)
class Column:
    """A feature as a column: the kind of its lists, whether each has one value, its Arrow type."""

    name: str
    kind: int
    scalar: bool
    dtype: pa.DataType

    @property
    def wire_type(self) -> pa.DataType:
        """The type that is decoded; it is cast to `dtype`."""
        leaf = WIRE_TYPES[self.kind]
        return leaf if self.scalar else pa.list_(leaf)


def infer_columns(
    ref: FileRef, blocks: Sequence[Records], given: Mapping[str, pa.DataType]
) -> list[Column]:
    """What the first records of a file show, and what the user says."""
    seen = _Seen(ref)
    for block in blocks:
        seen.add(block)
    names = sorted({*seen.kinds, *given}, key=natural_key)
    return [
        _given_column(ref, n, given[n], seen.kinds.get(n))
        if n in given
        else Column(n, seen.kinds[n], n not in seen.lists, seen.dtype(n))
        for n in names
    ]


def _given_column(ref: FileRef, name: str, dtype: pa.DataType, kind: int | None) -> Column:
    """A column of the type the user wants, cast from the type the feature has or would have."""
    leaf = leaf_type(dtype)
    if pa.types.is_nested(leaf):
        raise SchemaError(
            f"dtypes= says {format_type(dtype)} for {name!r} of {ref.name}; a feature of a "
            "TFRecord file is a value or a list of values"
        )
    if kind is None:
        text = pa.types.is_string(leaf) or pa.types.is_binary(leaf)
        kind = BYTES if text or pa.types.is_fixed_size_binary(leaf) else INTS
        kind = FLOATS if pa.types.is_floating(leaf) else kind
    return Column(name, kind, not is_list_type(dtype), dtype)


class _Seen:
    """The features of some records: kinds, which are lists, which are not text."""

    def __init__(self, ref: FileRef) -> None:
        self.ref = ref
        self.kinds: dict[str, int] = {}
        self.lists: set[str] = set()
        self.binary: set[str] = set()

    def add(self, block: Records) -> None:
        for key, spans in block.walk.features.items():
            name = key.decode("utf-8")
            kinds, first = np.unique(spans.kinds, return_index=True)
            for kind in kinds[np.argsort(first)].tolist():
                if not kind:
                    continue
                chosen = spans.where(spans.kinds == kind)
                self._kind(name, kind, block, int(chosen.rows[0]))
                self._shape(name, kind, block, chosen)
        for row, features in block.odd.items():
            for name, (kind, values) in features.items():
                if kind:
                    self._kind(name, kind, block, row)
                    self._values(name, kind, values)

    def _kind(self, name: str, kind: int, block: Records, row: int) -> None:
        known = self.kinds.setdefault(name, kind)
        if known != kind:
            raise bad_file(
                self.ref,
                f"cannot be read: feature {name!r} is {KINDS[kind]} in {block.where(row)}, and "
                f"{KINDS[known]} before it",
                column=name,
            )

    def _shape(self, name: str, kind: int, block: Records, spans: Spans) -> None:
        values = scalars_of(kind, block.data, spans)
        if not values.fine.all():
            self.lists.add(name)
            values = lists_of(kind, block.data, spans)
            for row in spans.rows[~values.fine].tolist():
                self._values(name, *block.parse(row)[name])
        if kind == BYTES and not is_text(values.array):
            self.binary.add(name)

    def _values(self, name: str, kind: int, values: list[object]) -> None:
        if len(values) != 1:
            self.lists.add(name)
        if kind == BYTES and not is_text(pa.array(values, pa.binary())):
            self.binary.add(name)

    def dtype(self, name: str) -> pa.DataType:
        text = self.kinds[name] == BYTES and name not in self.binary
        leaf = pa.string() if text else WIRE_TYPES[self.kinds[name]]
        return pa.list_(leaf) if name in self.lists else leaf


def is_text(array: pa.Array) -> bool:
    """Whether all bytes in an array, or in its lists, are UTF-8."""
    try:
        array.cast(pa.list_(pa.string()) if is_list_type(array.type) else pa.string())
    except pa.ArrowInvalid:
        return False
    return True


@dataclass(frozen=True)
class Columns:
    """How records of a file become tables. Threads share it; it pickles."""

    ref: FileRef
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
        for records in records_of(self.ref, data, offset):
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
            return cast_table(wire, schema, where=self.ref.name)
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
        name, source = column.name, self._source(column)
        if kind != column.kind:
            return bad_file(
                self.ref,
                f"cannot be read: feature {name!r} is {KINDS[kind]} in {records.where(row)}, and "
                f"{KINDS[column.kind]} {source}",
                column=name,
            )
        listed = format_type(pa.list_(column.dtype))
        return bad_file(
            self.ref,
            f"cannot be read: feature {name!r} has {len(values)} values in {records.where(row)}, "
            f"and one {source}",
            column=name,
            remedy=f'Pass dtypes={{"{name}": "{listed}"}} to read it as lists',
        )

    def _source(self, column: Column) -> str:
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
            self.ref,
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
            source = self._source(column).removeprefix("as ")
            return bad_file(
                self.ref,
                f"cannot be read: feature {column.name!r} is not {format_type(column.dtype)}, as "
                f"{source}, in {records.where(row)}: {array[row]}",
                column=column.name,
                remedy=remedy,
            )
        return bad_file(self.ref, f"cannot be read: {error}")


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
        cast_table(table, pa.schema([("", dtype)]))
    except SchemaError:
        return False
    return True
