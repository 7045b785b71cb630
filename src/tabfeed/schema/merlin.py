"""The schema files of older tools: ``schema.pbtxt`` and ``.merlin/schema.json``.

Both hold a ``tensorflow_metadata`` Schema, one in protobuf's text format, the other as JSON. They
are read into the same plain form, a dict per column with the format's field names, which
`tabfeed.schema.tf_metadata` converts to columns. Writing takes the same steps in reverse.
"""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any

from tabfeed.errors import SchemaError
from tabfeed.schema.schema import Schema
from tabfeed.schema.textproto import (
    Message,
    Name,
    decode_struct,
    dump,
    parse,
    struct_from_message,
    struct_to_message,
)
from tabfeed.schema.tf_metadata import Plain, as_list, column_from_feature, feature_from_column

__all__ = ["read_merlin_json", "read_pbtxt", "write_merlin_json", "write_pbtxt"]

_STRUCT = "type.googleapis.com/google.protobuf.Struct"


def read_pbtxt(text: str) -> Schema:
    """Read the text of a ``schema.pbtxt``.

    Examples
    --------
    >>> read_pbtxt('feature { name: "u" type: INT annotation { tag: "user_id" } }')
    Schema of 1 column
      u: int64 [id, user]
    """
    return _schema(_plain_message(parse(text)), "schema.pbtxt")


def write_pbtxt(schema: Schema) -> str:
    """Write a schema as ``schema.pbtxt``.

    Examples
    --------
    >>> from tabfeed import ColumnSchema
    >>> schema = Schema([ColumnSchema("a", "int32", tags="id"), ColumnSchema("b", "string")])
    >>> read_pbtxt(write_pbtxt(schema)) == schema
    True
    """
    return dump({"feature": [_feature_message(feature_from_column(c)) for c in schema]})


def read_merlin_json(text: str) -> Schema:
    """Read the text of a ``.merlin/schema.json``.

    Examples
    --------
    >>> text = '{"feature": [{"name": "x", "type": "FLOAT", "valueCount": {"max": "3"}}]}'
    >>> read_merlin_json(text)
    Schema of 1 column
      x: list<double> 0..3 values
    """
    try:
        body = json.loads(text, parse_constant=str, parse_float=_finite)
    except (ValueError, RecursionError) as e:
        raise SchemaError(f"schema.json is not JSON: {e}") from e
    if not isinstance(body, dict):
        raise SchemaError(f"schema.json is {text[:40]!r}, not an object with a list of features")
    try:
        return _schema(_plain_json(body), "schema.json")
    except RecursionError as e:  # deeper than Python's stack, though json could read it
        raise SchemaError("schema.json is nested too deep to be a schema") from e


def write_merlin_json(schema: Schema) -> str:
    """Write a schema as ``.merlin/schema.json``.

    Examples
    --------
    >>> from tabfeed import ColumnSchema
    >>> schema = Schema([ColumnSchema("a", "list<uint8>", nullable=False)])
    >>> read_merlin_json(write_merlin_json(schema)) == schema
    True
    """
    features = [_feature_json(feature_from_column(c)) for c in schema]
    return json.dumps({"feature": features}, indent=2, allow_nan=False)


def _schema(body: Plain, file: str) -> Schema:
    if body and "feature" not in body:
        raise SchemaError(f"{file} has no 'feature', but {', '.join(map(str, body))}")
    shared = _shared_domains(body)
    columns = []
    for feature in as_list(body.get("feature")):
        if not isinstance(feature, dict):
            raise SchemaError(f"{file}: a feature is {feature!r}, not a message with a name")
        domain = feature.get("domain")
        if isinstance(domain, str) and domain in shared:
            feature = {**{k: v for k, v in feature.items() if k != "domain"}, **shared[domain]}
        columns.append(column_from_feature(feature))
    return Schema(columns)


def _shared_domains(body: Plain) -> dict[str, Plain]:
    """Domains defined beside the features, by the names that features refer to."""
    return {
        str(domain["name"]): {kind: domain}
        for kind in ("int_domain", "float_domain", "string_domain")
        for domain in as_list(body.get(kind))
        if isinstance(domain, dict) and "name" in domain
    }


# -- the text format ----------------------------------------------------------------


def _plain_message(message: Message) -> Plain:
    """A message with single values bare, and its Structs opened."""
    out: Plain = {}
    for key, values in message.items():
        if key == "extra_metadata":
            out[key] = [_opened_message(v) for v in values]
        else:
            items = [_plain_message(v) if isinstance(v, dict) else _jsonable(v) for v in values]
            out[key] = items[0] if len(items) == 1 else items
    return out


def _opened_message(entry: Any) -> Plain:
    """The Struct in an ``Any``; anything else is kept under its own name."""
    if not isinstance(entry, dict):
        return {"extra_metadata": _jsonable(entry)}
    try:
        if f"[{_STRUCT}]" in entry:
            return struct_from_message(entry[f"[{_STRUCT}]"][-1])
        if entry.get("type_url", [""])[-1] == _STRUCT:
            value: str = entry.get("value", [""])[-1]
            return decode_struct(value.encode("utf-8", "surrogateescape"))
    except (ValueError, TypeError, AttributeError, OverflowError):
        pass  # damaged; name, type and tags are still valid
    return {"extra_metadata": _plain_message(entry)}


def _feature_message(feature: Plain) -> Message:
    message: Message = {}
    for key, value in feature.items():
        if key == "type":
            message[key] = [Name(value)]
        elif key == "extra_metadata":
            message[key] = [{f"[{_STRUCT}]": [struct_to_message(v)]} for v in value]
        else:
            message[key] = [
                _feature_message(v) if isinstance(v, dict) else v for v in as_list(value)
            ]
    return message


def _jsonable(value: Any) -> Any:
    """A scalar that JSON can hold: infinities become text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# -- JSON ---------------------------------------------------------------------------


def _plain_json(value: Any) -> Any:
    """JSON with field names as in the text format, and its Structs opened."""
    if isinstance(value, list):
        return [_plain_json(v) for v in value]
    if not isinstance(value, dict):
        return value
    out: Plain = {}
    for key, inner in value.items():
        name = re.sub(r"(?<!^)([A-Z])", lambda m: "_" + m[1].lower(), key)
        if name == "extra_metadata":
            out[name] = [_opened_json(v) for v in as_list(inner)]
        else:
            out[name] = _plain_json(inner)
    return out


def _opened_json(entry: Any) -> Plain:
    """Metadata comes bare, as protobuf's JSON of an ``Any``, or in bytes as base64."""
    if not isinstance(entry, dict):
        return {"extra_metadata": entry}
    if entry.get("@type") == _STRUCT and isinstance(entry.get("value"), dict):
        return dict(entry["value"])
    if (entry.get("typeUrl") or entry.get("type_url")) == _STRUCT:
        try:
            return decode_struct(base64.b64decode(entry.get("value", ""), validate=True))
        except (ValueError, TypeError):  # damaged; the rest is still valid
            return {"extra_metadata": entry}
    return dict(entry)


def _feature_json(feature: Plain) -> Plain:
    out: Plain = {}
    for key, value in feature.items():
        name = re.sub(r"_([a-z])", lambda m: m[1].upper(), key)
        if key in ("value_count", "int_domain"):  # JSON's numbers cannot hold every int64
            value = {k: str(v) if type(v) is int else v for k, v in value.items()}
        out[name] = _feature_json(value) if isinstance(value, dict) else value
    return out


def _finite(text: str) -> float | str:
    """A number, or its text where it is too large for one, as JSON allows it to be."""
    number = float(text)
    return number if math.isfinite(number) else text
