"""Structs: damaged bytes refused, the spelled-out form both ways."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed.schema.textproto import decode_struct, struct_from_message, struct_to_message
from tests.schema.test_wire import VALUES, WIRE
from tests.schemas import JSON


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
