"""A graph without some of the raw columns: what a served model needs, without the labels."""

from __future__ import annotations

from tabfeed.errors import ColumnNotFoundError, GraphError
from tabfeed.ops.base import Operator
from tabfeed.ops.graph.node import (
    Concat,
    Dependencies,
    Exclude,
    Node,
    Selection,
    Subset,
    list_nodes,
)
from tabfeed.schema.selector import ColumnSelector

__all__ = ["remove_inputs", "replant"]


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
            new[node] = Node(
                node.op, [new[p] for p in node.parents], [new[d] for d in node.dependencies]
            )
    return new[output]
