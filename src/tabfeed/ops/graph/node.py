"""The graph of operators: nodes that never change.

A node is an operator and the nodes it takes its columns from. Everything a user writes
(``["a", "b"] >> Op()``, ``x + y``, ``x - "b"``, ``x["a"]``) makes a new node and leaves
the old ones alone, so a node can be part of many workflows.

Rows are followed too. An operator that drops, adds or moves rows starts a new *row set*;
columns of different row sets can never be put side by side, and trying to is refused
here, while the graph is being built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from tabfeed.errors import GraphError, TabfeedError
from tabfeed.ops.base import Inputs, Operator
from tabfeed.schema import ColumnSchema, Schema
from tabfeed.schema.schema import ColumnSelector

_MOST_SHOWN = 500  # characters


class Node:
    """An operator and where its columns come from.

    Examples
    --------
    >>> from tabfeed import ops
    >>> a = ["x", "y"] >> ops.FillMissing()
    >>> b = a + ["label"]
    >>> a
    <FillMissing of [x, y]>
    >>> b is a, [p.op.label for p in b.parents]
    (False, ['FillMissing', 'Selection'])
    """

    __slots__ = ("__weakref__", "dependencies", "op", "parents", "rows", "sources")

    op: Operator
    parents: tuple[Node, ...]
    dependencies: tuple[Node, ...]
    sources: tuple[Node, ...]  # parents and dependencies
    rows: Node | None

    def __init__(
        self,
        op: Operator,
        parents: Iterable[Node] = (),
        dependencies: Iterable[Node] | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "parents", tuple(parents))
        put(self, "op", op.placed(self.parents))
        if dependencies is None:
            dependencies = [_dependency(d, self.parents) for d in op.dependencies]
        put(self, "dependencies", tuple(dependencies))
        put(self, "sources", self.parents + self.dependencies)
        put(self, "rows", _row_set(self))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"nodes never change; {name!r} cannot be set")

    @classmethod
    def of(cls, what: Any) -> Node:
        """A node from a node, a name, a selector, or a list that mixes them."""
        if isinstance(what, Node):
            return what
        if isinstance(what, Operator):
            alone: Node | None = what.attach(None)
            if alone is not None:
                return alone
            raise GraphError(f"{what!r} has no columns yet: write [columns] >> {what.label}(...)")
        if isinstance(what, str | ColumnSelector):
            return cls(Selection(ColumnSelector.of(what)))
        if isinstance(what, list | tuple):
            return _from_list(what)
        raise GraphError(
            f"columns are given as names, lists of names, ColumnSelector or nodes, not {what!r}"
        )

    # -- making new nodes ---------------------------------------------------------

    def __rshift__(self, what: Any) -> Node:
        node: Node = as_operator(what).attach(self)
        return node

    def __add__(self, other: Any) -> Node:
        return self if other is None else concat([self, Node.of(other)])

    def __radd__(self, other: Any) -> Node:
        return self if other is None else concat([Node.of(other), self])

    def __sub__(self, other: Any) -> Node:
        if isinstance(other, Node):
            return Node(Exclude(None), [self, other])
        return Node(Exclude(ColumnSelector.of(other)), [self])

    def __getitem__(self, columns: Any) -> Node:
        return Node(Subset(ColumnSelector.of(columns)), [self])

    # -- looking at it ------------------------------------------------------------

    @property
    def input_schema(self) -> Schema:
        """The columns that go in, as far as they are known: fitted, with types; else by name."""
        from tabfeed.ops.graph.plan import Plan

        inputs = Plan.without_data(self).inputs[self]
        return inputs.schema.select(inputs.names)

    @property
    def output_schema(self) -> Schema:
        """The columns that come out, as far as they are known."""
        from tabfeed.ops.graph.plan import Plan

        return Plan.without_data(self).output_schema

    @property
    def input_columns(self) -> list[str]:
        """Names of the columns that go in."""
        return self.input_schema.column_names

    @property
    def output_columns(self) -> list[str]:
        """Names of the columns that come out."""
        return self.output_schema.column_names

    @property
    def graph(self) -> Any:
        """The graph up to here, as a picture."""
        from tabfeed.ops.graph.picture import Picture

        return Picture(self)

    def remove_inputs(self, names: Iterable[str] | str) -> Node:
        """The same graph without these raw columns and all that is made of nothing else."""
        from tabfeed.ops.graph.subgraph import remove_inputs

        return remove_inputs(self, [names] if isinstance(names, str) else list(names))

    def on(self, new: Mapping[Node, Node]) -> Node:
        """The same operator on other nodes: on ``new[n]`` where it took columns from ``n``."""
        parents = [new.get(p, p) for p in self.parents]
        return Node(self.op, parents, [new.get(d, d) for d in self.dependencies])

    def describe(self) -> str:
        """Operator and columns in a few words, as far as they are known without data."""
        text = _inside(self)
        return f"[{text}]" if isinstance(self.op, Selection | Concat) else text

    def __reduce__(self) -> tuple[type[Node], tuple[Any, ...]]:
        return Node, (self.op, self.parents, self.dependencies)

    def __repr__(self) -> str:
        text = self.describe()
        return f"<{text if len(text) < 120 else text[:117] + '...'}>"


ColumnSelector._start = lambda selector: Node.of(
    selector
)  # so that ``ColumnSelector("C*") >> function`` works too


class Structural(Operator):
    """Chooses among columns; nothing is computed."""

    eager = True

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """The chosen columns."""
        return frame.select(self.output_schema(inputs).column_names)

    def transform_row(self, row: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        """The chosen values."""
        return {n: row[n] for n in self.output_schema(inputs).column_names}


class Selection(Structural):
    """Columns of the data as it comes."""

    def __init__(self, selector: ColumnSelector, without: Iterable[str] = ()) -> None:
        self.selector, self.without = selector, tuple(without)

    def output_schema(self, inputs: Inputs) -> Schema:
        """The columns that the selector finds."""
        whole = self._with_absent(inputs.schema)
        chosen = self.selector.resolve(whole)
        return whole.select([n for n in chosen if n not in self.without])

    def groups(self, schema: Schema) -> list[tuple[str, ...]]:
        """The groups of the columns found, `schema`, that are still whole."""
        found = self.selector.groups(self._with_absent(schema))
        return [g for g in found if all(n in schema for n in g)]

    def _with_absent(self, schema: Schema) -> Schema:
        """The schema, and columns for the names that are taken away and are not in it.

        Once fitted, a graph is planned for the columns that it uses alone.
        """
        if not (self.without or self.selector.excluded):
            return schema  # as it is: a graph may have a selection for each of many columns
        known = [n for n in schema.column_names if n not in self.without]
        absent = dict.fromkeys([*self.without, *self.selector.absent(schema)])
        return schema.select(known) + Schema(ColumnSchema(n) for n in absent)

    @property
    def is_open(self) -> bool:
        """Whether which columns it finds depends on the data."""
        selector = self.selector
        patterns = any(set("*?[") & set(n) for n in selector.names)
        return bool(selector.tags or selector.dtypes or patterns)

    @property
    def text(self) -> str:
        """The selection as one would write it."""
        named = [*self.selector.names, *(f"({', '.join(g)})" for g in self.selector.subgroups)]
        return ", ".join([*named, *(f"tag {t}" for t in self.selector.tags)]) or repr(self.selector)


class Concat(Structural):
    """Columns of several nodes side by side.

    ``grouped`` lists the numbers of the parents whose columns form one group.
    """

    def __init__(self, grouped: list[list[int]] | None = None) -> None:
        self.grouped = grouped or []


class Subset(Structural):
    """Some columns of a node."""

    def __init__(self, selector: ColumnSelector) -> None:
        self.selector = selector

    def output_schema(self, inputs: Inputs) -> Schema:
        """The columns chosen from the parent's."""
        names = self.selector.resolve(inputs.schema.select(inputs.names), where="the node")
        return inputs.schema.select(names)


