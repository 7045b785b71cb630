"""Running a graph on one table, or on one row.

Each node runs once. A chain of expression operators stays one lazy Polars plan until its
result is needed by two nodes, by an operator that works on Arrow, or by the caller. A table
in, tables out: nothing here knows of files, partitions or threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from tabfeed.errors import (
    ColumnNotFoundError,
    NotFittedError,
    OperatorError,
    SchemaError,
    TabfeedError,
)
from tabfeed.execute.forks import refuse_forked
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.graph.node import Node, Selection, Structural
from tabfeed.ops.graph.plan import Plan, kind_of
from tabfeed.ops.graph.run import Value, as_lazy, as_table, cast_table, run
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.schema import ColumnSchema
from tabfeed.user_functions import add_note, is_users
from tabfeed.workflow.casts import cast_numbers, is_number, value_converter

__all__ = ["CompiledGraph", "Inner"]

Row = dict[str, Any]


class Inner(NamedTuple):
    """Which rows of a table are meant; the others are there to be looked at."""

    start: int
    rows: int


class CompiledGraph:
    """The part of a plan that computes some nodes.

    Parameters
    ----------
    plan
        The graph and its schemas.
    targets
        The nodes wanted; the plan's output by default.
    """

    def __init__(self, plan: Plan, targets: Sequence[Node] | None = None) -> None:
        self.plan = plan
        self.targets = [plan.output] if targets is None else list(targets)
        self.need, self.columns = plan.required(self.targets)
        self.nodes = [n for n in plan.nodes if n in self.need]
        self.sources = {
            n: plan.sources(n, self.need[n]) for n in self.nodes if not isinstance(n.op, Selection)
        }
        used = Counter(s for taken in self.sources.values() for s, _ in taken)
        self.shared = {n for n in self.nodes if used[n] + self.targets.count(n) > 1}

    @property
    def dictionary(self) -> list[str]:
        """Text columns to read dictionary-encoded."""
        return self.plan.dictionary_columns(self.columns)

    @property
    def numbered(self) -> bool:
        """Whether some operator wants to know the numbers of the rows."""
        return any(n.op.uses_row_numbers for n in self.nodes)

    # -- tables -------------------------------------------------------------------

    @cached_property
    def reach(self) -> tuple[int, int]:
        """How many rows before and behind a row its result depends on."""
        found: dict[Node, tuple[int, int]] = {}
        for node in self.nodes:
            below = [found[source] for source, _ in self.sources.get(node, ())] or [(0, 0)]
            before, after = node.op.reach
            found[node] = (max(b for b, _ in below) + before, max(a for _, a in below) + after)
        return max(b for b, _ in found.values()), max(a for _, a in found.values())

    def __call__(
        self,
        table: pa.Table,
        offset: int = 0,
        *,
        training: bool = False,
        inner: Inner | None = None,
    ) -> pa.Table:
        """The output, exactly as the plan declares it; for the `inner` rows alone if given."""
        (value,) = self.run(table, offset=offset, training=training, whole=True, inner=inner)
        schema = self.plan.schemas[self.targets[0]]
        return cast_table(as_table(value), schema)

    def run(
        self,
        table: pa.Table,
        *,
        offset: int = 0,
        training: bool = False,
        memory: MemoryManager | None = None,
        whole: bool = False,
        inner: Inner | None = None,
    ) -> list[Value]:
        """The targets' values, as tables if `whole`, else computed as far as they are shared."""
        refuse_forked()
        extra = {"offset": offset, "training": training}
        if memory is not None:
            extra["memory"] = memory  # type: ignore[assignment]
        self._check(table)
        try:
            values = self._evaluate(table, extra, inner, eager=False)
            found = _collected([_cut(values[t], inner, t.rows is None) for t in self.targets])
            return [as_table(v) for v in found] if whole else found
        except TabfeedError:
            raise
        except Exception as e:
            if is_users(e):
                raise
            # Some lazy plan failed, and a plan does not say which node it was: find out.
            self._evaluate(table, extra, inner, eager=True)
            raise

    def _check(self, table: pa.Table) -> None:
        have = set(table.column_names)
        for name in self.columns:
            if name not in have:
                raise ColumnNotFoundError(name, table.column_names)
        self.plan.check_types({name: table.schema.field(name).type for name in self.columns})

    def _evaluate(
        self, table: pa.Table, extra: dict[str, Any], inner: Inner | None, *, eager: bool
    ) -> dict[Node, Value]:
        values: dict[Node, Value] = {}
        table = self._typed(table.select(self.columns))
        for node in self.nodes:
            if isinstance(node.op, Selection):
                values[node] = table.select(self.need[node])
                continue
            value = self._gather(node, values)
            if isinstance(node.op, Structural):
                value = value.select(self.need[node])
            else:
                # The halo ends here: what drops rows cannot cut it off afterwards.
                first = node.op.changes_rows and all(s.rows is None for s in node.sources)
                value = _cut(value, inner, first)
                value = _apply(node, value, replace(self.plan.inputs[node], **extra), eager)
            if node in self.shared and isinstance(value, pl.LazyFrame):
                value = value.collect().lazy()
            values[node] = value
        return values

    def _typed(self, table: pa.Table) -> pa.Table:
        """Numbers of another type take the planned one, as do nulls and lists without values."""
        for i, field in enumerate(table.schema):
            planned = self.plan.source_types[field.name]
            if planned is None or field.type == planned:
                continue
            if pa.types.is_null(field.type):
                table = table.set_column(i, field.name, pa.nulls(len(table), planned))
            elif kind_of(field.type).endswith("nothing") and kind_of(planned) != "nothing":
                table = table.set_column(i, field.name, table.column(i).cast(planned))
            elif is_number(planned) and is_number(field.type):
                column = cast_numbers(table.column(i), planned, field.name)
                table = table.set_column(i, field.name, column)
        return table

    def _gather(self, node: Node, values: dict[Node, Value]) -> Value:
        """A node's input columns side by side."""
        taken = [(values[s], names) for s, names in self.sources[node]]
        if len(taken) == 1:
            value, names = taken[0]
            return value.select(names)
        parts = _collected([v for v, _ in taken])
        columns: dict[str, Any] = {}
        for value, (_, names) in zip(parts, taken, strict=True):
            part = as_table(value)
            columns.update({n: part.column(n) for n in names})
        return pa.table(columns)

    # -- one row ------------------------------------------------------------------

    @cached_property
    def row_steps(
        self,
    ) -> list[tuple[Node, Callable[..., Row], Inputs, list[tuple[Node, list[str]]]]] | None:
        """What to do to a row, or None if some operator only knows tables."""
        steps = []
        for node in self.nodes:
            op = node.op
            if isinstance(op, Selection):
                continue
            if not isinstance(op, Structural) and type(op).transform_row is Operator.transform_row:
                return None
            steps.append((node, op.transform_row, self.plan.inputs[node], self.sources[node]))
        return steps

    def row(self, row: Row) -> Row | None:
        """Transform one row of Python values; None if an operator drops it."""
        clean = self._clean_row(row)
        if self.row_steps is not None and self.targets[0].rows is None:
            try:
                return self._run_row(clean)
            except NotImplementedError:
                pass
        out: list[Row] = self._as_table([clean]).to_pylist()
        if len(out) > 1:
            raise OperatorError(f"one row became {len(out)}; transform a table to have them all")
        return out[0] if out else None

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Transform rows of Python values, all at once; those that an operator drops are missing.

        The rules for a value are those of one row.
        """
        out: list[Row] = self._as_table([self._clean_row(row) for row in rows]).to_pylist()
        return out

    def _as_table(self, rows: Sequence[Row]) -> pa.Table:
        arrays = {n: _array([row[n] for row in rows], self.plan.source[n]) for n in self.columns}
        return self(pa.table(arrays))

    def _run_row(self, row: Row) -> Row:
        values: dict[Node, Row] = {}
        assert self.row_steps is not None
        for node in self._selections:
            values[node] = row
        for node, transform, inputs, sources in self.row_steps:
            if len(sources) == 1:
                given = values[sources[0][0]]
            else:
                given = {}
                for source, names in sources:
                    have = values[source]
                    for name in names:
                        given[name] = have[name]
            if isinstance(node.op, Structural):
                values[node] = given
                continue
            try:
                values[node] = transform(given, inputs)
            except (TabfeedError, NotImplementedError):
                raise
            except Exception as e:  # a user's function may raise anything
                raise OperatorError(f"{node!r} failed on a row: {e!r}") from e
        out = values[self.targets[0]]
        return {n: out[n] for n in self._output_names}

    @cached_property
    def _selections(self) -> list[Node]:
        return [n for n in self.nodes if isinstance(n.op, Selection)]

    @cached_property
    def _output_names(self) -> list[str]:
        return self.plan.schemas[self.targets[0]].column_names

    @cached_property
    def _converters(self) -> list[tuple[str, Callable[[Any], Any]]]:
        return [(n, value_converter(n, self.plan.source[n].dtype)) for n in self.columns]

    def _clean_row(self, row: Mapping[str, Any]) -> Row:
        """The needed values as Python's own types, as the columns hold them."""
        out: Row = {}
        for name, convert in self._converters:
            try:
                value = row[name]
            except KeyError:
                raise ColumnNotFoundError(name, row, where="the row") from None
            out[name] = None if value is None else convert(value)
        return out


