"""Unions in Avro files whose branch is neither of their two; Polars takes any for the second."""

import random
import struct
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.errors import BadFileError
from tests.io.avros import container, record, v, varint
from tests.io.datasets import opened, rows_in
from tests.io.formats.test_avro import POINT

LIST = {"type": "array", "items": ["null", "long"]}


def held(path: Path, schema: Any, blocks: list[tuple[int, bytes]], codec: str) -> Dataset:
    if codec == "deflate":
        blocks = [(rows, deflated(body)) for rows, body in blocks]
    return opened(path, container(schema, blocks, codec))


def deflated(data: bytes) -> bytes:
    pack = zlib.compressobj(9, zlib.DEFLATED, -15)
    return pack.compress(data) + pack.flush()


# -- refused or read ----------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["null", "deflate"])
@pytest.mark.parametrize("place", [0, 50, 99])
@pytest.mark.parametrize(
    ("types", "right", "wrong"),
    [(["null", "long"], v(1, 7), v(branch, 7)) for branch in (2, 3, -1, 2**40)]
    + [(["long", "null"], v(1), v(branch)) for branch in (2, 3, -1, 2**40)]
    + [(["null", "string"], v(1, 2) + b"ab", v(branch, 2) + b"ab") for branch in (2, -1)]
    + [(["null", "double"], v(1) + bytes(8), v(branch) + bytes(8)) for branch in (2, -1)]
    + [(["null", POINT], v(1, 4), v(branch, 4)) for branch in (2, -1)]
    + [(LIST, v(2, 0, 1, 5, 0), v(2, 0, branch, 5, 0)) for branch in (2, 3, -1, 2**40)]
    + [({"type": "map", "values": ["null", "long"]}, v(1, 0, 1, 5, 0), v(1, 0, 2, 5, 0))],
)
def test_wrong_branches(
    tmp_path: Path, types: Any, right: bytes, wrong: bytes, place: int, codec: str
) -> None:
    rows = [v(i) + right for i in range(100)]
    good = held(tmp_path / "a.avro", record(z="long", a=types), [(100, b"".join(rows))], codec)
    assert len(rows_in(good)) == 100
    rows[place] = v(place) + wrong
    blocks = [(1, v(0) + right), (100, b"".join(rows))]
    file = held(tmp_path / "bad.avro", record(z="long", a=types), blocks, codec)
    message = r"bad\.avro .*the block at byte [\d,]+: column 'a': .* no branch -?\d+"
    for columns in (["z", "a"], ["a"], ["z"]):
        with pytest.raises(BadFileError, match=message):
            file.select(columns).to_arrow()
        with pytest.raises(BadFileError, match=message):
            _ = [*file.repartition(npartitions=10).select(columns).iter_tables()]


@pytest.mark.parametrize(
    ("types", "rows", "body"),
    [
        # their bytes have the sum of the right ones
        (["null", "long"], 3, v(-1, 7, -1, 7, 2, 7)),
        (["long", "null"], 3, v(-1, -1, 2)),
        # a list in two parts takes as many bytes and has one more that is 2
        (LIST, 1, v(1, 1, 9, 63, 2, 9) + v(1, 9) * 62 + v(0)),
        (LIST, 1, v(-64, 0, 2, 9) + v(1, 9) * 63 + v(0)),
        # 2 is false; 8 is a long's tenth byte, of which one bit is used
        ({"type": "array", "items": ["null", "boolean"]}, 1, v(2, 1) + b"\2" + v(2) + b"\1\0"),
        (["null", "long"], 2, v(1) + b"\x81" + b"\x80" * 8 + b"\x02" + v(2, 5)),
        # zero as a decimal without bytes
        (
            {
                "type": "array",
                "items": [
                    "null",
                    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 0},
                ],
            },
            1,
            v(2, 1, 0, 70, 1) + b"\5" + v(0),
        ),
        # an int of which Polars takes the lower half, a time that it multiplies
        (["null", {"type": "int", "logicalType": "date"}], 2, v(1, 2**32 + 1, -1, 1)),
        (["null", {"type": "long", "logicalType": "time-micros"}], 2, v(1, 2**61 + 1, 70, 1)),
    ],
)
def test_forged_to_look_right(tmp_path: Path, types: Any, rows: int, body: bytes) -> None:
    file = held(tmp_path / "bad.avro", record(a=types), [(rows, body)], "null")
    with pytest.raises(BadFileError, match=r"column 'a': .* no branch"):
        rows_in(file)


