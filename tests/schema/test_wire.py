"""Structs in a schema's text: protobuf's wire format, byte for byte."""

from typing import Any

from tabfeed.schema.merlin import read_pbtxt

# {"a": null, "b": 2.5, "c": "é", "d": true, "e": {"f": 3}, "g": [1, "x", []]}, field by field.
WIRE = (
    b"\n\x07\n\x01a\x12\x02\x08\x00"
    b"\n\x0e\n\x01b\x12\x09\x11\x00\x00\x00\x00\x00\x00\x04\x40"
    b"\n\x09\n\x01c\x12\x04\x1a\x02\xc3\xa9"
    b"\n\x07\n\x01d\x12\x02\x20\x01"
    b"\n\x17\n\x01e\x12\x12\x2a\x10\n\x0e\n\x01f\x12\x09\x11\x00\x00\x00\x00\x00\x00\x08\x40"
    b"\n\x1b\n\x01g\x12\x16\x32\x14"
    b"\n\x09\x11\x00\x00\x00\x00\x00\x00\xf0\x3f"
    b"\n\x03\x1a\x01x"
    b"\n\x02\x32\x00"
)  # fmt: skip
VALUES = {"a": None, "b": 2.5, "c": "é", "d": True, "e": {"f": 3}, "g": [1, "x", []]}


def decoded(data: bytes) -> dict[str, Any]:
    """The properties of a column whose metadata are these bytes."""
    value = "".join(f"\\{byte:03o}" for byte in data)
    struct = f'type_url: "type.googleapis.com/google.protobuf.Struct" value: "{value}"'
    text = f'feature {{ name: "x" annotation {{ extra_metadata {{ {struct} }} }} }}'
    return dict(read_pbtxt(text)["x"].properties)


def test_the_wire_format() -> None:
    assert decoded(WIRE) == VALUES
    assert decoded(b"") == {}


def test_whole_numbers_are_int_where_a_double_is_exact() -> None:
    assert type(decoded(WIRE)["e"]["f"]) is int
    assert type(decoded(WIRE)["b"]) is float


def test_fields_it_does_not_know_are_passed_over() -> None:
    later = b"\x78\x05" + b"\x7a\x01x" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)
    assert decoded(later + b"\n\x07\n\x01a\x12\x02\x20\x01") == {"a": True}
