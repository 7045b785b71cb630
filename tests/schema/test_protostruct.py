"""Structs: the wire format byte for byte, damaged bytes refused, the spelled-out form both ways."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed.schema.textproto import decode_struct, struct_from_message, struct_to_message
from tests.schemas import JSON

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


def test_the_wire_format() -> None:
    assert decode_struct(WIRE) == VALUES
    assert decode_struct(b"") == {}


def test_whole_numbers_are_int_where_a_double_is_exact() -> None:
    assert type(decode_struct(WIRE)["e"]["f"]) is int
    assert type(decode_struct(WIRE)["b"]) is float


def test_fields_it_does_not_know_are_passed_over() -> None:
    later = b"\x78\x05" + b"\x7a\x01x" + b"\x79" + bytes(8) + b"\x7d" + bytes(4)
    assert decode_struct(later + b"\n\x07\n\x01a\x12\x02\x20\x01") == {"a": True}


@pytest.mark.parametrize("end", range(1, len(WIRE)))
def test_cut_bytes_never_do_worse_than_a_value_error(end: int) -> None:
    try:
        read = decode_struct(WIRE[:end])
    except ValueError:
        return
    assert set(read) <= set(VALUES)


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fall_over(data: bytes) -> None:
    try:
        decode_struct(data)
    except ValueError:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"\n\x05\n\x01a",  # a length past the end
        b"\x0b",  # groups are not of this format
        b"\x08\x01\x0a",  # a field without its length
        b"\xff" * 11,  # an endless number
        b"\n\x07\n\x01a\x12\x02\x10\x01",  # a double that is a varint
        b"\n\x06\n\x01\xff\x12\x01\x08",  # a key that is not UTF-8
    ],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_struct(data)


def test_bottomless_bytes_are_refused() -> None:
    def varint(n: int) -> bytes:
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    for tag in (b"\x2a", b"\x32"):  # a Struct in a Struct, a list in a list
        data = b""
        for _ in range(300):
            entry = b"\n\x01a\x12" + varint(len(data)) + data if tag == b"\x2a" else data
            data = (
                tag
                + varint(len(entry) + 1 + len(varint(len(entry))))
                + b"\n"
                + varint(len(entry))
                + entry
            )
        with pytest.raises(ValueError, match="too deeply"):
            decode_struct(
                b"\n"
                + varint(len(data) + 4 + len(varint(len(data))))
                + b"\n\x01a\x12"
                + varint(len(data))
                + data
            )


def test_the_spelled_out_form() -> None:
    message = struct_to_message({"n": 2, "s": "x", "none": None})
    assert message == {
        "fields": [
            {"key": ["n"], "value": [{"number_value": [2.0]}]},
            {"key": ["s"], "value": [{"string_value": ["x"]}]},
            {"key": ["none"], "value": [{"null_value": ["NULL_VALUE"]}]},
        ]
    }
    assert struct_from_message(message) == {"n": 2, "s": "x", "none": None}
    assert struct_from_message({"fields": [{"key": ["bare"]}]}) == {"bare": None}
    assert struct_from_message({}) == {}


def _as_double(value: Any) -> Any:
    """What is left of a JSON value when every number is a double."""
    if isinstance(value, dict):
        return {k: _as_double(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_as_double(v) for v in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_spelled_out_and_read_again(values: dict[str, Any]) -> None:
    assert struct_from_message(struct_to_message(values)) == _as_double(values)
