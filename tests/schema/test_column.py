"""Columns: values that compare by content, check themselves, and survive JSON and pickle."""

import copy
import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from tabfeed import ColumnSchema, Domain, Tags
from tabfeed.errors import SchemaError
from tests.schemas import columns


def test_tags_are_strings_and_other_strings_may_be_tags() -> None:
    assert Tags.USER == "user"
    assert hash(Tags.USER) == hash("user")
    assert f"{Tags.USER}" == "user"
    assert ColumnSchema("x", tags=["Mine", Tags.ID, " id "]).tags == (Tags.ID, "mine")
    assert isinstance(ColumnSchema("x", tags="id").tags[0], Tags)


@pytest.mark.parametrize(
    ("compound", "parts"),
    [
        ("user_id", ("id", "user")),
        ("ITEM_ID", ("id", "item")),
        ("session_id", ("id", "session")),
        ("text_tokenized", ("text", "tokenized")),
        ("binary_classification", ("binary", "classification")),
        ("multi_class_classification", ("classification", "multi_class")),
    ],
)
def test_compound_tags_are_split(compound: str, parts: tuple[str, ...]) -> None:
    assert ColumnSchema("x", tags=compound).tags == parts


@pytest.mark.parametrize(
    "tags", [["categorical", "continuous"], ["regression", "binary_classification"]]
)
def test_tags_that_exclude_each_other_are_refused(tags: list[str]) -> None:
    with pytest.raises(SchemaError, match="column 'x' cannot be both"):
        ColumnSchema("x", tags=tags)


def test_a_new_tag_replaces_the_one_it_excludes() -> None:
    column = ColumnSchema("x", tags=["categorical", "user"])
    assert column.with_tags("continuous").tags == ("continuous", "user")
    assert column.without_tags(["user", "absent"]).tags == ("categorical",)
    assert column.tags == ("categorical", "user")


@pytest.mark.parametrize("name", ["", None, 3, b"x"])
def test_a_name_is_a_string_with_something_in_it(name: Any) -> None:
    with pytest.raises(SchemaError, match="name must be a non-empty string"):
        ColumnSchema(name)


def test_a_column_cannot_be_changed() -> None:
    properties = {"a": [1]}
    column = ColumnSchema("x", properties=properties)
    properties["a"].append(2)
    properties["b"] = 3
    assert column.properties == {"a": [1]}
    with pytest.raises(dataclasses.FrozenInstanceError):
        column.name = "y"  # type: ignore[misc]
    with pytest.raises(TypeError):
        column.properties["b"] = 1  # type: ignore[index]
    column.to_dict()["properties"]["a"].append(9)
    assert column.properties == {"a": [1]}


def test_lists_ragged_and_fixed() -> None:
    scalar = ColumnSchema("x", "int64")
    ragged = ColumnSchema("x", "list<int64>")
    bounded = ColumnSchema("x", "list<int64>", value_count=(1, 4))
    counted = ColumnSchema("x", "list<int64>", value_count=[3, 3])
    fixed = ColumnSchema("x", "fixed_size_list<int64, 3>")
    unknown = ColumnSchema("x")
    table = [(c.is_list, c.is_ragged) for c in (scalar, ragged, bounded, counted, fixed, unknown)]
    assert table == [
        (False, False), (True, True), (True, True), (True, False), (True, False), (False, False)
    ]  # fmt: skip
    assert fixed.value_count == counted.value_count == (3, 3)
    assert bounded.leaf_dtype == pa.int64()
    assert unknown.leaf_dtype is None


@pytest.mark.parametrize(
    "count", [(-1, 2), (3, 2), (None, 2), (1,), (1, 2, 3), ("a", 2), (None, None)]
)
def test_a_value_count_that_is_no_range_is_refused(count: Any) -> None:
    with pytest.raises(SchemaError, match="value_count of column 'x'"):
        ColumnSchema("x", "list<int64>", value_count=count)