class Dependencies(Subset):
    """Columns that an operator needs by name, and that operators before it made.

    Its parents are those of the operator, then the node that last changed the rows, if one did. The
    data as read no longer lines up with them, so a name means the first parent's column of it.
    """


class Exclude(Structural):
    """All but some columns of a node; which, a selector or a second node says."""

    def __init__(self, selector: ColumnSelector | None) -> None:
        self.selector = selector

    def output_schema(self, inputs: Inputs) -> Schema:
        """What is left. The plan removes a second node's columns from the inputs itself."""
        given = inputs.schema.select(inputs.names)
        if self.selector is None:
            return given
        return given.excluding(self.selector.resolve(given, where="the node"))


def concat(parts: list[Node], grouped: list[list[int]] | None = None) -> Node:
    """Put nodes side by side; sums of sums become one sum."""
    if grouped:
        return Node(Concat(grouped), parts)
    flat: list[Node] = []
    for part in parts:
        plain = isinstance(part.op, Concat) and not part.op.grouped
        flat.extend(part.parents if plain else [part])
    return Node(Concat(), list(dict.fromkeys(flat)))


def as_operator(what: Any) -> Operator:
    """An operator from an operator, its class, or a plain function of a column."""
    if isinstance(what, type) and issubclass(what, Operator):
        return what()
    if isinstance(what, Operator):
        return what
    if callable(what):
        from tabfeed.ops.columns import LambdaOp

        return LambdaOp(what)
    raise GraphError(f">> takes an operator, an operator class or a function, not {what!r}")


