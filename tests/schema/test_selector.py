"""Selectors: names, wildcards, groups, tags and types, added and taken away."""

import pickle
from typing import Any

import pyarrow as pa
import pytest

from tabfeed import ColumnSchema, ColumnSelector, Schema, Tags
from tabfeed.errors import ArgumentError, ColumnNotFoundError

SCHEMA = Schema([
    ColumnSchema("label", "float", tags="target"),
    ColumnSchema("C1", "int64", tags=["categorical", "user_id"]),
    ColumnSchema("C2", "int64", tags=["categorical", "user"]),
    ColumnSchema("C3", "list<int64>", tags=["categorical", "item_id"]),
    ColumnSchema("I1", "float"),
    ColumnSchema("odd*name", "string"),
    ColumnSchema("unknown"),
])  # fmt: skip
ALL = SCHEMA.column_names


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (ColumnSelector("C1"), ["C1"]),
        (ColumnSelector(["C2", "label"]), ["C2", "label"]),
        (ColumnSelector(["C1", "C1", "C*"]), ["C1", "C2", "C3"]),
        (ColumnSelector("C?"), ["C1", "C2", "C3"]),
        (ColumnSelector("C[12]"), ["C1", "C2"]),
        (ColumnSelector("*"), ALL),
        (ColumnSelector("odd*name"), ["odd*name"]),
        (ColumnSelector(), []),
        (ColumnSelector([]), []),
        (ColumnSelector(["I1", ["C1", "C2"]]), ["I1", "C1", "C2"]),
        (ColumnSelector(tags=Tags.TARGET), ["label"]),
        (ColumnSelector(tags=["TARGET", Tags.ITEM]), ["label", "C3"]),
        (ColumnSelector(tags="user_id"), ["C1"]),
        (ColumnSelector(tags="user"), ["C1", "C2"]),
        (ColumnSelector(dtypes="int64"), ["C1", "C2", "C3"]),
        (ColumnSelector(dtypes=[pa.float32(), str]), ["label", "I1", "odd*name"]),
        (ColumnSelector("I1", tags="target"), ["I1", "label"]),
        (ColumnSelector("*") - "label", ALL[1:]),
        (ColumnSelector("*") - ColumnSelector(tags="categorical"), ["label", *ALL[4:]]),
        (ColumnSelector("C*") - ["C1"] - "C3", ["C2"]),
        (ColumnSelector("C1") + "I1" + ["label"], ["C1", "I1", "label"]),
        ("I1" + ColumnSelector("C1"), ["I1", "C1"]),
        (ColumnSelector(tags="target") + ColumnSelector(dtypes="string"), ["label", "odd*name"]),
    ],
    ids=repr,
)
def test_what_is_chosen(selector: ColumnSelector, names: list[str]) -> None:
    assert selector.resolve(SCHEMA) == names


@pytest.mark.parametrize("names", ["C9", ["C1", "C9"], "D*", [["C1", "C9"]]])
def test_a_name_or_pattern_that_matches_nothing_is_an_error(names: Any) -> None:
    with pytest.raises(ColumnNotFoundError, match=r"in train\.parquet"):
        ColumnSelector(names).resolve(SCHEMA, where="train.parquet")
    with pytest.raises(ColumnNotFoundError):
        (ColumnSelector("*") - ColumnSelector(names)).resolve(SCHEMA)


def test_everything_of_nothing_is_nothing() -> None:
    assert ColumnSelector("*").resolve(Schema()) == []
    assert ColumnSelector(tags="id", dtypes="int8").resolve(Schema()) == []


def test_groups_stay_whole_and_others_stand_alone() -> None:
    selector = ColumnSelector(["I1", ["C1", "C2"], "label"])
    assert selector.groups(SCHEMA) == [("I1",), ("label",), ("C1", "C2")]
    assert ColumnSelector(subgroups=[["C1", "C2"]]).groups(SCHEMA) == [("C1", "C2")]


def test_a_column_may_be_in_a_group_and_alone() -> None:
    assert ColumnSelector(["C1", ["C1", "C2"]]).groups(SCHEMA) == [("C1",), ("C1", "C2")]


def test_a_pattern_inside_a_group_is_spelled_out() -> None:
    assert ColumnSelector([["C*"]]).groups(SCHEMA) == [("C1", "C2", "C3")]


def test_a_group_that_lost_a_column_is_no_group() -> None:
    selector = ColumnSelector([["C1", "C2"], "I1"]) - "C2"
    assert selector.groups(SCHEMA) == [("I1",)]


def test_a_string_as_a_group_is_one_name_not_its_letters() -> None:
    assert ColumnSelector(subgroups=["C1"]).subgroups == (("C1",),)


@pytest.mark.parametrize("names", [[3], [["C1", 3]], [None], [{"C1"}]])
def test_what_is_no_name_is_refused(names: Any) -> None:
    with pytest.raises(ArgumentError, match="column names and lists of column names"):
        ColumnSelector(names)


def test_adding_after_taking_away_is_refused() -> None:
    with pytest.raises(ArgumentError, match="subtract last"):
        (ColumnSelector("*") - "C1") + "I1"


def test_selectors_are_values() -> None:
    one = ColumnSelector(["C1", ["a", "b"]], tags="id", dtypes="int64") - "x"
    same = ColumnSelector(["C1", ["a", "b"]], tags=[Tags.ID], dtypes=[pa.int64()]) - ["x"]
    assert one == same
    assert hash(one) == hash(same)
    assert pickle.loads(pickle.dumps(one)) == one
    assert ColumnSelector.of(one) is one
    base = ColumnSelector("a")
    _ = base + "b"
    assert base.names == ("a",)


def test_the_repr_reads_like_the_call() -> None:
    selector = ColumnSelector(["a", ["b", "c"]], tags=Tags.ID, dtypes="int64") - "d"
    assert repr(selector) == (
        "ColumnSelector(['a', ['b', 'c']], tags=['id'], dtypes=['int64']) - ColumnSelector(['d'])"
    )
    assert repr(ColumnSelector(tags="id")) == "ColumnSelector(tags=['id'])"
