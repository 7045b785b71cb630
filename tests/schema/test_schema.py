"""Schemas: order, sets by name and tag, JSON and pickle, and errors that say what is wrong."""

import json
import pickle
import warnings

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed import ColumnSchema, Domain, Schema, Tags
from tabfeed.errors import ColumnNotFoundError, DuplicateColumnError, SchemaError
from tests.schemas import arrow_schema, schemas

SCHEMA = Schema([
    ColumnSchema("label", "float", tags=["target", "binary_classification"]),
    ColumnSchema("user", "int64", tags=["user_id", "categorical"]),
    ColumnSchema("item", "int64", tags=["item_id", "categorical"]),
    ColumnSchema("country", "string", tags=["user", "categorical"]),
    ColumnSchema("price", "double", tags="continuous"),
    "note",
])  # fmt: skip


def test_a_schema_is_an_ordered_collection_of_columns() -> None:
    assert SCHEMA.column_names == ["label", "user", "item", "country", "price", "note"]
    assert len(SCHEMA) == 6
    assert [c.name for c in SCHEMA] == SCHEMA.column_names
    assert "user" in SCHEMA
    assert "nobody" not in SCHEMA
    assert SCHEMA.first == SCHEMA["label"]
    assert SCHEMA.get("nobody") is None
    assert SCHEMA["note"] == ColumnSchema("note")
    assert bool(Schema()) is False


def test_a_missing_column_is_named_with_its_neighbours() -> None:
    with pytest.raises(
        ColumnNotFoundError, match="no column 'prize' in the schema; did you mean 'price'"
    ):
        SCHEMA["prize"]
    with pytest.raises(ColumnNotFoundError, match="prize"):
        SCHEMA.select(["label", "prize"])
    with pytest.raises(ColumnNotFoundError, match="prize"):
        SCHEMA.excluding("prize")
    with pytest.raises(ColumnNotFoundError, match="prize"):
        SCHEMA.replace(ColumnSchema("prize"))
    with pytest.raises(SchemaError, match="no columns"):
        _ = Schema().first


def test_one_name_two_columns_is_refused() -> None:
    with pytest.raises(DuplicateColumnError, match="'a' appears twice"):
        Schema(["a", "b", "a"])


def test_choosing_by_name() -> None:
    assert SCHEMA.select(["price", "label"]).column_names == ["price", "label"]
    assert SCHEMA.select("price").column_names == ["price"]
    assert SCHEMA.select_by_name(["user"]).column_names == ["user"]
    assert SCHEMA.excluding(["label", "note"]).column_names == ["user", "item", "country", "price"]
    assert (
        SCHEMA.excluding_by_name("label") == SCHEMA.remove_col("label") == SCHEMA.without("label")
    )
    assert SCHEMA.without(["label", "nobody"]).column_names == SCHEMA.column_names[1:]


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        (Tags.TARGET, ["label"]),
        ("CATEGORICAL", ["user", "item", "country"]),
        ([Tags.TARGET, "continuous"], ["label", "price"]),
        (Tags.USER, ["user", "country"]),
        (Tags.ID, ["user", "item"]),
        ("user_id", ["user"]),
        ("binary_classification", ["label"]),
        ("absent", []),
        ([], []),
    ],
)
def test_choosing_by_tag(tags: list[str] | str, names: list[str]) -> None:
    assert SCHEMA.select_by_tag(tags).column_names == names
    others = [n for n in SCHEMA.column_names if n not in names]
    assert SCHEMA.excluding_by_tag(tags).column_names == others


def test_set_operations() -> None:
    left = Schema([ColumnSchema("a", "int8"), ColumnSchema("b", "int8")])
    right = Schema([ColumnSchema("b", "string"), ColumnSchema("c", "int8")])
    assert (left + right).column_names == ["a", "b", "c"]
    assert (left + right)["b"].dtype == pa.string()
    assert left | right == left + right
    assert (left & right) == Schema([ColumnSchema("b", "int8")])
    assert (left - right).column_names == ["a"]
    assert (left - ["a", "z"]).column_names == ["b"]
    assert left.replace(ColumnSchema("a", "bool")).column_names == ["a", "b"]
    assert left.column_names == ["a", "b"]


