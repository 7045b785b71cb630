"""Any table, written with any options, comes back: the same rows, types and order."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import tempfile
from collections import Counter
from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.io.formats.parquet.pages import plain_inside
from tabfeed.io.shuffle import local

_DAY = 86_400
_YEARS = (-8_000_000_000, 8_000_000_000)  # 1716 to 2223: what Python and nanoseconds can say

# -- types and their values -------------------------------------------------------------


def ints(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high)


def moments(unit: str) -> st.SearchStrategy[int]:
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    return st.integers(_YEARS[0] * scale, _YEARS[1] * scale)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
UNITS = ("s", "ms", "us", "ns")
ZONES = (None, "UTC", "Europe/Berlin", "+05:30")

FLAT: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *[(getattr(pa, f"int{b}")(), ints(b, True)) for b in (8, 16, 32, 64)],
    *[(getattr(pa, f"uint{b}")(), ints(b, False)) for b in (8, 16, 32, 64)],
    (pa.float16(), st.floats(width=16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.string_view(), TEXT),
    (pa.binary(), st.binary(max_size=8)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    *[(pa.timestamp(u, z), moments(u)) for u in UNITS for z in ZONES],
    (pa.time32("s"), st.integers(0, _DAY - 1)),
    (pa.time32("ms"), st.integers(0, _DAY * 1000 - 1)),
    (pa.time64("us"), st.integers(0, _DAY * 10**6 - 1)),
    (pa.time64("ns"), st.integers(0, _DAY * 10**6 - 1).map(lambda v: v * 1000)),
    *[(pa.duration(u), st.integers(-(10**9), 10**9)) for u in UNITS],
    (pa.decimal128(12, 3), st.decimals(-(10**8), 10**8, places=3)),
    (pa.decimal256(60, 2), st.decimals(-(10**8), 10**8, places=2)),
    (pa.decimal64(12, 0), st.decimals(-(10**8), 10**8, places=0)),
    (pa.null(), st.none()),
]
KEYS = {
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
    pa.types.is_dictionary,
}


@st.composite
def columns(draw: st.DrawFn, rows: int, depth: int = 2) -> pa.Array:
    """A column of some type: often flat, sometimes a dictionary, a list, a struct."""
    kinds = ["flat"] * 4 + ["dictionary", "list", "fixed list", "struct"] * (depth > 0)
    kind = draw(st.sampled_from(kinds))
    if kind == "list":
        lengths = draw(st.lists(st.none() | st.integers(0, 3), min_size=rows, max_size=rows))
        values = draw(columns(sum(n or 0 for n in lengths), depth - 1))
        return cut(values, lengths)
    if kind == "fixed list":
        size = draw(st.integers(1, 3))
        values = draw(columns(rows * size, depth - 1))
        mask = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        return pa.FixedSizeListArray.from_arrays(values, size, mask=pa.array(mask, pa.bool_()))
    if kind == "struct":
        parts = [draw(columns(rows, depth - 1)) for _ in range(draw(st.integers(1, 2)))]
        mask = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        return pa.StructArray.from_arrays(
            parts, ["a", "b c"][: len(parts)], mask=pa.array(mask, pa.bool_())
        )
    if kind == "dictionary":
        dtype, values = draw(st.sampled_from([(pa.string(), TEXT), (pa.int64(), ints(64, True))]))
        index = draw(st.sampled_from([pa.int8(), pa.int32(), pa.uint16()]))
        plain = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        ordered = depth == 2 and draw(st.booleans())
        encoded = pa.array(plain, dtype).dictionary_encode()
        return encoded.cast(pa.dictionary(index, dtype, ordered))
    dtype, values = draw(st.sampled_from(FLAT))
    return pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), dtype)


def cut(values: pa.Array, lengths: list[int | None]) -> pa.Array:
    """Lists of these lengths out of these values, None a null row."""
    offsets, at = [], 0
    for n in lengths:
        offsets.append(None if n is None else at)
        at += n or 0
    return pa.ListArray.from_arrays(pa.array([*offsets, at], pa.int32()), values)


NAMES = st.sampled_from(
    ["a", "a.b", "x y", "naïve ☂", 'quo"te', "it's", "k=v", "a/b", "_u", "%41", "A"]
)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A table of a few columns and rows, in one chunk or in two."""
    rows = draw(st.sampled_from([0, 1, 2, 7, 20]))
    names = draw(st.lists(NAMES | TEXT.filter(bool), min_size=1, max_size=4, unique=True))
    table = pa.table({name: draw(columns(rows)) for name in names})
    if rows > 1 and draw(st.booleans()):
        table = pa.concat_tables([table.slice(0, rows // 2), table.slice(rows // 2)])
    return table


# -- options ----------------------------------------------------------------------------


@st.composite
def sources(draw: st.DrawFn, table: pa.Table, folder: str) -> Dataset:
    """The table as a dataset: in memory or in files, in many partitions or few."""
    source: Any = table
    if draw(st.booleans()):
        source = os.path.join(folder, "source")
        files = draw(st.integers(1, 3))
        groups = draw(st.none() | st.integers(1, 9))
        Dataset(table).to_parquet(source, output_files=files, row_group_size=groups)
    if draw(st.booleans()):
        return Dataset(source, npartitions=draw(st.integers(1, 4)))
    return Dataset(source, part_size=draw(st.sampled_from([64, 500, 10**6])))


@st.composite
def options(draw: st.DrawFn, source: Dataset) -> dict[str, Any]:
    """What `to_parquet` may be told about this dataset."""
    chosen: dict[str, Any] = {
        "shuffle": draw(st.sampled_from([None, None, "PER_PARTITION", "PER_WORKER", "FULL"])),
        "seed": draw(st.integers(0, 3)),
        "row_group_size": draw(st.none() | st.integers(1, 8)),
        "compression": draw(st.sampled_from(["snappy", "zstd", "lz4", "gzip", None])),
        "layout": draw(st.sampled_from(["compact", "fast"])),
        "memory_limit": draw(st.sampled_from([None, 256, 4096])),
        "partition_on": draw(keys(source)),
    }
    full = chosen["shuffle"] == "FULL"
    in_files = not source.files[0].startswith("<")
    kinds = ["none", "number", "names"] + ["mapping"] * (not full)
    kind = draw(st.sampled_from(kinds + ["preserve"] * (in_files and not full)))
    if kind == "number":
        chosen["output_files"] = draw(st.integers(1, 5))
    if kind == "names":
        chosen["output_files"] = draw(st.permutations(["b", "a10", "a9.parquet", "ü v"]))
    if kind == "mapping":
        order = draw(st.permutations(range(source.npartitions)))
        half = len(order) // 2
        chosen["output_files"] = {"second": order[:half], "first": order[half:]}
    if kind == "preserve":
        chosen["preserve_files"] = True
    return chosen


@st.composite
def keys(draw: st.DrawFn, source: Dataset) -> list[str]:
    fit = [c.name for c in source.schema if any(is_kind(c.dtype) for is_kind in KEYS)]
    count = draw(st.sampled_from([0, 0, 1, 2]))
    return draw(st.permutations(fit))[: min(count, len(source.schema) - 1)]


# -- the property -----------------------------------------------------------------------


@settings(max_examples=150)
@given(st.data())
def test_any_table_with_any_options_comes_back(data: st.DataObject) -> None:
    table = data.draw(tables(), "table")
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(local, "_LEAST_MEMORY", 64),
        mock.patch.object(local, "_FEWEST_BUCKETS", 3),
    ):
        source = data.draw(sources(table, folder), "source")
        chosen = data.draw(options(source), "options")
        written = source.to_parquet(os.path.join(folder, "out"), **chosen)
        for result in (written, Dataset(os.path.join(folder, "out"), part_size=100)):
            check(table, source, chosen, result)
        assert leftovers(os.path.join(folder, "out")) == []


def check(table: pa.Table, source: Dataset, chosen: dict[str, Any], result: Dataset) -> None:
    assert result.column_names == table.column_names
    expected_types = plain_inside(source.schema.to_arrow()).types
    assert result.schema.to_arrow().types == expected_types
    got = result.to_arrow()
    assert got.schema.types == expected_types
    got.validate(full=True)
    expected = rows_of(table)
    assert result.num_rows == len(expected)
    assert Counter(rows_of(got)) == Counter(expected)
    if chosen["shuffle"] is None and not chosen["partition_on"]:
        assert rows_of(got) == in_written_order(expected, source, chosen)


def rows_of(table: pa.Table) -> list[str]:
    """Each row as text that tells NaN, null and -0.0 apart."""
    plain = [[repr(plainly(v)) for v in column.to_pylist()] for column in table.columns]
    return ["|".join(row) for row in zip(*plain, strict=True)]


def plainly(value: Any) -> Any:
    """Dates and times by what they mean, not by the class that holds them."""
    if isinstance(value, dt.datetime | dt.timedelta):
        return str(getattr(value, "value", value))
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, list):
        return [plainly(v) for v in value]
    return {k: plainly(v) for k, v in value.items()} if isinstance(value, dict) else value


def in_written_order(rows: list[str], source: Dataset, chosen: dict[str, Any]) -> list[str]:
    """The order of the source, unless partitions were placed otherwise."""
    placed = chosen.get("output_files")
    if not isinstance(placed, dict):
        return rows
    starts = [0]
    for length in source.partition_lens:
        starts.append(starts[-1] + length)
    order = [i for parts in placed.values() for i in parts]
    return [row for i in order for row in rows[starts[i] : starts[i + 1]]]


def leftovers(folder: str) -> list[str]:
    """Files that are neither data nor the manifest."""
    names = [n for _, _, found in os.walk(folder) for n in found]
    return [n for n in names if not n.endswith(".parquet") and n != "_tabfeed.json"]
