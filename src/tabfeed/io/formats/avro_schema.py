"""Avro schemas as Arrow types, and as what the decoder understands.

Polars decodes, and stops the process with a panic at some types it does not know. So each
column is translated first: types with the same bytes on disk as one it knows are given
out as that (an int and an enum are longs, since Polars drops the upper half of an int that is too
large; a map is an array of records, a name is what it stands for), the rest are refused here, by
the name of the column. So are types whose values take no bytes: a few bytes could announce any
number of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tabfeed.errors import SchemaError

__all__ = ["AvroColumn", "least_bytes", "null_bytes", "probe", "translate"]

_DEEPEST = 64
_MOST_TYPES = 100_000  # a name stands for all of its type wherever it is used

_PRIMITIVE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("ns"),
    ("long", "time-micros"): pa.time64("ns"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
# A long, by where in a union its null stands.
_LONGS: dict[int | None, Any] = {None: "long", 0: ["null", "long"], 1: ["long", "null"]}


@dataclass(frozen=True)
class AvroColumn:
    """A column of an Avro file.

    Attributes
    ----------
    name, type
        As tabfeed shows it.
    wire
        The schema the decoder is given; None for a column of nulls, which has no bytes.
    symbols
        The values of an enum, which the decoder reads as their numbers.
    """

    name: str
    type: pa.DataType
    wire: Any
    symbols: tuple[str, ...] | None = None


def translate(schema: Any) -> list[AvroColumn]:
    """The columns of an Avro schema.

    Raises
    ------
    SchemaError
        If the file does not hold records, or a column has a type that cannot be read.

    Examples
    --------
    >>> fields = [{"name": "a", "type": ["null", "long"]}]
    >>> translate({"type": "record", "name": "r", "fields": fields})
    [AvroColumn(name='a', type=DataType(int64), wire=['null', 'long'], symbols=None)]
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SchemaError("it holds single values, not records with fields")
    names = _Names()
    scope = names.enter(schema)
    return [_column(field, names, scope) for field in schema["fields"]]