@given(schemas(), schemas())
def test_the_laws_of_sets(left: Schema, right: Schema) -> None:
    mine, theirs = set(left.column_names), set(right.column_names)
    assert set((left + right).column_names) == mine | theirs
    assert set((left & right).column_names) == mine & theirs
    assert set((left - right).column_names) == mine - theirs
    assert (left - right) + (left & right) == left.select(
        [*(left - right).column_names, *(left & right).column_names]
    )
    assert left + left == left
    assert left - left == Schema()


def test_order_is_part_of_equality() -> None:
    assert Schema(["a", "b"]) == Schema(["a", "b"])
    assert Schema(["a", "b"]) != Schema(["b", "a"])
    assert Schema(["a"]) != ["a"]
    assert len({Schema(["a"]), Schema(["a"]), Schema(["b"])}) == 2


@given(schemas())
def test_json_and_pickle_give_the_same_schema_back(schema: Schema) -> None:
    assert Schema.from_json(schema.to_json()) == schema
    back = pickle.loads(pickle.dumps(schema))
    assert back == schema
    assert hash(back) == hash(schema)


def test_the_json_is_strict_and_readable() -> None:
    schema = Schema(
        [
            ColumnSchema("a", "list<int8>", tags="id", nullable=False, value_count=(1, None)),
            ColumnSchema(
                "b", domain=Domain(0, 9, "b"), embedding_size=(10, 16), properties={"k": [1]}
            ),
        ]
    )
    assert json.loads(schema.to_json()) == {
        "tabfeed_schema": 1,
        "columns": [
            {
                "name": "a",
                "dtype": "list<int8>",
                "tags": ["id"],
                "nullable": False,
                "value_count": [1, None],
            },
            {
                "name": "b",
                "properties": {"k": [1]},
                "domain": {"min": 0, "max": 9, "name": "b"},
                "embedding_size": [10, 16],
            },
        ],
    }


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object(), b"x"], ids=repr)
def test_properties_that_are_no_json_are_refused_by_name(value: object) -> None:
    schema = Schema(["fine", ColumnSchema("odd", properties={"k": value})])
    with pytest.raises(SchemaError, match="properties of odd cannot be saved as JSON"):
        schema.to_json()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "3", "null", "{}", '{"tabfeed_schema": 1}', '{"columns": []}',
        '{"tabfeed_schema": 1, "columns": 3}', '{"tabfeed_schema": 1, "columns": {"name": "a"}}',
        '{"tabfeed_schema": 1, "columns": [3]}', '{"tabfeed_schema": 1, "columns": ["ab"]}',
    ],
)  # fmt: skip
def test_json_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(text)


def test_a_schema_of_a_later_format_says_upgrade() -> None:
    with pytest.raises(SchemaError, match="format 2; this tabfeed reads 1: upgrade"):
        Schema.from_json('{"tabfeed_schema": 2, "columns": []}')


@given(st.text(max_size=30))
def test_no_text_makes_the_reader_fall_over(text: str) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(text)


def test_arrow_both_ways() -> None:
    schema = Schema.from_arrow(arrow_schema())
    assert schema["label"].nullable is False
    assert schema["genres"].is_list
    assert schema.to_arrow() == arrow_schema()
    with pytest.raises(SchemaError, match=r"type of column 'note' is not known; .*dtype="):
        SCHEMA.to_arrow()


def test_the_repr_has_a_line_a_column() -> None:
    assert repr(Schema(["a"])) == "Schema of 1 column\n  a: ?"
    assert repr(Schema()) == "Schema of 0 columns"
    assert "  label: float [binary, classification, target]" in repr(SCHEMA).splitlines()


def test_a_very_wide_schema_ends_somewhere() -> None:
    wide = Schema(f"c{i}" for i in range(1_205))
    text, html = repr(wide).splitlines(), wide._repr_html_()
    assert (text[0], text[-2:]) == ("Schema of 1,205 columns", ["  c59: ?", "  ... and 1,145 more"])
    assert html.count("<tr>") == 202  # the head, 200 columns, and how many more
    assert "... and 1,005 more" in html


def test_the_notebook_s_table_is_escaped() -> None:
    html = Schema([ColumnSchema("<script>", "list<int8>", tags="a&b")])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "list&lt;int8&gt;" in html
    assert "a&amp;b" in html


def test_as_a_pandas_frame() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' own, at import
        frame = SCHEMA.to_pandas()
    assert frame["name"].tolist() == SCHEMA.column_names
    assert frame.loc[0, "dtype"] == "float"
