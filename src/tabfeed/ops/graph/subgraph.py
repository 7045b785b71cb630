"""Parts of a graph: named, repeated until a condition holds, moved to other inputs, cut down.

A part that is repeated stands in the graph as it is written, so its operators are fitted like all
others, on what comes in first. Behind its end stands a `Loop`, which applies the part to its own
result until the condition holds. An `Entrance` marks where the part begins, so that a saved graph
can be loaded again without keeping the part twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa

from tabfeed.arguments import call
from tabfeed.errors import ColumnNotFoundError, GraphError, OperatorError
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.frames import as_table, cast_table, gather, run, to_polars
from tabfeed.ops.graph.node import (
    Concat,
    Dependencies,
    Exclude,
    Node,
    Selection,
    Structural,
    Subset,
    list_nodes,
)
from tabfeed.ops.graph.plan import Plan
from tabfeed.schema import Schema
from tabfeed.schema.schema import ColumnSelector

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
            inputs = plan.inputs[node]
            taken = plan.sources(node, inputs.schema.column_names)
            given = gather([(values[s], names) for s, names in taken])
            values[node] = run(node.op, given, inputs)
        return as_table(values[self._part])


def _cut(end: Node) -> Node:
    """The part alone: what was its entrance is the data now."""
    new: dict[Node, Node] = {}
    inside = _inside(end)
    for node in list_nodes(end):
        if isinstance(node.op, Entrance):
            new[node] = Node(Selection(ColumnSelector("*")))
        elif node in inside:
            new[node] = node.on(new)
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


def remove_inputs(output: Node, names: list[str]) -> Node:
    """The graph without `names` and without all that is made of nothing else.

    An operator that needed a removed column only in order to learn keeps what it learned.
    """
    _refuse_unknown(output, names)
    new: dict[Node, Node | None] = {}
    for node in list_nodes(output):
        new[node] = _without(node, names, new)
    found = new[output]
    if found is None:
        raise GraphError(f"nothing is left of the graph without {names}")
    return found


def _refuse_unknown(output: Node, names: list[str]) -> None:
    """Refuse a name that is no raw column, where the graph names all of them."""
    selections = [n.op for n in list_nodes(output) if isinstance(n.op, Selection)]
    if any(op.is_open for op in selections):
        return
    known: dict[str, None] = {}
    for op in selections:
        groups = (n for g in op.selector.subgroups for n in g)
        known.update(dict.fromkeys([*op.selector.names, *groups]))
    for name in names:
        if name not in known:
            raise ColumnNotFoundError(name, known, where="the graph's inputs")


def _without(node: Node, names: list[str], new: dict[Node, Node | None]) -> Node | None:
    if isinstance(node.op, Selection):
        return _shrink(node, node.op, names)
    parents = [p for p in (new[q] for q in node.parents) if p is not None]
    if not parents or (
        isinstance(node.op, Dependencies) and set(node.op.selector.names) <= set(names)
    ):
        return None
    if isinstance(node.op, Exclude) and len(parents) < len(node.parents):
        return parents[0]
    dependencies = [new[d] for d in node.dependencies]
    if None in dependencies and not node.op.dependencies_only_for_fit:
        raise GraphError(f"{node!r} needs a column that is to be removed: {names}")
    kept = [d for d in dependencies if d is not None]
    if parents == list(node.parents) and kept == list(node.dependencies):
        return node
    if isinstance(node.op, Concat) and node.op.grouped:
        return _regrouped(node, new)
    return Node(_narrowed(node, names), parents, kept)


def _regrouped(node: Node, new: dict[Node, Node | None]) -> Node | None:
    """Nodes side by side, without the groups that lost a column."""
    assert isinstance(node.op, Concat)
    same = [new[p] is p for p in node.parents]
    whole = [g for g in node.op.grouped if all(same[i] for i in g)]
    lost = {i for g in node.op.grouped for i in g} - {i for g in whole for i in g}
    place: dict[int, int] = {}
    parents: list[Node] = []
    for i, parent in enumerate(node.parents):
        kept = new[parent]
        if kept is not None and i not in lost:
            place[i] = len(parents)
            parents.append(kept)
    return Node(Concat([[place[i] for i in g] for g in whole]), parents) if parents else None


def _narrowed(node: Node, names: list[str]) -> Operator:
    """A choice of columns that no longer names what is gone; other operators as they are."""
    if isinstance(node.op, Subset | Exclude) and node.op.selector is not None:
        old = node.op.selector
        kept = ColumnSelector([n for n in old.names if n not in names], subgroups=old.subgroups,
                              tags=old.tags, dtypes=old.dtypes, excluded=old.excluded)  # fmt: skip
        return type(node.op)(kept)
    return node.op


def _shrink(node: Node, op: Selection, names: list[str]) -> Node | None:
    """The selection without `names`; None if it named nothing else."""
    selector = op.selector
    left = [n for n in selector.names if n not in names]
    groups = [g for g in selector.subgroups if not set(g) & set(names)]
    if op.is_open:
        return Node(Selection(selector, [*op.without, *names]))
    if not left and not groups:
        return None
    if len(left) == len(selector.names) and len(groups) == len(selector.subgroups):
        return node
    return Node(Selection(ColumnSelector(left, subgroups=groups), op.without))


def replant(output: Node, parent: Node) -> Node:
    """The same graph, taking its columns from `parent` instead of from the data."""
    new: dict[Node, Node] = {}
    for node in list_nodes(output):
        if isinstance(node.op, Selection):
            new[node] = Node(Subset(node.op.selector), [parent])
        else:
            new[node] = node.on(new)
    return new[output]


class Subgraph(Structural):
    """A part of a graph under a name, which `Workflow.get_subworkflow` finds.

    Alone it takes its columns from the data; after ``>>`` from the node in front of it.

    Parameters
    ----------
    name
        The name.
    output_node
        The part's last node.
    loop_until
        From a Polars frame, the part's result on one partition, to whether that is enough; until
        then the part is applied to its own result again. It must make the columns it takes in.

    Examples
    --------
    >>> from tabfeed import Workflow, ops
    >>> halve = ops.Subgraph("halve", ["x"] >> ops.LambdaOp(lambda col: col / 2),
    ...                      loop_until=lambda df: df["x"].max() < 1)
    >>> Workflow(halve).transform({"x": [8.0, 1.0]})
    {'x': array([0.5   , 0.0625])}
    >>> node = Node.of(Subgraph("numbers", ["x"] >> ops.FillMissing())) + ["y"]
    >>> node
    <[numbers of [FillMissing of [x]], y]>
    """

    def __init__(
        self,
        name: str,
        output_node: Any = None,
        loop_until: Callable[[pl.DataFrame], Any] | None = None,
    ) -> None:
        self.name, self.loop_until = name, loop_until
        self._output_node = None if output_node is None else Node.of(output_node)

    @property
    def label(self) -> str:
        """The part's name."""
        return self.name

    def params(self) -> dict[str, Any]:
        """The name; the part itself is the node's parent."""
        return {"name": self.name}

    def attach(self, parent: Node | None) -> Node | None:
        """The part, its end marked with the name."""
        if self._output_node is None:
            return None if parent is None else Node(self, [parent])
        if parent is not None and self.loop_until is not None:
            parent = Node(Entrance(), [parent])
        end = self._output_node if parent is None else replant(self._output_node, parent)
        if self.loop_until is not None:
            return Node(Loop(self.name, self.loop_until), [end])
        return Node(Subgraph(self.name), [end])