def test_padded_numbers_are_read(tmp_path: Path) -> None:
    two, zero = b"\x82\x80\0", b"\x80\0"
    body = two + b"\x8e\0" + zero + two + v(8)
    file = held(tmp_path / "a.avro", record(a=["null", "long"]), [(3, body)], "null")
    assert rows_in(file) == [{"a": 7}, {"a": None}, {"a": 8}]


# -- any of them --------------------------------------------------------------------------

NESTED = record(
    i=["null", "long"],
    j=["long", "null"],
    s=["null", "string"],
    b="boolean",
    f=["float", "null"],
    l=["null", LIST],
    r=[{"type": "record", "name": "inner", "fields": [{"name": "t", "type": LIST}]}, "null"],
)
LONG = st.none() | st.integers(-(2**63), 2**63 - 1)
ITEMS = st.lists(st.none() | st.integers(-100, 100), max_size=3) | st.lists(LONG, max_size=150)
NESTED_ROW = st.fixed_dictionaries(
    {
        "i": LONG,
        "j": LONG,
        "s": st.none() | st.text(st.characters(codec="utf-8"), max_size=80),
        "b": st.booleans(),
        "f": st.none() | st.floats(width=32, allow_nan=False),
        "l": st.none() | ITEMS,
        "r": st.none() | st.fixed_dictionaries({"t": ITEMS}),
    }
)


class Encoder:
    """Encodes in any way the specification allows, and sometimes in one that it does not."""

    def __init__(self, choose: random.Random, odd: float, wrong: float) -> None:
        self.choose, self.odd, self.wrong = choose, odd, wrong
        self.mistakes = 0

    def long(self, value: int) -> bytes:
        data = varint(value)
        if len(data) < 9 and self.choose.random() < self.odd:
            return data[:-1] + bytes([data[-1] | 128, 0])
        return data

    def encode(self, value: Any, schema: Any) -> bytes:
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list):
            branch = kind.index("null") if value is None else 1 - kind.index("null")
            inner = b"" if value is None else self.encode(value, kind[branch])
            if branch == 1 and self.choose.random() < self.wrong:
                self.mistakes += 1
                branch = self.choose.choice([2, 3, -1, 64, 2**40, -(2**62)])
            return self.long(branch) + inner
        if kind == "record":
            return b"".join(self.encode(value[f["name"]], f["type"]) for f in schema["fields"])
        if kind == "array":
            data, items = b"", [self.encode(item, schema["items"]) for item in value]
            while items:
                size = len(items)
                if self.choose.random() < self.odd:
                    size = self.choose.randint(1, size)
                part, items = b"".join(items[:size]), items[size:]
                sized = self.choose.random() < self.odd
                start = self.long(-size) + self.long(len(part)) if sized else self.long(size)
                data += start + part
            return data + self.long(0)
        if kind == "string":
            text = value.encode()
            return self.long(len(text)) + text
        if kind == "boolean":
            return bytes([value])
        return struct.pack("<f", value) if kind == "float" else self.long(value)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(NESTED_ROW, min_size=1, max_size=8),
    st.randoms(use_true_random=False),
    st.sampled_from([0, 0.05, 0.5]),
    st.sampled_from([0, 0.05, 0.5]),
    st.sampled_from([["i"], ["l", "s"], ["i", "j", "s", "b", "f", "l", "r"]]),
)
def test_refused_only_if_a_branch_is_wrong(
    tmp_path: Path, rows: list, choose: random.Random, odd: float, wrong: float, columns: list
) -> None:
    encoder = Encoder(choose, odd, wrong)
    body = b"".join(encoder.encode(row, NESTED) for row in rows)
    file = held(tmp_path / "a.avro", NESTED, [(len(rows), body)], "null")
    if encoder.mistakes:
        with pytest.raises(BadFileError, match=r"a\.avro .* no branch"):
            rows_in(file, columns)
    else:
        with (tmp_path / "a.avro").open("rb") as f:
            assert list(fastavro.reader(f)) == rows
        assert rows_in(file, columns) == [{c: row[c] for c in columns} for row in rows]