def _array(values: list[Any], column: ColumnSchema) -> pa.Array:
    """Values of one column; NaN stays NaN where the column can hold it."""
    floating = column.dtype is not None and pa.types.is_floating(column.leaf_dtype)
    try:
        return pa.array(values, column.dtype, from_pandas=not floating)
    except (pa.ArrowException, TypeError, OverflowError) as e:
        raise SchemaError(
            f"column {column.name!r} is {values[0]!r} here and was {column.dtype} when the "
            f"workflow was fitted: {e}"
        ) from e


def _cut(value: Value, inner: Inner | None, wanted: bool) -> Value:
    """The inner rows alone."""
    return value if inner is None or not wanted else value.slice(inner.start, inner.rows)


def _apply(node: Node, value: Value, inputs: Inputs, eager: bool) -> Value:
    """Run a node's operator; what goes wrong names the node."""
    try:
        result = run(node.op, value, inputs)
        if eager and isinstance(result, pl.LazyFrame):
            result = result.collect().lazy()
        return result
    except NotFittedError:
        raise
    except TabfeedError as e:
        e.args = (f"{node!r}: {e.args[0] if e.args else e}", *e.args[1:])
        raise
    except Exception as e:
        if is_users(e):
            add_note(e, f"raised by the function of {node!r}")
            raise
        if not eager and isinstance(value, pl.LazyFrame):
            raise  # an operator before this one may be to blame
        raise OperatorError(f"{node!r} failed: {type(e).__name__}: {e}") from e


def _collected(values: list[Value]) -> list[Value]:
    """Lazy frames computed, all at once."""
    lazy = [i for i, v in enumerate(values) if isinstance(v, pl.LazyFrame)]
    if len(lazy) > 1:
        frames = pl.collect_all([as_lazy(values[i]) for i in lazy])
        values = list(values)
        for i, frame in zip(lazy, frames, strict=True):
            values[i] = frame.lazy()
    return values
