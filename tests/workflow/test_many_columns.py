"""What a workflow costs grows with its columns, not with their square: Python calls are counted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tabfeed import Dataset, Workflow, ops

SMALL, LARGE = 100, 200


def _names(count: int) -> list[str]:
    return [f"c{i}" for i in range(count)]


def _sum(names: list[str], make: Callable[[], Any]) -> Any:
    """A node for each column, added to those before it."""
    return reduce(add, ([name] >> make() for name in names))


def _chain(names: list[str]) -> Any:
    return names >> ops.FillMissing(0) >> ops.Clip(0) >> ops.LogOp() >> ops.Normalize()


def _deep(names: list[str]) -> Any:
    """One column through as many nodes as there are columns."""
    return reduce(lambda node, _: node >> ops.Clip(0), names, names[:1] >> ops.Clip(0))


def _pairs(names: list[str]) -> list[Any]:
    return [list(pair) for pair in zip(names[::2], names[1::2], strict=True)]


CASES: dict[str, Callable[[list[str]], Any]] = {
    "Normalize": lambda names: names >> ops.Normalize(),
    "FillMissing": lambda names: names >> ops.FillMissing(0, add_binary_cols=True),
    "FillMedian": lambda names: names >> ops.FillMedian(),
    "Categorify": lambda names: names >> ops.Categorify(),
    "Categorify pairs": lambda names: _pairs(names) >> ops.Categorify(encode_type="combo"),
    "HashBucket": lambda names: names >> ops.HashBucket(5),
    "HashedCross": lambda names: _pairs(names) >> ops.HashedCross(9),
    "JoinGroupby keys": lambda names: names >> ops.JoinGroupby("y", stats=["sum", "std"]),
    "JoinGroupby values": lambda names: ["y"] >> ops.JoinGroupby(names, stats=["sum", "std"]),
    "TargetEncoding": lambda names: names >> ops.TargetEncoding("y", kfold=2),
    "TargetEncoding targets": lambda names: ["y"] >> ops.TargetEncoding(names, kfold=2),
    "Groupby": lambda names: [*names, "y"] >> ops.Groupby("y", aggs=["sum", "mean", "std"]),
    "Rename": lambda names: names >> ops.Rename(postfix="_r"),
    "Filter": lambda names: names >> ops.Filter(lambda frame: frame.to_series(0) > -100),
    "DifferenceLag": lambda names: names >> ops.DifferenceLag("y"),
    "AddTags": lambda names: names >> ops.AddTags("id"),
    "LambdaOp": lambda names: names >> ops.LambdaOp(lambda column: column + 1),
    "ListSlice": lambda names: [f"l{name}" for name in names] >> ops.ListSlice(1),
    "ValueCount": lambda names: [f"l{name}" for name in names] >> ops.ValueCount(),
    "chain": _chain,
    "chain of many nodes": _deep,
    "sum of many nodes": lambda names: _sum(names, lambda: ops.Clip(0)),
    "sum of many nodes that learn": lambda names: _sum(names, ops.Normalize),
    "sum of many vocabularies": lambda names: _sum(names, ops.Categorify),
}


def _data(names: list[str], case: str) -> pa.Table:
    rng = np.random.default_rng(0)
    if case in ("ListSlice", "ValueCount"):
        columns = {f"l{name}": pa.array([[1, 2], [3]] * 10) for name in names}
    else:
        columns = {name: pa.array(rng.integers(0, 5, 20) / 2) for name in names}
    return pa.table({**columns, "y": np.arange(20) % 3})


@contextmanager
def _counting() -> Iterator[list[int]]:
    """Count the calls, of Python and of C, in this thread and in those that start in the block."""
    calls = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[0] += event in ("call", "c_call")

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def _work(case: str, count: int, folder: Path) -> dict[str, int]:
    """Calls that each step takes for so many columns."""
    names = _names(count)
    table = _data(names, case)
    found = {}
    with _counting() as calls:
        workflow = Workflow(CASES[case](names))
        found["build"] = calls[0]
        workflow.fit(Dataset(table))
        found["fit"] = calls[0] - sum(found.values())
        workflow.transform(table)
        found["transform"] = calls[0] - sum(found.values())
        if case not in ("Filter", "LambdaOp"):  # functions that no artefact can hold
            workflow.save(folder / str(count))
            found["save"] = calls[0] - sum(found.values())
            Workflow.load(folder / str(count))
            found["load"] = calls[0] - sum(found.values())
    return found


@pytest.mark.parametrize("case", CASES)
def test_work_is_linear_in_columns(case: str, tmp_path: Path) -> None:
    _work(case, 4, tmp_path)  # what is imported or made once
    small, large = (_work(case, count, tmp_path) for count in (SMALL, LARGE))
    assert {k: f"{large[k] / small[k]:.2f}" for k in small if large[k] > 2.3 * small[k]} == {}
