"""One schema for files that differ."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tabfeed.errors import SchemaError, SchemaMismatchError
from tabfeed.io.align import align_schemas, cast_table, combine, common_type

TEXT = pa.string()
WORDS = pa.dictionary(pa.int8(), TEXT)


def aligned(schemas: list[tuple[str, pa.Schema]]) -> pa.Schema:
    schema, conflicts = align_schemas(schemas)
    for error in conflicts.values():
        raise error
    return schema


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.uint64(), pa.int64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.int64(), TEXT, None),
        (pa.bool_(), pa.int8(), None),
        (TEXT, pa.large_string(), TEXT),
        (TEXT, pa.string_view(), TEXT),
        (pa.null(), TEXT, TEXT),
        (WORDS, TEXT, TEXT),
        (WORDS, pa.dictionary(pa.int32(), TEXT), TEXT),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("s"), pa.timestamp("s", "UTC"), None),
        (pa.date32(), pa.timestamp("s"), None),
        (pa.decimal128(5, 2), pa.decimal128(6, 4), pa.decimal128(7, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(48, 10)),
        (pa.decimal256(76, 0), pa.decimal256(76, 1), None),
        (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int16(), 3), pa.list_(pa.int16(), 3)),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8(), 4), pa.list_(pa.int8())),
        (pa.list_(pa.int64()), pa.int64(), None),
    ],
)
def test_common_type(a: pa.DataType, b: pa.DataType, expected: pa.DataType | None) -> None:
    assert common_type(a, b) == expected
    assert common_type(b, a) == expected


def test_the_union_of_schemas() -> None:
    a = pa.schema([pa.field("x", pa.int32(), nullable=False), pa.field("only_a", TEXT, False)])
    b = pa.schema([pa.field("y", TEXT, nullable=False), pa.field("x", pa.int64(), nullable=False)])
    expected = pa.schema(
        [pa.field("x", pa.int64(), False), pa.field("only_a", TEXT), pa.field("y", TEXT)]
    )
    assert aligned([("a", a), ("b", b)]).equals(expected)


def test_a_column_of_nulls_gets_its_type_from_another_file_whatever_the_order() -> None:
    null, number = pa.schema({"x": pa.null()}), pa.schema({"x": pa.int16()})
    for order in ([null, number], [number, null], [null, number, null]):
        assert aligned([("f", s) for s in order]).field("x").type == pa.int16()


def test_a_mismatch_names_both_files_the_column_and_the_ways_out() -> None:
    schemas = [("a.parquet", pa.schema({"x": pa.int64()})), ("b.parquet", pa.schema({"x": TEXT}))]
    with pytest.raises(SchemaMismatchError) as caught:
        aligned(schemas)
    for part in ("'x'", "int64 in a.parquet", "string in b.parquet", "dtypes={'x'", "columns="):
        assert part in str(caught.value)


def test_a_type_that_the_user_gives_settles_it() -> None:
    schemas = [("a", pa.schema({"x": pa.int64()})), ("b", pa.schema({"x": pa.float64()}))]
    schema, conflicts = align_schemas(schemas, {"x": pa.float32()})
    assert (schema.field("x").type, conflicts) == (pa.float32(), {})
    _, conflicts = align_schemas(schemas)
    assert list(conflicts) == ["x"]


def test_conform_orders_fills_and_casts() -> None:
    table = pa.table({"b": pa.array([1, None], pa.int8()), "a": ["x", "y"], "gone": [0, 0]})
    schema = pa.schema({"a": WORDS, "b": pa.int64(), "new": pa.list_(pa.int8(), 2)})
    got = cast_table(table, schema)
    assert got.schema.equals(schema)
    assert got.to_pydict() == {"a": ["x", "y"], "b": [1, None], "new": [None, None]}
    assert cast_table(got, schema) is got


def test_conform_refuses_to_lose_a_value() -> None:
    table = pa.table({"x": pa.array([1, 300])})
    with pytest.raises(SchemaError, match=r"column 'x' of a\.parquet is int64.*int8.*300"):
        cast_table(table, pa.schema({"x": pa.int8()}), where="a.parquet")
    with pytest.raises(SchemaError, match=r"'x'.*cannot become list<int8>"):
        cast_table(table, pa.schema({"x": pa.list_(pa.int8())}))
    big = pa.table({"x": pa.array([2**53 + 1])})
    with pytest.raises(SchemaError, match="9007199254740993"):
        cast_table(big, pa.schema({"x": pa.float64()}))


def test_conform_of_a_table_without_columns_keeps_its_rows() -> None:
    assert cast_table(pa.table({"x": [1, 2, 3]}), pa.schema([])).num_rows == 3


def test_dictionaries_that_outgrow_their_index_type_stay_in_chunks() -> None:
    def words(start: int) -> pa.Table:
        values = pa.array([str(i) for i in range(start, start + 100)])
        return pa.table({"w": values.dictionary_encode().cast(WORDS)})

    table = pa.concat_tables([words(0), words(100)])
    assert combine(table).column("w").to_pylist() == [str(i) for i in range(200)]
    plain = pa.concat_tables([pa.table({"x": [1]}), pa.table({"x": [2]})])
    assert combine(plain).column("x").num_chunks == 1