def test_a_value_count_must_fit_the_type() -> None:
    with pytest.raises(SchemaError, match="column 'x' is int64: value_count"):
        ColumnSchema("x", "int64", value_count=(1, 2))
    with pytest.raises(SchemaError, match="fixed_size_list<int64, 3>: value_count"):
        ColumnSchema("x", "fixed_size_list<int64, 3>", value_count=(1, 3))


def test_another_type_takes_the_value_count_along_where_it_fits() -> None:
    column = ColumnSchema("x", "list<int64>", value_count=(2, 4))
    assert column.with_dtype("list<float>").value_count == (2, 4)
    assert column.with_dtype("int64").value_count is None
    assert column.with_dtype("fixed_size_list<int64, 3>").value_count == (3, 3)
    fixed = ColumnSchema("x", "fixed_size_list<int64, 3>")
    assert fixed.with_dtype("fixed_size_list<int64, 5>").value_count == (5, 5)


@pytest.mark.parametrize("size", [(1,), "ab", 3, (1, None)])
def test_an_embedding_size_is_two_numbers(size: Any) -> None:
    with pytest.raises(SchemaError, match="embedding_size of column 'x'"):
        ColumnSchema("x", embedding_size=size)


def test_a_domain_holds_numbers() -> None:
    assert Domain(np.int64(0), np.float32(1.5)) == Domain(0, 1.5)
    assert type(Domain(np.int64(3)).min) is int
    assert Domain(-math.inf, math.inf) == Domain()
    for wrong in ("a", math.nan, [1]):
        with pytest.raises(SchemaError, match="the max of a domain"):
            Domain(0, wrong)  # type: ignore[arg-type]


def test_properties_are_added_and_replaced() -> None:
    column = ColumnSchema("x", properties={"a": 1, "b": 2}).with_properties({"b": 3, "c": None})
    assert column.properties == {"a": 1, "b": 3, "c": None}


def test_equal_columns_have_equal_hashes() -> None:
    from_parquet = ColumnSchema("x", pa.list_(pa.field("element", pa.int64())))
    from_memory = ColumnSchema("x", pa.list_(pa.field("item", pa.int64())))
    assert from_parquet == from_memory
    assert hash(from_parquet) == hash(from_memory)


def test_the_repr_tells_what_is_known() -> None:
    column = ColumnSchema(
        "C1",
        "list<int32>",
        tags=["categorical", "mine"],
        nullable=False,
        value_count=(1, None),
        domain=Domain(0, 1_000_000),
        embedding_size=(1_000_001, 64),
    )
    assert repr(column) == (
        "C1: list<int32> [categorical, mine] not null 1.. values in 0..1,000,000 "
        "embedding 1,000,001 x 64"
    )
    assert repr(ColumnSchema("x")) == "x: ?"
    assert repr(ColumnSchema("x", "list<int8>", value_count=(1, 1))) == "x: list<int8> 1 value"
    assert repr(ColumnSchema("x", domain=Domain(max=2.5))) == "x: ? in ..2.5"


@pytest.mark.parametrize(
    "data",
    [
        {}, {"dtype": "int64"}, {"name": "x", "colour": "red"}, {"name": "x", "dtype": 3},
        {"name": "x", "dtype": "nope"}, {"name": "x", "domain": {"low": 1}},
        {"name": "x", "domain": 3}, {"name": "x", "value_count": 3}, {"name": "x", "properties": 1},
        {"name": "x", "tags": 3}, 3, None, [],
    ],
)  # fmt: skip
def test_a_dict_that_is_no_column_is_refused(data: Any) -> None:
    with pytest.raises(SchemaError):
        ColumnSchema.from_dict(data)


@given(columns())
def test_a_column_survives_a_dict_a_pickle_and_a_copy(column: ColumnSchema) -> None:
    assert ColumnSchema.from_dict(column.to_dict()) == column
    for back in (pickle.loads(pickle.dumps(column)), copy.deepcopy(column), copy.copy(column)):
        assert back == column
        assert hash(back) == hash(column)


def test_pickle_keeps_what_json_cannot() -> None:
    column = ColumnSchema("x", pa.list_view(pa.int8()), properties={"when": {1, 2}})
    assert pickle.loads(pickle.dumps(column)) == column
