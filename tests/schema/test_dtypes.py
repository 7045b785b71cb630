"""Types as text: what is written is read back, and every library's dtype has an Arrow type."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed import ColumnSchema, Dataset
from tabfeed.errors import SchemaError

ATOMS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(7)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration(u) for u in ("s", "ms", "us", "ns")),
    *(pa.timestamp(u) for u in ("s", "ms", "us", "ns")),
    *(pa.timestamp("us", tz) for tz in ("UTC", "+05:30", "America/New_York")),
    *(pa.decimal32(5, 2), pa.decimal64(18, 0), pa.decimal128(38, -4), pa.decimal256(50, 3)),
    *(pa.month_day_nano_interval(), pa.uuid(), pa.json_()),
    pa.run_end_encoded(pa.int32(), pa.string()),
    pa.sparse_union([pa.field("a", pa.int8()), pa.field("b", pa.string())]),
]
NAMES = st.text(max_size=8) | st.sampled_from(["a,b", "a: int64", "<>", "[", "not null", '"\\', ""])


def fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.Field]:
    made = st.tuples(NAMES, types, st.booleans())
    return made.map(lambda f: pa.field(f[0], f[1], nullable=f[2] or pa.types.is_null(f[1])))


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    item = st.builds(lambda f: f.with_name("item"), fields(types))
    keys = types.filter(lambda t: not pa.types.is_null(t))
    return st.one_of(
        st.builds(pa.list_, item),
        st.builds(pa.large_list, item),
        st.builds(pa.list_, item, st.integers(0, 2**31 - 1)),
        st.builds(pa.struct, st.lists(fields(types), max_size=4)),
        st.builds(pa.map_, keys, st.builds(lambda f: f.with_name("value"), item), st.booleans()),
    )


LEAVES = st.sampled_from(ATOMS) | st.builds(
    pa.dictionary,
    st.sampled_from([pa.int8(), pa.uint16(), pa.int32(), pa.int64()]),
    st.sampled_from([pa.string(), pa.int64(), pa.timestamp("ms", "UTC"), pa.decimal128(9, 2)]),
    st.booleans(),
)
TYPES = st.recursive(LEAVES, nested, max_leaves=6)


def write(dtype: pa.DataType) -> str:
    """The type as text, as schemas are saved."""
    return str(ColumnSchema("x", dtype).to_dict()["dtype"])


def read(text: str) -> pa.DataType:
    return ColumnSchema.from_dict({"name": "x", "dtype": text}).dtype


@pytest.mark.parametrize("dtype", ATOMS, ids=str)
def test_every_plain_type_is_read_back(dtype: pa.DataType) -> None:
    assert read(write(dtype)) == dtype


@given(TYPES)
def test_any_type_is_read_back(dtype: pa.DataType) -> None:
    assert read(write(dtype)) == dtype


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (pa.list_(pa.int64()), "list<int64>"),
        (pa.list_(pa.field("element", pa.int64())), "list<int64>"),
        (pa.list_(pa.field("item", pa.int64(), nullable=False)), "list<int64 not null>"),
        (pa.list_(pa.list_(pa.float32(), 4)), "list<fixed_size_list<float, 4>>"),
        (pa.large_list(pa.string()), "large_list<string>"),
        (pa.dictionary(pa.int32(), pa.string()), "dictionary<string, int32>"),
        (pa.dictionary(pa.int8(), pa.string(), True), "dictionary<string, int8, ordered>"),
        (pa.map_(pa.string(), pa.int64()), "map<string, int64>"),
        (pa.struct([("a", pa.int8()), ("b c", pa.bool_())]), 'struct<a: int8, "b c": bool>'),
        (pa.struct([pa.field("a", pa.int8(), nullable=False)]), "struct<a: int8 not null>"),
        (pa.struct([]), "struct<>"),
        (pa.struct([("größe", pa.int8())]), "struct<größe: int8>"),
        (pa.decimal128(10, 2), "decimal128(10, 2)"),
    ],
    ids=str,
)
def test_the_text_is_readable(dtype: pa.DataType, text: str) -> None:
    assert write(dtype) == text
    assert read(text) == dtype


def test_spaces_do_not_matter() -> None:
    assert read(" struct< a :int64 ,b: list< string > > ") == pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.string()))]
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "nope", "list<>", "list<int64", "list<nope>", "fixed_size_list<int64>",
        "fixed_size_list<int64, x>", "dictionary<string>", "dictionary<string, string>",
        "struct<a>", "struct<a b: int8>", "map<string>", "decimal128(100, 2)",
        "timestamp[parsec, tz=UTC]",
        "fixed_size_binary[99999999999999]", "arrow:", "arrow:AAAA", "arrow:!",
    ],
)  # fmt: skip
def test_text_that_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="is not a type tabfeed knows; examples: int64"):
        read(text)


@given(st.text(max_size=40) | st.text("list<struct>int64,: \"'[]()", max_size=40))
def test_no_text_makes_the_parser_fall_over(text: str) -> None:
    try:
        read(text)
    except SchemaError as error:
        assert "is not a type tabfeed knows" in str(error)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pa.int8(), pa.int8()),
        (int, pa.int64()),
        (float, pa.float64()),
        (bool, pa.bool_()),
        (str, pa.string()),
        (bytes, pa.binary()),
        (object, pa.string()),
        ("object", pa.string()),
        ("str", pa.string()),
        ("int32", pa.int32()),
        ("Int64", pa.int64()),
        ("f4", pa.float32()),
        ("float32", pa.float32()),
        ("float64", pa.float64()),
        ("datetime64[ns]", pa.timestamp("ns")),
        ("list<float>", pa.list_(pa.float32())),
        (np.float16, pa.float16()),
        (np.dtype("uint8"), pa.uint8()),
        (np.dtype("O"), pa.string()),
        (np.dtype("M8[s]"), pa.timestamp("s")),
        (pd.Int64Dtype(), pa.int64()),
        (pd.Float32Dtype(), pa.float32()),
        (pd.BooleanDtype(), pa.bool_()),
        (pd.StringDtype(), pa.string()),
        (pd.DatetimeTZDtype(tz="UTC"), pa.timestamp("ns", "UTC")),
        (pd.ArrowDtype(pa.list_(pa.int8())), pa.list_(pa.int8())),
        (pd.CategoricalDtype(), pa.dictionary(pa.int32(), pa.string())),
        (pl.Int8, pa.int8()),
        (pl.String, pa.string()),
        (pl.List(pl.String), pa.list_(pa.string())),
        (pl.Array(pl.Float32, 3), pa.list_(pa.float32(), 3)),
        (pl.Datetime("us", "UTC"), pa.timestamp("us", "UTC")),
        (pl.Categorical, pa.dictionary(pa.uint32(), pa.string())),
    ],
    ids=repr,
)
def test_what_users_call_a_dtype(given: object, expected: pa.DataType) -> None:
    assert ColumnSchema("x").with_dtype(given).dtype == expected


@pytest.mark.parametrize(
    "given", [None, 3, [], {}, object(), "nope", pl.Object, np.dtype([("a", "i4")])], ids=repr
)
def test_what_is_no_dtype_is_refused(given: object) -> None:
    with pytest.raises(SchemaError, match="is not a type tabfeed knows"):
        ColumnSchema("x").with_dtype(given)


def test_lists_and_what_is_inside() -> None:
    assert ColumnSchema("x", pa.list_(pa.int8())).is_list
    assert ColumnSchema("x", pa.large_list(pa.int8())).is_list
    assert ColumnSchema("x", pa.list_(pa.int8(), 3)).is_list
    assert not ColumnSchema("x", pa.map_(pa.string(), pa.int8())).is_list
    assert not ColumnSchema("x", pa.string()).is_list
    assert (
        ColumnSchema("x", pa.list_(pa.dictionary(pa.int8(), pa.string()))).leaf_dtype == pa.string()
    )
    assert ColumnSchema("x", pa.float32()).leaf_dtype == pa.float32()


def test_small_types_hold_the_same_values() -> None:
    def small(dtype: pa.DataType) -> pa.DataType:
        return Dataset(pa.table({"x": pa.array([], dtype)})).schema["x"].dtype

    large = pa.struct(
        [
            pa.field("a", pa.large_list(pa.field("item", pa.large_string(), nullable=False))),
            pa.field("b", pa.map_(pa.string_view(), pa.large_binary(), True), nullable=False),
            pa.field("c", pa.dictionary(pa.int8(), pa.large_string(), True)),
        ]
    )
    assert small(large) == pa.struct(
        [
            pa.field("a", pa.list_(pa.field("item", pa.string(), nullable=False))),
            pa.field("b", pa.map_(pa.string(), pa.binary(), True), nullable=False),
            pa.field("c", pa.dictionary(pa.int8(), pa.string(), True)),
        ]
    )
    assert small(pa.list_(pa.large_string(), 2)) == pa.list_(pa.string(), 2)
    assert small(pa.int64()) == pa.int64()
