"""Text that functions of a user return: checked as text in files is."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import LoaderError, SchemaError
from tabfeed.loader.torch import Loader

DATA = {"x": [1.0, 2.0, 3.0]}
BAD = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff\xfe", b"b"]).buffers())
WORDS = r"column 's' of what damaging returned is damaged: Invalid UTF8 sequence"


def damaging(table: pa.Table) -> pa.Table:
    """Fit to be tried on no rows."""
    return table.append_column("s", BAD.slice(0, table.num_rows))


def in_polars(table: pa.Table) -> Any:
    return pl.from_arrow(damaging(table))


def test_of_map() -> None:
    data = Dataset(DATA).map(damaging)
    for act in (data.to_arrow, data.head, lambda: Workflow(["s"] >> ops.Categorify()).fit(data)):
        with pytest.raises(SchemaError, match=WORDS):
            act()


@pytest.mark.parametrize("function", [damaging, in_polars])
def test_of_transforms(function: Any) -> None:
    with pytest.raises(SchemaError, match=WORDS.replace("damaging", function.__name__)):
        list(Loader(Dataset(DATA), batch_size=3, transforms=[function], extras=["s"]))


def test_of_an_operator() -> None:
    def making(series: pl.Series) -> pa.Array:
        return BAD.slice(0, len(series))

    node = ["x"] >> ops.LambdaOp(making, dtype="string")
    with pytest.raises(SchemaError, match=r"column 'x' of what making returned is damaged"):
        Workflow(node).fit(Dataset(DATA)).transform(Dataset(DATA)).to_arrow()


@pytest.mark.parametrize("made", [None, pl.DataFrame(DATA), [1]])
def test_of_map_that_returns_no_table(made: Any) -> None:
    def strange(table: pa.Table) -> Any:
        return made

    words = r"given to map must return an Arrow table; strange returned (NoneType|DataFrame|list)"
    with pytest.raises(SchemaError, match=words):
        Dataset(DATA).map(strange)
    with pytest.raises(SchemaError, match=words):
        Dataset(DATA).map(strange, schema=Dataset(DATA).schema).to_arrow()


def test_of_a_transform_that_returns_no_table() -> None:
    with pytest.raises(LoaderError, match=r"must give an Arrow table; .* gave NoneType"):
        list(Loader(Dataset(DATA), batch_size=3, transforms=[lambda table: None]))


class Unprintable:
    """A function whose repr would print all it holds."""

    def __call__(self, table: pa.Table) -> pa.Table:
        return table

    def __repr__(self) -> str:
        raise AssertionError("repr() called though there is no error")


def test_that_a_repr_is_made_for_errors_alone() -> None:
    assert Dataset(DATA).map(Unprintable()).to_arrow().num_rows == 3
    assert len(list(Loader(Dataset(DATA), batch_size=3, transforms=[Unprintable()]))) == 1
