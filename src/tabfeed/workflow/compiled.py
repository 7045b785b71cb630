"""Running a graph on one table.

Each node runs once. A chain of expression operators stays one lazy Polars plan until its
result is needed by two nodes, by an operator that works on Arrow, or by the caller. A table
in, tables out. `Halo` adds the rows around a partition, for operators that look beyond a row: what
the difference to the row before is must not depend on where partitions are cut. It remembers what
it read last, so that going through a dataset in order reads nearly nothing twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from tabfeed.arguments import add_note, is_users
from tabfeed.errors import (
    ColumnNotFoundError,
    NotFittedError,
    OperatorError,
    TabfeedError,
)
from tabfeed.execute.executor import refuse_forked
from tabfeed.io import Dataset, align
from tabfeed.lazy import cached_property
from tabfeed.ops.base import Inputs
from tabfeed.ops.frames import Value, as_table, cast_table, compute, gather, run
from tabfeed.ops.graph.node import Node, Selection, Structural
from tabfeed.ops.graph.plan import Plan, kind_of
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.workflow.rows import RowGraph, cast_numbers

_REMEMBERED = 8


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
            found = compute([_cut(values[t], inner, t.rows is None) for t in self.targets])
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
            value = gather([(values[s], names) for s, names in self.sources[node]])
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
            elif kind_of(planned).endswith("number") and kind_of(field.type).endswith("number"):
                column = cast_numbers(table.column(i), planned, field.name)
                table = table.set_column(i, field.name, column)
        return table

    @cached_property
    def rows(self) -> RowGraph:
        """The same for rows of Python values."""
        return RowGraph(self)

    def __getstate__(self) -> dict[str, Any]:
        """What rows need is made anew in another process."""
        return {k: v for k, v in vars(self).items() if k != "rows"}


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


def need_halo(program: CompiledGraph, dataset: Dataset) -> bool:
    """Whether a partition needs rows around it, for a graph that looks beyond single rows."""
    if dataset.npartitions <= 1:
        return False
    for node in program.nodes:
        if node.op.reach != (0, 0) and node.rows is not None:
            raise OperatorError(
                f"{node!r} looks at neighbouring rows, and {node.rows.op.label} before it drops, "
                "adds or moves rows, so across partitions the neighbours are not known. Write "
                f"the result of {node.rows.op.label} first, or read the data as one partition"
            )
    if not dataset.table.keeps_rows:
        raise OperatorError(
            "an operator looks at neighbouring rows, and a map on the dataset drops, adds or "
            "moves rows; write the mapped dataset first"
        )
    return True


class Halo:
    """Adds the rows around a partition to it.

    Parameters
    ----------
    dataset
        Where the rows are.
    columns
        The columns that are needed.
    reach
        How many rows before, and how many after.
    """

    def __init__(self, dataset: Dataset, columns: Sequence[str], reach: tuple[int, int]) -> None:
        self.dataset, self.columns = dataset, list(columns)
        self.before, self.after = reach
        self._known: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(self.dataset.partition_lens, initial=0))

    def around(self, table: pa.Table, first: int) -> tuple[pa.Table, Inner]:
        """The table with the rows around it, and which rows of the result are its own."""
        end, rows = first + table.num_rows, self._starts[-1]
        self._remember(table, first)
        head = self._rows(max(0, first - self.before), first, table.schema)
        tail = self._rows(end, min(rows, end + self.after), table.schema)
        whole = pa.concat_tables([*head, table, *tail])
        return whole, Inner(sum(t.num_rows for t in head), table.num_rows)

    def _remember(self, table: pa.Table, first: int) -> None:
        """Keep the edges of a partition, which the partitions beside it will need."""
        for low, high in (
            (max(0, table.num_rows - self.before), table.num_rows),
            (0, min(self.after, table.num_rows)),
        ):
            if low < high:  # a copy, so that the partition itself can go
                edge = table.take(pa.array(range(low, high)))
                self._known[first + low, first + high] = edge
        while len(self._known) > _REMEMBERED:
            try:
                self._known.popitem(last=False)
            except KeyError:  # another thread was faster
                break

    def _rows(self, start: int, stop: int, schema: pa.Schema) -> list[pa.Table]:
        """Rows of the dataset by number."""
        found: list[pa.Table] = []
        while start < stop:
            known = self._known.get((start, stop))
            if known is not None:
                return [*found, align.cast_table(known, schema)]
            number = bisect_right(self._starts, start) - 1
            first, last = self._starts[number : number + 2]
            piece = self.dataset.table.read_rows(
                number, start - first, min(stop, last) - first, self.columns
            )
            found.append(align.cast_table(piece, schema))
            start += piece.num_rows
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": OrderedDict()}


class WithHalo:
    """A program as a numbered function of a partition, which looks beyond it."""

    def __init__(self, program: CompiledGraph, dataset: Dataset, *, training: bool) -> None:
        self.program, self.training = program, training
        self.halo = Halo(dataset, program.columns, program.reach)

    def __call__(self, table: pa.Table, first: int) -> pa.Table:
        """The result for the partition that starts with row number `first`."""
        if not table.num_rows:
            return self.program(table)
        whole, inner = self.halo.around(table, first)
        offset = first - inner.start
        return self.program(whole, offset, training=self.training, inner=inner)
