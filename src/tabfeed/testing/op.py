"""`check_op`: what every operator must hold, yours too.

Fitted on the whole equals fitted on any split; merging is associative; large parts of a summary
can be split, joined, spilled and sent to other processes, and nothing changes; transformed by
parts equals transformed whole; the declared schema is the real one; saving and loading
changes nothing; unfitted raises; no rows and one row work; the input stays as it was.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.errors import NotFittedError
from tabfeed.execute import Executor, LocalExecutor
from tabfeed.io import Dataset
from tabfeed.ops.base import Inputs, LargeState, Operator, StatOperator
from tabfeed.ops.frames import as_lazy, open_frame
from tabfeed.ops.graph.node import Node
from tabfeed.ops.graph.plan import Plan
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.workflow import Workflow

__all__ = ["assert_tables_match", "check_op"]


@dataclass(frozen=True)
class _Case:
    """What is checked, and on what."""

    make: Callable[[], Operator]
    table: pa.Table
    columns: Any
    executors: Sequence[Executor]
    row_wise: bool
    savable: bool

    def workflow(self, executor: Executor | None = None) -> Workflow:
        """A fresh workflow of the operator alone."""
        return Workflow(Node.of(self.columns) >> self.make(), executor=executor)


def check_op(
    make: Callable[[], Operator],
    data: Any,
    *,
    columns: Any = None,
    executors: Sequence[Executor] | None = None,
    row_wise: bool = True,
    savable: bool = True,
) -> None:
    """Assert that an operator keeps the contract of `tabfeed.ops.Operator`.

    Parameters
    ----------
    make
        Makes a fresh operator.
    data
        A frame to try it on: a few dozen rows, with nulls.
    columns
        What to select from it; all columns by default.
    executors
        Whose results must agree; one and two threads by default.
    row_wise
        False if a row's result depends on the rows beside it.
    savable
        False if the operator holds a function that cannot be imported.

    Examples
    --------
    >>> from tabfeed import ops
    >>> check_op(lambda: ops.Clip(min_value=0), {"x": [1, -1, None, 5]})
    """
    table, _ = open_frame(data)
    chosen = table.column_names if columns is None else columns
    threads = [LocalExecutor(threads=1), LocalExecutor(threads=2)]
    case = _Case(make, table, chosen, executors or threads, row_wise, savable)
    for check in (
        _unfitted_raises,
        _schema_is_true,
        _input_is_untouched,
        _fit_ignores_splits,
        _merge_is_associative,
        _large_parts_split_and_spill,
        _parts_make_the_whole,
        _few_rows_work,
        _saving_changes_nothing,
    ):
        check(case)


def _unfitted_raises(case: _Case) -> None:
    if not isinstance(case.make(), StatOperator):
        return
    try:
        case.workflow().transform(case.table)
    except NotFittedError:
        return
    raise AssertionError("transform before fit must raise NotFittedError")


def _schema_is_true(case: _Case) -> None:
    workflow = case.workflow().fit(Dataset(case.table))
    out = workflow.transform(case.table)
    declared = workflow.output_schema
    assert out.column_names == declared.column_names, (out.column_names, declared.column_names)
    for column in declared:
        real = out.column(column.name)
        assert column.dtype is None or real.type == column.dtype, (column, real.type)
        assert column.nullable or real.null_count == 0, f"{column} has nulls"


def _input_is_untouched(case: _Case) -> None:
    frame = pl.from_arrow(case.table)
    assert isinstance(frame, pl.DataFrame)
    before = frame.clone()
    case.workflow().fit(Dataset(frame)).transform(frame)
    assert frame.equals(before), "the operator changed its input"


def _fit_ignores_splits(case: _Case) -> None:
    expected = case.workflow().fit(Dataset(case.table)).transform(case.table)
    for executor in case.executors:
        for parts in (2, 3, max(1, case.table.num_rows)):
            split = Dataset(case.table, npartitions=parts)
            fitted = case.workflow(executor).fit(split)
            assert_tables_match(fitted.transform(case.table), expected, f"fitted on {parts} parts")


def _merge_is_associative(case: _Case) -> None:
    if case.table.num_rows < 3 or not isinstance(case.make(), StatOperator):
        return
    left, right = _ByHand(case), _ByHand(case)
    a, b, c = left.summaries()
    from_left = left.learn(left.op.merge(left.op.merge(a, b), c))
    a, b, c = right.summaries()
    from_right = right.learn(right.op.merge(a, right.op.merge(b, c)))
    assert_tables_match(from_left, from_right, "merged from the left and from the right")


class _ByHand:
    """A workflow of the operator alone, fitted step by step."""

    def __init__(self, case: _Case) -> None:
        self.table = case.table
        self.workflow = case.workflow()
        node = self.workflow.output_node
        assert isinstance(node.op, StatOperator)
        self.op = node.op
        plan = Plan(node, Dataset(case.table).schema)
        self.inputs = replace(plan.inputs[node], memory=MemoryManager())

    def summaries(self) -> list[Any]:
        """Summaries of three partitions."""
        whole = self.table.select(self.inputs.schema.column_names)
        third = whole.num_rows // 3
        pieces = [whole.slice(0, third), whole.slice(third, third), whole.slice(2 * third)]
        return [
            self.op.partial(
                piece if self.op.eager else as_lazy(piece), replace(self.inputs, offset=i * third)
            )
            for i, piece in enumerate(pieces)
        ]

    def learn(self, summary: Any) -> pa.Table:
        """The table transformed after learning a summary."""
        self.op.learn(summary, self.inputs)
        self.workflow.fit_schema(Dataset(self.table).schema)
        return self.workflow.transform(self.table)


def _large_parts_split_and_spill(case: _Case) -> None:
    """Whatever a fit does with large parts on its way, the result is the same."""
    if case.table.num_rows < 3 or not isinstance(case.make(), StatOperator):
        return
    expected = None
    changes: dict[str, Callable[[_Parts], _Parts]] = {
        "joined": lambda parts: parts,
        "spilled": _spilled,
        "split": _split,
        "spilled, then split": lambda parts: _split(_spilled(parts)),
        "pickled": _pickled,
        "spilled, then pickled": lambda parts: _pickled(_spilled(parts)),
    }
    for what, change in changes.items():
        fit = _ByHand(case)
        names = list(fit.op.large_parts(fit.inputs))
        if not names:
            return
        summaries = fit.summaries()
        _require_large_parts(names, summaries, fit.inputs)
        joined = {}
        for name in names:
            parts = [_joined(column) for column in change([[s[name]] for s in summaries])]
            joined[name] = _joined(parts)
            joined[name].memory = fit.inputs.memory
        result = fit.learn(joined)
        expected = result if expected is None else expected
        assert_tables_match(result, expected, f"large parts {what}")


_Parts = list[list[LargeState]]  # what is joined first, then joined with the others


def _spilled(parts: _Parts) -> _Parts:
    for part in (p for some in parts for p in some):
        part.spill()
        assert part.nbytes() == 0, f"nbytes() is {part.nbytes()} after spill(); it must be 0"
    return parts


def _split(parts: _Parts) -> _Parts:
    """Equal numbers of all splits are joined first."""
    splits = [list(part.split(3)) for some in parts for part in some]
    assert all(len(s) == 3 for s in splits), f"split(3) gave {[len(s) for s in splits]} parts"
    return [list(same) for same in zip(*splits, strict=True)]


def _pickled(parts: _Parts) -> _Parts:
    copies: _Parts = pickle.loads(pickle.dumps(parts))
    return copies


def _joined(parts: Sequence[LargeState]) -> LargeState:
    first, *others = parts
    for part in others:
        first = first.join(part)
    return first


def _require_large_parts(names: list[str], summaries: list[Any], inputs: Inputs) -> None:
    for summary in summaries:
        assert isinstance(summary, dict) and set(summary) == set(names), (
            f"large_parts() names {names}; partial() must return a dict with these keys"
        )
        for name, part in summary.items():
            assert isinstance(part, LargeState), f"{name!r} is no tabfeed.ops.LargeState: {part!r}"
            assert part.memory is inputs.memory, f"{name!r} must take its memory from the inputs"
            assert part.nbytes() >= 0


def _parts_make_the_whole(case: _Case) -> None:
    workflow = case.workflow().fit(Dataset(case.table))
    whole = workflow.transform(case.table)
    if case.row_wise:
        half = case.table.num_rows // 2
        parts = [case.table.slice(0, half), case.table.slice(half)]
        joined = pa.concat_tables([workflow.transform(p) for p in parts])
        assert_tables_match(joined, whole, "transformed by halves")
    looks_around = case.make().reach != (0, 0)
    if case.row_wise or looks_around or case.make().shuffle_keys:
        lazily = workflow.transform(Dataset(case.table, npartitions=3)).to_arrow()
        ordered = case.row_wise or looks_around
        assert_tables_match(lazily, whole, "transformed as a dataset", ordered=ordered)


def _few_rows_work(case: _Case) -> None:
    workflow = case.workflow().fit(Dataset(case.table))
    nothing = workflow.transform(case.table.slice(0, 0))
    declared = workflow.output_schema
    assert nothing.num_rows == 0 and nothing.column_names == declared.column_names
    for column in declared:
        assert column.dtype is None or nothing.column(column.name).type == column.dtype, column
    for i in range(min(3, case.table.num_rows)):
        one = workflow.transform(case.table.slice(i, 1))
        if one.num_rows > 1:
            continue
        row = workflow.transform(case.table.slice(i, 1).to_pylist()[0])
        expected = one.to_pylist()
        assert (row is None) == (not expected), "one row as a dict and as a table disagree"
        if expected:
            as_table = pa.Table.from_pylist([row], schema=one.schema)
            assert_tables_match(as_table, one, f"row {i} as a dict", exact=True)


def _saving_changes_nothing(case: _Case) -> None:
    if not case.savable:
        return
    workflow = case.workflow().fit(Dataset(case.table))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workflow"
        workflow.save(path)
        loaded = Workflow.load(path, trusted=True)  # it was written here
        assert loaded.output_schema == workflow.output_schema, "the schema changed by saving"
        assert_tables_match(
            loaded.transform(case.table), workflow.transform(case.table), "loaded", exact=True
        )


def assert_tables_match(
    got: pa.Table, expected: pa.Table, what: str, *, ordered: bool = True, exact: bool = False
) -> None:
    """Assert that two tables hold the same values, floats up to rounding."""
    assert got.column_names == expected.column_names, f"{what}: {got.column_names}"
    assert got.num_rows == expected.num_rows, f"{what}: {got.num_rows} != {expected.num_rows} rows"
    if not ordered:
        got, expected = _sorted(got), _sorted(expected)
    for name in expected.column_names:
        mine, theirs = got.column(name), expected.column(name)
        assert mine.type == theirs.type, f"{what}: {name} is {mine.type}, not {theirs.type}"
        for i, (a, b) in enumerate(zip(mine.to_pylist(), theirs.to_pylist(), strict=True)):
            single = pa.types.is_float32(mine.type)
            assert _same(a, b, exact, single), f"{what}: {name}[{i}] is {a!r}, not {b!r}"


def _same(a: Any, b: Any, exact: bool, single: bool) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(
            _same(x, y, exact, single) for x, y in zip(a, b, strict=True)
        )
    if not isinstance(a, float) or not isinstance(b, float):
        return bool(a == b)
    tolerance = 0.0 if exact else 1e-6 if single else 1e-9
    return bool(np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


def _sorted(table: pa.Table) -> pa.Table:
    rows = sorted(table.to_pylist(), key=repr)
    return pa.Table.from_pylist(rows, schema=table.schema)
