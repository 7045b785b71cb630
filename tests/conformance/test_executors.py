"""Every executor against `check_executor`, and every operator on a Dask cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tabfeed import Dataset, Workflow
from tabfeed.execute import LocalExecutor, as_executor
from tabfeed.testing.executor import check_executor
from tests.conformance.test_ops import CASES, TABLE


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(threads: int, tmp_path: Path) -> None:
    check_executor(LocalExecutor(threads), folder=tmp_path)


def test_dask(dask_client: Any, tmp_path: Path) -> None:
    check_executor(as_executor(dask_client), folder=tmp_path)


class FoldsFromTheRight:
    """Keeps every promise but the order of merging."""

    def map(self, items: Any, fn: Any) -> Any:
        return map(fn, items)

    def reduce(self, items: Any, partial: Any, merge: Any) -> Any:
        results = [partial(item) for item in items]
        while len(results) > 1:
            results[-2:] = [merge(results[-2], results[-1])]
        return results[0] if results else None


class Disorder(FoldsFromTheRight):
    """Gives results as it likes."""

    def map(self, items: Any, fn: Any) -> Any:
        return reversed([fn(item) for item in items])


@pytest.mark.parametrize("wrong", [FoldsFromTheRight, Disorder])
def test_an_executor_that_breaks_a_promise_is_found(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_executor(wrong(), folder=tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_operator_on_dask_as_on_threads(name: str, dask_client: Any) -> None:
    make, columns, _ = CASES[name]
    data = Dataset(TABLE, npartitions=3)
    here = Workflow(columns >> make(), executor=LocalExecutor(1)).fit(data)
    there = Workflow(columns >> make(), client=dask_client).fit(data)
    assert there.output_schema == here.output_schema
    assert rows(there.transform(TABLE)) == rows(here.transform(TABLE))
    assert rows(there.transform(data).to_arrow()) == rows(here.transform(data).to_arrow())


def rows(table: pa.Table) -> str:
    """Every value to its last bit: NaN is NaN, and -0.0 is not 0.0."""
    return repr(table.to_pylist())