@dataclass
class _Names:
    """Types that have been given a name so far."""

    known: dict[str, tuple[Any, str]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    depth: int = 0
    count: int = 0

    def enter(self, schema: dict[str, Any], scope: str = "") -> str:
        """Note a named type; returns the namespace inside it."""
        name = schema["name"]
        inside = schema.get("namespace", scope)
        if "." in name:
            inside = name.rpartition(".")[0]
        full = _full(name, inside)
        self.known[full] = (schema, scope)
        return str(inside)

    def find(self, name: str, scope: str) -> tuple[Any, str] | None:
        return self.known.get(_full(name, scope)) or self.known.get(name)


def _full(name: str, scope: str) -> str:
    return name if "." in name or not scope else f"{scope}.{name}"


def _column(spec: dict[str, Any], names: _Names, scope: str) -> AvroColumn:
    name, schema = spec["name"], spec["type"]
    if schema == "null" or schema == {"type": "null"}:
        return AvroColumn(name, pa.null(), None)
    try:
        return _enum_column(name, schema, names, scope) or AvroColumn(
            name, *reversed(_translate(schema, names, scope))
        )
    except SchemaError as e:
        raise SchemaError(f"column {name!r}: {e}") from e


def _enum_column(name: str, schema: Any, names: _Names, scope: str) -> AvroColumn | None:
    """A column that is an enum, or one or null; None if it is neither."""
    inner, place = _optional(schema)
    if isinstance(inner, list):
        return None
    enum, scope = _resolve(inner, names, scope)
    if not isinstance(enum, dict) or enum.get("type") != "enum":
        return None
    names.enter(enum, scope)
    dtype = pa.dictionary(pa.int32(), pa.string())
    return AvroColumn(name, dtype, _LONGS[place], tuple(enum["symbols"]))


def _optional(schema: Any) -> tuple[Any, int | None]:
    """What a union with null holds otherwise, and where its null stands; None: no union."""
    if isinstance(schema, list) and len(schema) == 2 and "null" in schema:
        place = schema.index("null")
        return schema[1 - place], place
    return schema, None


def _resolve(schema: Any, names: _Names, scope: str) -> tuple[Any, str]:
    """A name as what it stands for."""
    if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        return _resolve(schema["type"], names, scope)
    name = schema.get("type") if isinstance(schema, dict) else schema
    if isinstance(name, str) and name not in _PRIMITIVE and name not in _COMPLEX and name != "null":
        found = names.find(name, scope)
        if found is None:
            raise SchemaError(f"the type {name!r} is not defined in the file")
        return found
    return schema, scope


def _translate(schema: Any, names: _Names, scope: str) -> tuple[Any, pa.DataType]:
    """What the decoder is given, and the Arrow type that comes of it."""
    names.count += 1
    names.depth += 1
    if names.depth > _DEEPEST or names.count > _MOST_TYPES:
        raise SchemaError(f"nested more than {_DEEPEST} levels deep, or of too many types")
    translated = _translate_one(schema, names, scope)
    names.depth -= 1
    return translated


def _translate_one(schema: Any, names: _Names, scope: str) -> tuple[Any, pa.DataType]:
    if isinstance(schema, list):
        inner, place = _optional(schema)
        if place is None:
            raise SchemaError(
                f"a union of {_brief(schema)}; only a union of null and one type is read"
            )
        wire, dtype = _translate(inner, names, scope)
        return ([wire, "null"] if place else ["null", wire]), dtype
    schema, scope = _resolve(schema, names, scope)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in _COMPLEX:
        return _COMPLEX[kind](schema, names, scope)
    if kind not in _PRIMITIVE:
        raise SchemaError(f"the Avro type {kind!r} inside another is not read")
    return _primitive(kind, schema if isinstance(schema, dict) else {})


def _brief(schema: list[Any]) -> str:
    return ", ".join(s if isinstance(s, str) else str(s.get("type")) for s in schema)


def _primitive(kind: str, schema: dict[str, Any]) -> tuple[Any, pa.DataType]:
    logical = str(schema.get("logicalType", ""))
    if (kind, logical) in _LOGICAL:
        return {"type": kind, "logicalType": logical}, _LOGICAL[kind, logical]
    if logical == "decimal" and kind == "bytes":
        return _decimal({"type": "bytes"}, schema)
    return "long" if kind == "int" else kind, _PRIMITIVE[kind]


def _decimal(wire: dict[str, Any], schema: dict[str, Any]) -> tuple[Any, pa.DataType]:
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    if not 0 < precision <= 38 or int(schema.get("size", 0)) > 16:
        raise SchemaError(f"a decimal of {precision} digits; 1 to 38 are read")
    if not 0 <= scale <= precision:
        raise SchemaError(f"a decimal of {precision} digits, {scale} of them after the point")
    wire = {**wire, "logicalType": "decimal", "precision": precision, "scale": scale}
    return wire, pa.decimal128(precision, scale)


def _fixed(schema: dict[str, Any], names: _Names, scope: str) -> tuple[Any, pa.DataType]:
    names.enter(schema, scope)
    if not 0 < int(schema["size"]) < 2**31:
        raise SchemaError(f"a fixed of {schema['size']} bytes is not read")
    wire = {"type": "fixed", "name": "f", "size": int(schema["size"])}
    if schema.get("logicalType") == "decimal":
        return _decimal(wire, schema)
    return wire, pa.binary()


def _enum(schema: dict[str, Any], names: _Names, scope: str) -> tuple[Any, pa.DataType]:
    raise SchemaError("an enum inside a list, map or record is not read")


def _array(schema: dict[str, Any], names: _Names, scope: str) -> tuple[Any, pa.DataType]:
    wire, dtype = _translate(schema["items"], names, scope)
    return {"type": "array", "items": wire}, pa.list_(dtype)


def _map(schema: dict[str, Any], names: _Names, scope: str) -> tuple[Any, pa.DataType]:
    """A map: on disk the same as an array of keys and values, and shown as that."""
    wire, dtype = _translate(schema["values"], names, scope)
    fields = [{"name": "key", "type": "string"}, {"name": "value", "type": wire}]
    entry = {"type": "record", "name": "entry", "fields": fields}
    struct = pa.struct([("key", pa.string()), ("value", dtype)])
    return {"type": "array", "items": entry}, pa.list_(struct)


def _record(schema: dict[str, Any], names: _Names, scope: str) -> tuple[Any, pa.DataType]:
    inside = names.enter(schema, scope)
    full = _full(schema["name"], inside)
    if full in names.open:
        raise SchemaError(f"the record {full!r} holds itself")
    if not schema["fields"]:
        raise SchemaError("a record without fields inside another is not read")
    names.open.append(full)
    fields, types = [], []
    for member in schema["fields"]:
        wire, dtype = _translate(member["type"], names, inside)
        fields.append({"name": member["name"], "type": wire})
        types.append((member["name"], dtype))
    names.open.pop()
    return {"type": "record", "name": "s", "fields": fields}, pa.struct(types)


_Translate = Callable[[dict[str, Any], _Names, str], tuple[Any, pa.DataType]]
_COMPLEX: dict[str, _Translate] = {
    "fixed": _fixed,
    "enum": _enum,
    "array": _array,
    "map": _map,
    "record": _record,
}


# -- bytes --------------------------------------------------------------------------------


def least_bytes(wire: Any) -> int:
    """The fewest bytes a value takes in a file.

    Examples
    --------
    >>> least_bytes({"type": "record", "name": "r", "fields": [{"name": "x", "type": "double"}]})
    8
    """
    kind = wire["type"] if isinstance(wire, dict) else wire
    if kind == "record":
        return sum(least_bytes(f["type"]) for f in wire["fields"])
    if kind == "fixed":
        return int(wire["size"])
    return {"float": 4, "double": 8}.get(kind, 1) if isinstance(kind, str) else 1


def null_bytes(wire: Any) -> int:
    """About how much memory a null of a union takes: as much as all its members."""
    kind = wire["type"] if isinstance(wire, dict) else wire
    if kind == "record":
        return sum(null_bytes(f["type"]) for f in wire["fields"])
    if isinstance(kind, list):
        return sum(null_bytes(k) for k in kind if k != "null")
    return int(wire["size"]) if kind == "fixed" else 16


def probe(wire: Any) -> bytes:
    r"""A value as it stands in a file, one that other data are not likely to resemble.

    Examples
    --------
    >>> probe(["null", "string"])
    b'\x02\nprobe'
    """
    kind = wire["type"] if isinstance(wire, dict) else wire
    if isinstance(kind, list):
        place = next(i for i, k in enumerate(kind) if k != "null")
        return bytes([2 * place]) + probe(kind[place])
    if kind == "record":
        return b"".join(probe(f["type"]) for f in wire["fields"])
    if kind == "array":
        return b"\x02" + probe(wire["items"]) + b"\0"
    if kind == "fixed":
        size = int(wire["size"])
        return (b"\x05probe" * (size // 6 + 1))[:size]
    if kind == "int":  # with a logical type
        return b"\x9e\x8d\x02"
    return _PROBES[str(kind)]


_PROBES: dict[str, bytes] = {
    "boolean": b"\1",
    "long": b"\xd6\xb4\x95\x24",
    "float": struct.pack("<f", 7.03125),
    "double": struct.pack("<d", 7.03125e-7),
    "bytes": b"\nprobe",
    "string": b"\nprobe",
}
