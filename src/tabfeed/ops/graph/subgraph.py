"""A part of a graph that is applied again and again, until a condition holds.

The part stands in the graph as it is written, so its operators are fitted like all others, on
what comes in first. Behind its end stands a `Loop`, which applies the part to its own result
until the condition holds. An `Entrance` marks where the part begins, which is
what lets a saved graph be loaded again without keeping the part twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa

from tabfeed.errors import ColumnNotFoundError, GraphError, OperatorError
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.graph.node import Node, Selection, Structural, list_nodes, to_polars
from tabfeed.ops.graph.plan import Plan
from tabfeed.ops.graph.run import as_table, cast_table, run
from tabfeed.schema import Schema
from tabfeed.schema.selector import ColumnSelector
from tabfeed.user_functions import call

__all__ = ["Entrance", "Loop"]

MOST_TIMES = 1_000


class Entrance(Structural):
    """Where a part of a graph takes its columns in."""


class Loop(Operator):
    """Apply the part of the graph in front of it until a condition holds.

    Parameters
    ----------
    name
        The part's name.
    loop_until
        From a Polars frame, the result so far of one partition, to whether that is enough.
    """

    eager = True

    def __init__(self, name: str, loop_until: Callable[[pl.DataFrame], Any]) -> None:
        if not callable(loop_until):
            raise GraphError(f"loop_until is a function of the frame, not {loop_until!r}")
        self.name, self.loop_until = name, loop_until
        self._part: Node | None = None

    @property
    def label(self) -> str:
        """The part's name."""
        return f"{self.name} until {getattr(self.loop_until, '__name__', 'done')}"

    @property
    def changes_rows(self) -> bool:
        """Whether an operator of the part does."""
        return self._part is not None and self._part.rows is not None

    def placed(self, parents: tuple[Node, ...]) -> Operator:
        """The loop around the part that ends in its parent."""
        new = Loop(self.name, self.loop_until)
        new._part = _cut(parents[0])
        for node in list_nodes(new._part):
            if node.op.shuffle_keys is not None:
                raise GraphError(f"{node!r} regroups all of the data, so it cannot be repeated")
            if node.op.reach != (0, 0):
                raise GraphError(f"{node!r} looks at neighbouring rows, so it cannot be repeated")
        return new

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Apply the part until it is enough."""
        schema = Schema.from_arrow(frame.schema)
        for _ in range(MOST_TIMES):
            if bool(call(self.loop_until, to_polars(frame))):
                return frame
            frame = cast_table(self._once(frame, schema), schema)
        raise OperatorError(
            f"{self.label}: the condition did not hold after {MOST_TIMES:,} times; check that "
            "the part of the graph comes nearer to it each time"
        )

    def _once(self, frame: pa.Table, schema: Schema) -> pa.Table:
        assert self._part is not None
        try:
            plan = Plan(self._part, schema)
        except ColumnNotFoundError as e:
            raise OperatorError(
                f"{self.label}: a part that is repeated must make the columns it takes in; {e}"
            ) from e
        values: dict[Node, Any] = {}
        for node in plan.nodes:
            if isinstance(node.op, Selection):
                values[node] = frame.select(plan.schemas[node].column_names)
                continue
            names = list(plan.inputs[node].schema.column_names)
            taken = plan.sources(node, names)
            given = [as_table(values[s]).select(n) for s, n in taken]
            columns = {n: part.column(n) for part in given for n in part.column_names}
            values[node] = run(node.op, pa.table(columns), plan.inputs[node])
        return as_table(values[self._part])


def _cut(end: Node) -> Node:
    """The part alone: what was its entrance is the data now."""
    new: dict[Node, Node] = {}
    inside = _inside(end)
    for node in list_nodes(end):
        if isinstance(node.op, Entrance):
            new[node] = Node(Selection(ColumnSelector("*")))
        elif node in inside:
            parents = [new[p] for p in node.parents]
            new[node] = Node(node.op, parents, [new[d] for d in node.dependencies])
    return new[end]


def _inside(end: Node) -> set[Node]:
    """The nodes between an end and the entrances, or the data."""
    found, todo = set(), [end]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [] if isinstance(node.op, Entrance) else node.sources
    return found
