"""Tables cast to a schema, and chunks joined where dictionaries allow it."""

from __future__ import annotations

import pyarrow as pa

from tabfeed.io.align import cast_table, combine

TEXT = pa.string()
WORDS = pa.dictionary(pa.int8(), TEXT)


def test_conform_orders_fills_and_casts() -> None:
    table = pa.table({"b": pa.array([1, None], pa.int8()), "a": ["x", "y"], "gone": [0, 0]})
    schema = pa.schema({"a": WORDS, "b": pa.int64(), "new": pa.list_(pa.int8(), 2)})
    got = cast_table(table, schema)
    assert got.schema.equals(schema)
    assert got.to_pydict() == {"a": ["x", "y"], "b": [1, None], "new": [None, None]}
    assert cast_table(got, schema) is got


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
