"""The hash is part of every saved workflow: these values may never change."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.errors import ColumnNotFoundError, SchemaError
from tabfeed.hashing import combine, hash_array, hash_columns, mix

NULL = 0xC90E082A812B4A67
FROZEN: list[tuple[pa.Array, list[int]]] = [
    (pa.array([0, 1, None, 3]), [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, NULL, 0x1D0B14E4DB018FED]),
    (pa.array([True, False, None]), [0x910A2DEC89025CC1, 0xE220A8397B1DCDAF, NULL]),
    (
        pa.array(["a", "", None, "hello world, this", "abcdefgh"]),
        [0x99DC275D986AFF40, 0xA7B77319D39F7883, NULL, 0x7176E4E472DAD8E0, 0x77621AA5691E726A],
    ),
    (pa.array(["x" * 1000, "x" * 999 + "y"]), [0x18F41660C98ACAFB, 0x0232FB8947097082]),
    (pa.array([b"a", b"\0"]), [0x99DC275D986AFF40, 0x21DF1AA5E6EF5BCA]),
    (
        pa.array([0.5, float("nan"), -0.0, None]),
        [0x49405B7C0C8856DC, 0x76428AD2EDF54349, 0xE220A8397B1DCDAF, NULL],
    ),
    (pa.array([0, 1], pa.timestamp("us")), [0xA706DD2F4D197E6F, 0x824F1357D7385818]),
    (pa.array([None, None]), [NULL, NULL]),
]


@pytest.mark.parametrize(("array", "expected"), FROZEN, ids=lambda x: str(getattr(x, "type", "")))
def test_frozen(array: pa.Array, expected: list[int]) -> None:
    assert [int(h) for h in hash_array(array)] == expected


def test_mix_is_splitmix64() -> None:
    # The first outputs of the published generator when it is seeded with 0.
    states = np.array([0, 0x9E3779B97F4A7C15], np.uint64)
    assert [hex(int(v)) for v in mix(states)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


day = dt.date(2024, 2, 29)
noon = dt.datetime(2024, 2, 29, 12, 0, 0, 500_000)
EQUAL: list[list[pa.Array]] = [
    [
        pa.array([5], t)
        for t in (pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float32(), pa.float64())
    ],
    [pa.array(["tea and cake"], t) for t in (pa.string(), pa.large_string(), pa.string_view())]
    + [pa.array(["tea and cake"]).dictionary_encode(), pa.array([b"tea and cake"])],
    [
        pa.array([day], pa.date32()),
        pa.array([day], pa.date64()),
        pa.array([day]).cast(pa.timestamp("ns")),
    ],
    [pa.array([noon], pa.timestamp(u)) for u in ("ms", "us", "ns")],
    [pa.array([0.0]), pa.array([-0.0]), pa.array([0])],
    [pa.array([Decimal("1.50")]), pa.array([Decimal("1.5")])],
]


@pytest.mark.parametrize("arrays", EQUAL, ids=lambda a: str(a[0].type))
def test_equal_values_hash_alike_whatever_holds_them(arrays: list[pa.Array]) -> None:
    assert len({int(hash_array(a)[0]) for a in arrays}) == 1


def test_text_and_numbers_that_look_alike_differ() -> None:
    assert hash_array(pa.array(["5"]))[0] != hash_array(pa.array([5]))[0]
    assert hash_array(pa.array([""]))[0] != hash_array(pa.array([0]))[0]


def test_slices_and_chunks_do_not_matter() -> None:
    values = ["a", None, "bb", "a much longer text than eight bytes", ""] * 7
    whole = hash_array(pa.array(values))
    assert (hash_array(pa.array(["zz", *values]).slice(1)) == whole).all()
    assert (hash_array(pa.chunked_array([values[:4], values[4:]])) == whole).all()
    coded = pa.array(values).dictionary_encode()
    assert (hash_array(coded.slice(3)) == whole[3:]).all()


def test_every_length_and_every_byte_counts() -> None:
    texts = ["x" * n for n in range(300)] + ["x" * n + "y" + "x" * (299 - n) for n in range(300)]
    assert len(set(hash_array(pa.array(texts)).tolist())) == len(set(texts))


def test_many_integers_spread_over_buckets() -> None:
    buckets = np.bincount((hash_array(pa.array(np.arange(100_000))) % np.uint64(100)).astype(int))
    assert buckets.min() > 850 and buckets.max() < 1150


def test_equal_columns_do_not_cancel_and_order_matters() -> None:
    table = pa.table({"a": [1, 2, 3], "b": [1, 2, 3], "c": [3, 2, 1]})
    assert len(set(hash_columns(table, ["a", "b"]).tolist())) == 3
    assert hash_columns(table, ["a", "c"])[0] != hash_columns(table, ["c", "a"])[0]


def test_nothing_hashes_to_nothing() -> None:
    assert len(hash_array(pa.array([], pa.string()))) == 0
    assert len(hash_array(pa.chunked_array([], pa.int64()))) == 0
    assert len(combine([])) == 0
    assert hash_columns(pa.table({"a": pa.array([], pa.int64())}), ["a"]).dtype == np.uint64


def test_refused() -> None:
    with pytest.raises(SchemaError, match="have no hash"):
        hash_array(pa.array([[1]]))
    with pytest.raises(ColumnNotFoundError, match="'z'"):
        hash_columns(pa.table({"a": [1]}), ["z"])


def test_no_warnings_at_the_edges_of_integers() -> None:
    edges: list[Any] = [-(2**63), 2**63 - 1, 0]
    assert len(set(hash_array(pa.array(edges)).tolist())) == 3
    assert int(hash_array(pa.array([2**64 - 1], pa.uint64()))[0]) == int(
        hash_array(pa.array([-1]))[0]
    )