def list_nodes(output: Node) -> list[Node]:
    """Every node once, each after those it takes its columns from."""
    seen: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(output, False)]
    while stack:
        node, ready = stack.pop()
        if node in seen:
            continue
        if ready:
            seen[node] = None
            continue
        stack.append((node, True))
        stack.extend([(source, False) for source in reversed(node.sources)])
    return list(seen)


def _from_list(items: list[Any] | tuple[Any, ...]) -> Node:
    def plain(item: Any) -> bool:
        return isinstance(item, str) or (
            isinstance(item, list | tuple) and all(isinstance(i, str) for i in item)
        )

    if all(plain(item) for item in items):
        return Node(Selection(ColumnSelector(items)))
    parts: list[Node] = []
    grouped: list[list[int]] = []
    for item in items:
        if item is None:
            continue
        if isinstance(item, list | tuple):
            grouped.append(list(range(len(parts), len(parts) + len(item))))
            parts.extend(Node.of(i) for i in item)
            continue
        node = Node.of(item)
        if isinstance(node.op, Concat) and len(node.parents) > 1:
            grouped.append([len(parts)])  # [a + b] is a group as [["a", "b"]] is
        parts.append(node)
    return concat(parts, grouped)


def _inside(node: Node, left: int = _MOST_SHOWN) -> str:
    """A node in words, cut off behind `left` characters: paths through a graph can be countless."""
    if isinstance(node.op, Selection):
        return node.op.text
    before = "" if isinstance(node.op, Concat) else f"{node.op.label} of ["
    text = before
    for i, parent in enumerate(node.parents):
        if len(text) > left:
            return f"{text}..."
        text += (", " if i else "") + _inside(parent, left - len(text) - 1)
    return f"{text}]" if before else text


def _dependency(what: Any, parents: tuple[Node, ...]) -> Node:
    """The columns an operator needs beside its own; by name, from the rows it works on."""
    node = Node.of(what)
    if isinstance(what, Node) or not isinstance(node.op, Selection):
        return node
    names = node.op.selector.names
    changed = next((p.rows for p in parents if p.rows is not None), None)
    if changed is None:
        plain = not (node.op.is_open or node.op.selector.subgroups)
        made = _made(names, parents) if plain else []
        earlier = [Node(Dependencies(ColumnSelector(made)), parents)] if made else []
        rest = [n for n in names if n not in made]
        return concat([*earlier, Node.of(rest)]) if earlier and rest else (earlier or [node])[0]
    known = [_names(p) for p in (*parents, changed)]
    if all(k is not None for k in known) and not set(names) <= {n for k in known for n in k or ()}:
        return node  # a column of the data as it came: it will be refused
    return Node(Dependencies(node.op.selector), [*parents, changed])


def _made(names: Iterable[str], parents: tuple[Node, ...]) -> list[str]:
    """Those of the names that operators in front make, and that nothing there takes from the data.

    A name that is both means what the operators made of it; the plan sees to that.
    """
    before = {n for p in parents for n in list_nodes(p) if isinstance(n.op, Selection)}
    taken = {n for s in before if isinstance(s.op, Selection) for n in s.op.selector.names}
    wanted = [n for n in names if n not in taken]
    known = {n for p in parents for n in _names(p) or ()} if wanted else set()
    return [n for n in wanted if n in known]


def _names(node: Node) -> list[str] | None:
    """Names of a node's columns; None where they depend on the data."""
    from tabfeed.ops.graph.plan import Plan

    for found in list_nodes(node):
        if isinstance(found.op, Selection) and found.op.is_open:
            return None
    try:
        return Plan.without_data(node).output_schema.column_names
    except TabfeedError:
        return None


def _row_set(node: Node) -> Node | None:
    """The node that last changed the rows, None for the rows as they come."""
    sets = {s.rows: s for s in reversed(node.sources)}
    if len(sets) > 1:
        raise GraphError(_misaligned(node, sets))
    if node.op.changes_rows:
        return node
    return next(iter(sets)) if sets else None


def _misaligned(node: Node, sets: dict[Node | None, Node]) -> str:
    changed = next(r for r in sets if r is not None)
    other = next(n for r, n in sets.items() if r is not changed)
    return (
        f"{changed.op.label} drops, adds or moves rows, so its columns do not line up with "
        f"{other!r}. Put all columns that belong together in front of it: "
        f"(a + b + ...) >> {changed.op.label}(...), then choose with node[...]"
    )
