"""What type each feature of a TFRecord file has.

A feature becomes a column of values if every record that has it has exactly one, and of lists
otherwise; a record without it, or with a feature that names no list, has null. int64 stays int64,
float is float32, bytes are text if all of them are UTF-8, else binary. Lists that happen to be of
one length are still lists; ``dtypes=`` may say that their length is fixed.

Columns come in the order of their names, ``x2`` before ``x10``: an Example has no order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tabfeed.dtypes import format_type, is_list_type, leaf_type
from tabfeed.errors import SchemaError
from tabfeed.io.failures import bad_file
from tabfeed.io.files import natural_key
from tabfeed.io.source import Location
from tabfeed.io.tfrecord_records import Records
from tabfeed.io.tfrecord_slow import BYTES, FLOATS, INTS, KINDS
from tabfeed.io.tfrecord_values import WIRE_TYPES, lists_of, scalars_of
from tabfeed.io.tfrecord_walk import Spans

__all__ = ["Column", "infer_columns", "is_text"]


@dataclass(frozen=True)
class Column:
    """A feature as a column: the kind of its lists, whether each has one value, its Arrow type."""

    name: str
    kind: int
    scalar: bool
    dtype: pa.DataType

    @property
    def wire_type(self) -> pa.DataType:
        """What is read; `dtype` is made of it."""
        leaf = WIRE_TYPES[self.kind]
        return leaf if self.scalar else pa.list_(leaf)


def infer_columns(
    location: Location, blocks: Sequence[Records], given: Mapping[str, pa.DataType]
) -> list[Column]:
    """What the first records of a file show, and what the user says."""
    seen = _Seen(location)
    for block in blocks:
        seen.add(block)
    names = sorted({*seen.kinds, *given}, key=natural_key)
    return [
        _given_column(location, n, given[n], seen.kinds.get(n))
        if n in given
        else Column(n, seen.kinds[n], n not in seen.lists, seen.dtype(n))
        for n in names
    ]


def _given_column(location: Location, name: str, dtype: pa.DataType, kind: int | None) -> Column:
    """A column of the type the user wants: made of what is in the file, or would be."""
    leaf = leaf_type(dtype)
    if pa.types.is_nested(leaf):
        raise SchemaError(
            f"dtypes= says {format_type(dtype)} for {name!r} of {location.name}; a feature of a "
            "TFRecord file is a value or a list of values"
        )
    if kind is None:
        text = pa.types.is_string(leaf) or pa.types.is_binary(leaf)
        kind = BYTES if text or pa.types.is_fixed_size_binary(leaf) else INTS
        kind = FLOATS if pa.types.is_floating(leaf) else kind
    return Column(name, kind, not is_list_type(dtype), dtype)


class _Seen:
    """The features of some records: kinds, which are lists, which are not text."""

    def __init__(self, location: Location) -> None:
        self.location = location
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
                self.location,
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
