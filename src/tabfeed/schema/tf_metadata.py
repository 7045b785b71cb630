"""One column as a feature of a ``tensorflow_metadata`` Schema, and back.

A feature is a plain dict with the format's own field names, whichever file it came from;
``annotation.extra_metadata`` is a list of plain dicts. What goes where:

=========================================  =============================================
``type``, ``dtype_item_size`` (bits)       `ColumnSchema.dtype`
``value_count``, ``shape``, ``_dims``      lists in the dtype, `ColumnSchema.value_count`
``int_domain``, ``float_domain``           `ColumnSchema.domain`; a missing minimum is 0
``annotation.tag``, ``is_categorical``     `ColumnSchema.tags`, compounds split
``embedding_sizes`` in ``extra_metadata``  `ColumnSchema.embedding_size`
anything else                              `ColumnSchema.properties`
=========================================  =============================================

The format has fewer types than Arrow (no unsigned integers, dates or booleans) and no nulls. What
it can't express is added as one property, ``tabfeed``, which other tools pass through, so reading a
written column returns exactly the same column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tabfeed.errors import SchemaError
from tabfeed.schema.column import ColumnSchema, Domain, Tags
from tabfeed.schema.dtypes import is_list_type
from tabfeed.schema.textproto import struct_from_message, struct_to_message

__all__ = ["Plain", "as_list", "column_from_feature", "feature_from_column"]

Plain = dict[str, Any]
Bounds = tuple[int, "int | None"]

_OURS = "tabfeed"
_LARGEST_FLOAT = 3.4e38  # a float_domain is in single precision
_TYPE_NUMBERS = {1: "BYTES", 2: "INT", 3: "FLOAT", 4: "STRUCT"}
_DTYPES: dict[str, dict[int, pa.DataType]] = {
    "INT": {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()},
    "FLOAT": {16: pa.float16(), 32: pa.float32(), 64: pa.float64()},
}


# -- from a feature to a column -----------------------------------------------------


def column_from_feature(feature: Plain) -> ColumnSchema:
    """Read a feature; fields that are not understood become properties.

    Examples
    --------
    >>> column_from_feature({"name": "g", "type": "INT", "value_count": {"min": 1, "max": 4}})
    g: list<int64> 1..4 values
    """
    rest = {k: v for k, v in feature.items() if v is not None}
    name = rest.pop("name", "")
    tags, properties = _annotation(_one(rest.pop("annotation", {})))
    ours = properties.pop(_OURS, None)
    dims = _dims(rest, properties)
    leaf = _leaf(rest, properties)
    if dims and leaf is None:
        properties["is_list"] = True  # a list of unknown type
    column = ColumnSchema(
        name,
        _listed(leaf, len(dims)),
        value_count=dims[0] if dims and dims[0] != (0, None) else None,
        domain=_domain(rest, tags),
        embedding_size=_embedding_size(properties),
        properties={**properties, **rest},
    )
    for tag in tags:  # one by one: where two exclude each other, the later wins
        column = column.with_tags(tag)
    return column if ours is None else _with_ours(column, ours)


def _listed(leaf: pa.DataType | None, levels: int) -> pa.DataType | None:
    for _ in range(levels if leaf is not None else 0):
        leaf = pa.list_(leaf)
    return leaf


def _annotation(annotation: Any) -> tuple[list[str], Plain]:
    if not isinstance(annotation, dict):
        return [], {"annotation": annotation}
    rest = dict(annotation)
    tags = [str(t) for t in as_list(rest.pop("tag", None))]
    for entry in as_list(rest.pop("extra_metadata", None)):
        rest.update(entry)
    return tags, rest


def _dims(rest: Plain, properties: Plain) -> list[Bounds]:
    """Fewest and most values at each level of lists; none for a scalar."""
    is_list, is_ragged = properties.pop("is_list", None), properties.pop("is_ragged", None)
    candidates = [
        _metadata_dims(properties.pop("_dims", None)),
        _counted(rest.pop("value_count", None)),
        _counted(_field(rest.pop("value_counts", None), "value_count")),
        _shaped(rest.pop("shape", None)),
    ]
    if is_list is False:
        return []
    unknown: list[Bounds] = [(0, None)] if is_list else []
    dims = next((d for d in candidates if d), unknown)
    fixed = dims[0][1] or dims[0][0] if len(dims) == 1 else 0
    return [(fixed, fixed)] if fixed and is_ragged is False else dims


def _metadata_dims(dims: Any) -> list[Bounds]:
    """``[[0, None], 8]``: a size or a pair a dimension, the rows first."""
    if not isinstance(dims, list):
        return []
    return [_bounds(*d) if isinstance(d, list) and len(d) == 2 else _bounds(d, d) for d in dims[1:]]


def _counted(counts: Any) -> list[Bounds]:
    return [_bounds(_field(c, "min"), _field(c, "max")) for c in as_list(counts)]


def _shaped(shape: Any) -> list[Bounds]:
    """A fixed shape; one dimension of one value is how these files say scalar."""
    sizes = [_int(_field(d, "size")) for d in as_list(_field(shape, "dim"))]
    return [] if sizes == [1] else [_bounds(s, s) for s in sizes]


def _bounds(low: Any, high: Any) -> Bounds:
    """A range; 0 or nothing as the upper bound is open, and so is one below the lower."""
    fewest, most = max(_int(low) or 0, 0), _int(high)
    return fewest, most if most and most >= fewest else None


def _leaf(rest: Plain, properties: Plain) -> pa.DataType | None:
    size = _int(properties.pop("dtype_item_size", None))
    given = rest.pop("type", None)
    kind = _TYPE_NUMBERS.get(given, given) if isinstance(given, int) else given
    if kind == "BYTES":
        return pa.string()
    if kind in ("INT", "FLOAT"):
        return _DTYPES[kind].get(size or 64, _DTYPES[kind][64])
    if kind not in (None, "TYPE_UNKNOWN", 0):
        properties["type"] = kind
    return None


def _domain(rest: Plain, tags: list[str]) -> Domain | None:
    """The range of the values; takes what it read out of `rest`, may add to `tags`."""
    kind = next((k for k in ("int_domain", "float_domain") if isinstance(rest.get(k), dict)), None)
    if kind is None:
        return None
    number: Callable[[Any], Any] = _int if kind == "int_domain" else _float
    extra = {k: v for k, v in rest.pop(kind).items() if v is not None}
    low, high = number(extra.pop("min", None)), number(extra.pop("max", None))
    name = extra.pop("name") or None if isinstance(extra.get("name"), str) else None
    if extra.pop("is_categorical", False) is True and Tags.CONTINUOUS.value not in tags:
        tags.append(Tags.CATEGORICAL.value)
    if extra:
        rest[kind] = extra
    if low is None and high is not None:
        low = number(0)  # older tools leave out zeros
    return None if low is high is name is None else Domain(low, high, name)


def _embedding_size(properties: Plain) -> tuple[int, int] | None:
    found = properties.get("embedding_sizes")
    if not isinstance(found, dict) or found.keys() != {"cardinality", "dimension"}:
        return None
    cardinality, dimension = _int(found["cardinality"]), _int(found["dimension"])
    if cardinality is None or dimension is None:
        return None
    del properties["embedding_sizes"]
    return cardinality, dimension


def _with_ours(column: ColumnSchema, ours: Any) -> ColumnSchema:
    try:
        fields = {**column.to_dict(), **json.loads(ours)}
        return ColumnSchema.from_dict({k: v for k, v in fields.items() if v is not None})
    except (ValueError, TypeError) as e:
        raise SchemaError(
            f"property {_OURS!r} of column {column.name!r} is damaged: {e}; remove it from the file"
        ) from e


# -- from a column to a feature -----------------------------------------------------


def feature_from_column(column: ColumnSchema) -> Plain:
    """Write a feature; what the format can't express is added as a property.

    Examples
    --------
    >>> feature = feature_from_column(ColumnSchema("n", "uint8"))
    >>> feature["annotation"]["extra_metadata"]  # doctest: +NORMALIZE_WHITESPACE
    [{'is_list': False, 'is_ragged': False, '_dims': [], 'dtype_item_size': 8,
      'tabfeed': '{"dtype": "uint8"}'}]
    """
    properties = _json_properties(column)
    feature = _expressible(column, properties)
    mine = {**column.to_dict(), "properties": properties or None}
    theirs = column_from_feature(_as_read(feature)).to_dict()
    lost = {k: mine.get(k) for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)}
    if lost:
        feature["annotation"]["extra_metadata"][0][_OURS] = json.dumps(lost)
    return feature


def _expressible(column: ColumnSchema, properties: Plain) -> Plain:
    """The part of a column that the format can express."""
    dims, leaf = _levels(column)
    kind, size = _type_of(leaf)
    metadata = {k: v for k, v in properties.items() if k != _OURS}
    if column.embedding_size is not None:
        cardinality, dimension = column.embedding_size
        metadata["embedding_sizes"] = {"cardinality": cardinality, "dimension": dimension}
    metadata["is_list"] = bool(dims)
    metadata["is_ragged"] = any(low != high for low, high in dims)
    metadata["_dims"] = [[0, None], *(n if n == m else [n, m] for n, m in dims)] if dims else []
    feature: Plain = {"name": column.name}
    if dims:
        feature["value_count"] = {k: v for k, v in zip(("min", "max"), dims[0], strict=True) if v}
    if kind is not None:
        feature["type"] = kind
    if size is not None:
        metadata["dtype_item_size"] = size
    if column.domain is not None:
        feature.update(_domain_of(column, column.domain))
    feature["annotation"] = {"tag": [str(t) for t in column.tags], "extra_metadata": [metadata]}
    return feature


def _as_read(feature: Plain) -> Plain:
    """The feature as it will be read again: the numbers of a Struct are doubles."""
    annotation = feature["annotation"]
    read = [struct_from_message(struct_to_message(m)) for m in annotation["extra_metadata"]]
    return {**feature, "annotation": {**annotation, "extra_metadata": read}}


def _json_properties(column: ColumnSchema) -> Plain:
    try:
        plain: Plain = json.loads(json.dumps(dict(column.properties), allow_nan=False))
        struct_to_message(plain)
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise SchemaError(
            f"the properties of column {column.name!r} cannot be saved as JSON: {e}"
        ) from e
    return plain


def _levels(column: ColumnSchema) -> tuple[list[Bounds], pa.DataType | None]:
    """Bounds of each level of lists, and the type inside."""
    dims: list[Bounds] = []
    dtype = column.dtype
    while dtype is not None and is_list_type(dtype):
        fixed = pa.types.is_fixed_size_list(dtype)
        dims.append((dtype.list_size, dtype.list_size) if fixed else (0, None))
        dtype = dtype.value_type
    if column.value_count is not None:
        dims[:1] = [column.value_count]
    elif dtype is None and column.properties.get("is_list") is True:
        dims = [(0, None)]
    return dims, dtype


def _type_of(leaf: pa.DataType | None) -> tuple[str | None, int | None]:
    if leaf is None:
        return None, None
    if pa.types.is_integer(leaf):
        return "INT", leaf.bit_width
    if pa.types.is_floating(leaf):
        return "FLOAT", leaf.bit_width
    text = pa.types.is_string(leaf) or pa.types.is_large_string(leaf) or pa.types.is_binary(leaf)
    return ("BYTES", None) if text else (None, None)


def _domain_of(column: ColumnSchema, domain: Domain) -> Plain:
    bounds = {"min": domain.min, "max": domain.max}
    known = {k: v for k, v in bounds.items() if v is not None}
    named = {"name": domain.name} if domain.name else {}
    leaf = column.leaf_dtype
    if (leaf is not None and pa.types.is_floating(leaf)) or not all(map(_is_int64, known.values())):
        single = {k: float(v) for k, v in known.items() if abs(v) <= _LARGEST_FLOAT}
        return {"float_domain": {**named, **single}}
    categorical = {"is_categorical": True} if Tags.CATEGORICAL in column.tags else {}
    return {"int_domain": {**named, **known, **categorical}}


def _is_int64(value: int | float) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


# -- values that may be anything ----------------------------------------------------


def as_list(value: Any) -> list[Any]:
    """A list as it is, None as an empty list, any other value in a list."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _one(value: Any) -> Any:
    """The last of several, as protobuf has it for a field that does not repeat."""
    return value[-1] if isinstance(value, list) and value else value


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else None


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
