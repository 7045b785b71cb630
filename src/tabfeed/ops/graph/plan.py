"""What a graph comes to on given data: every node's columns, the phases, the columns to read.

A plan is made from a node and the schema of the data; nothing is read. Schemas of learning
operators become sharper once they are fitted (ranges, types), so a plan is made again
after each phase of a fit.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from tabfeed.arguments import add_note, is_users
from tabfeed.errors import (
    DuplicateColumnError,
    GraphError,
    OperatorError,
    SchemaError,
    TabfeedError,
    WorkflowError,
)
from tabfeed.lazy import cached_property
from tabfeed.ops.base import Inputs, StatOperator
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
from tabfeed.schema import ColumnSchema, Schema

Columns = dict[str, ColumnSchema]
_seen_data: weakref.WeakKeyDictionary[Node, Schema] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Phase:
    """Learning operators that are fitted in one pass over the data."""

    number: int
    nodes: tuple[Node, ...]
    columns: tuple[str, ...]


class Plan:
    """A graph resolved against a schema.

    Parameters
    ----------
    output
        The last node.
    source
        Schema of the data.
    on_inputs
        Called with each node and its inputs, before its output schema is computed.
    """

    def __init__(
        self,
        output: Node,
        source: Schema,
        *,
        on_inputs: Callable[[Node, Inputs], None] | None = None,
    ) -> None:
        self.output = output
        self.source = source
        self.nodes = list_nodes(output)
        self.inputs: dict[Node, Inputs] = {}
        self.schemas: dict[Node, Schema] = {}
        self.groups: dict[Node, tuple[tuple[str, ...], ...]] = {}
        self._made: dict[Node, Columns] = {}
        self._taken: dict[Node, Columns] = {}
        raw = Inputs.of(source)
        for node in self.nodes:
            inputs = raw if isinstance(node.op, Selection) else self._gather(node, raw)
            self.inputs[node] = inputs
            if on_inputs is not None:
                on_inputs(node, inputs)
            schema = self._resolve(node, inputs)
            self.schemas[node], self._made[node] = schema, {c.name: c for c in schema}
            self.groups[node] = self._output_groups(node, schema, inputs)

    @classmethod
    def without_data(cls, node: Node) -> Plan:
        """A plan for a node alone: with the schema it was last fitted on, or with names only."""
        if node in _seen_data:
            return cls(node, _seen_data[node])
        names: dict[str, None] = {}
        for found in list_nodes(node):
            if isinstance(found.op, Selection):
                if found.op.selector.tags or found.op.selector.dtypes:
                    raise GraphError(f"{found!r} depends on the data; fit a workflow first")
                groups = found.op.selector.subgroups
                names.update(
                    dict.fromkeys([*found.op.selector.names, *(n for g in groups for n in g)])
                )
        return cls(node, Schema(ColumnSchema(n) for n in names))

    def without_unused_columns(self) -> Plan:
        """The same plan for data that has no more columns than the graph uses."""
        selections = [n for n in self.nodes if isinstance(n.op, Selection)]
        used = {c for n in selections for c in self._made[n]}
        new = copy.copy(self)
        new.source = self.source.select([n for n in self.source.column_names if n in used])
        new.inputs = {**self.inputs, **dict.fromkeys(selections, Inputs.of(new.source))}
        return new

    def remember(self) -> None:
        """Let `without_data` know on what data this graph's nodes were fitted."""
        for node in self.nodes:
            _seen_data[node] = self.source

    @property
    def output_schema(self) -> Schema:
        """The columns that come out."""
        return self.schemas[self.output]

    # -- resolving ----------------------------------------------------------------

    def _resolve(self, node: Node, inputs: Inputs) -> Schema:
        """The columns that a node makes of its inputs."""
        try:
            return node.op.output_schema(inputs)
        except WorkflowError as e:
            raise OperatorError(f"{node!r}: {e}") from e
        except TabfeedError as e:
            selection = isinstance(node.op, Selection)
            users = [n for n in self.nodes if node in n.sources] if selection else []
            e.args = (f"{e}; it is selected in {next(iter(users), node)!r}", *e.args[1:])
            raise
        except Exception as e:
            if is_users(e):
                add_note(e, f"raised by the function of {node!r}")
                raise
            raise OperatorError(
                f"{node!r} cannot say what it makes: {type(e).__name__}: {e}"
            ) from e

    def _gather(self, node: Node, raw: Inputs) -> Inputs:
        parents = node.parents
        columns: Columns = {}
        owner: dict[str, Node] = {}
        gone: set[str] = set()
        if isinstance(node.op, Exclude) and len(parents) > 1:
            gone, parents = set(self._made[parents[1]]), parents[:1]
        for parent in parents:
            for name, column in self._made[parent].items():
                if isinstance(node.op, Dependencies) and name in columns:
                    continue
                if owner.setdefault(name, parent) is not parent:
                    self._refuse_twice(name, owner[name], parent, node)
                if name not in gone:
                    columns[name] = column
        names = tuple(columns)
        for dependency in node.dependencies:
            for name, column in self._made[dependency].items():
                columns.setdefault(name, column)
        groups = self._input_groups(node, parents, names)
        if not isinstance(node.op, Structural):
            for column in columns.values():
                if column.dtype is not None:
                    _require_usable(node, column.name)
        self._taken[node] = columns
        return replace(raw, schema=Schema(columns.values()), names=names, groups=groups)

    def _refuse_twice(self, name: str, a: Node, b: Node, node: Node) -> None:
        if self.origin(a, name) == self.origin(b, name):
            return
        raise DuplicateColumnError(
            f"{node!r} would have two columns named {name!r}, from {a!r} and {b!r}; "
            "use Rename on one of them, or take it away with - "
        )

    def origin(self, node: Node, name: str) -> tuple[Node | None, str]:
        """The node that made a column, looking through those that only choose columns."""
        while isinstance(node.op, Structural):
            if isinstance(node.op, Selection):
                return None, name
            node = next(p for p in node.parents if name in self._made[p])
        return node, name

    def _input_groups(
        self, node: Node, parents: tuple[Node, ...], names: tuple[str, ...]
    ) -> tuple[tuple[str, ...], ...]:
        grouped = node.op.grouped if isinstance(node.op, Concat) else []
        groups: list[tuple[str, ...]] = []
        inside = {i for numbers in grouped for i in numbers}
        for i, parent in enumerate(parents):
            if i not in inside:
                groups += self.groups[parent]
        for numbers in grouped:
            members = (n for i in numbers for n in self._made[parents[i]])
            groups.append(tuple(dict.fromkeys(members)))
        known = set(names)
        return tuple(dict.fromkeys(g for g in groups if set(g) <= known))

    def _output_groups(
        self, node: Node, schema: Schema, inputs: Inputs
    ) -> tuple[tuple[str, ...], ...]:
        """Groups survive an operator that keeps their names."""
        made = self._made[node]
        if isinstance(node.op, Selection):
            kept = node.op.groups(schema) if node.op.selector.subgroups else []
        else:
            kept = [g for g in inputs.groups if made.keys() >= set(g)]
        if isinstance(node.op, Subset) and node.op.selector.subgroups:
            named = node.op.selector.groups(inputs.schema.select(inputs.names), where="the node")
            kept = list(dict.fromkeys([*(g for g in kept if len(g) > 1), *named]))
        covered = {n for g in kept for n in g}
        return (*kept, *((n,) for n in made if n not in covered))

    # -- what to read and what to run ---------------------------------------------

    def required(self, targets: Iterable[Node]) -> tuple[dict[Node, list[str]], list[str]]:
        """Columns needed of each node, and of the data, to compute `targets` whole."""
        need: dict[Node, set[str]] = {t: set(self._made[t]) for t in targets}
        read: set[str] = set()
        for node in reversed(self.nodes):
            if node not in need:
                continue
            if isinstance(node.op, Selection):
                read |= need[node]
                continue
            for source, names in self.sources(node, need[node]):
                need.setdefault(source, set()).update(names)
        ordered = {n: [c for c in self._made[n] if c in cols] for n, cols in need.items()}
        return ordered, [c for c in self.source.column_names if c in read]

    def sources(
        self, node: Node, wanted: Iterable[str], *, fitting: bool = False
    ) -> list[tuple[Node, list[str]]]:
        """Which columns a node takes from which node, each column once.

        While `fitting` the node itself, those too that it needs only to learn.
        """
        structural = isinstance(node.op, Structural)
        left = set(wanted if structural else self._taken[node])
        parents = node.parents[:1] if isinstance(node.op, Exclude) else node.parents
        skip = node.op.dependencies_only_for_fit and not fitting
        out = []
        for source in parents if skip else parents + node.dependencies:
            names = [n for n in self._made[source] if n in left]
            left -= set(names)
            if names or node.op.changes_rows:
                out.append((source, names))
        return out

    @cached_property
    def levels(self) -> dict[Node, int]:
        """For each node, how many phases must be over before it can be computed."""
        level: dict[Node, int] = {}
        for node in self.nodes:
            below = (level[s] + isinstance(s.op, StatOperator) for s in node.sources)
            level[node] = max(below, default=0)
        return level

    @cached_property
    def phases(self) -> list[Phase]:
        """The passes over the data that a fit takes."""
        learners = [n for n in self.nodes if isinstance(n.op, StatOperator)]
        found = []
        for number, level in enumerate(sorted({self.levels[n] for n in learners})):
            nodes = tuple(n for n in learners if self.levels[n] == level)
            sources = {s for n in nodes for s in n.sources}
            columns = self.required(sources)[1]
            found.append(Phase(number + 1, nodes, tuple(columns)))
        return found

    def dictionary_columns(self, columns: Iterable[str]) -> list[str]:
        """Text columns that some operator would rather have dictionary-encoded."""
        wanted: set[str] = set()
        for node in self.nodes:
            if node.op.reads_dictionaries:
                for name in self.inputs[node].names:
                    for parent in node.parents:
                        if name in self._made[parent]:
                            origin, raw = self.origin(parent, name)
                            wanted |= {raw} if origin is None else set()
        return [c for c in columns if c in wanted and _is_text(self.source[c].dtype)]

    @cached_property
    def source_types(self) -> dict[str, pa.DataType | None]:
        """Types of the data's columns."""
        return {c.name: c.dtype for c in self.source}

    def check_types(self, types: Mapping[str, pa.DataType | None]) -> None:
        """Refuse data whose columns are of another kind than those planned for."""
        for name, given in types.items():
            planned = self.source_types[name]
            if planned is None or given is None or planned == given:
                continue
            if _alike(kind_of(planned), kind_of(given)):
                continue
            raise SchemaError(
                f"column {name!r} is {given} here and was {planned} when the workflow was fitted; "
                f"convert it, or fit again ({self._needed_by(name)})"
            )

    def _needed_by(self, name: str) -> str:
        """Which nodes take a raw column in, in words."""
        nodes = [
            n
            for n in self.nodes
            for p in n.sources
            if isinstance(p.op, Selection) and p in self.schemas and name in self.schemas[p]
        ]
        shown = [f"{n!r}" for n in dict.fromkeys(nodes) if not isinstance(n.op, Structural)]
        return f"it goes into {', '.join(shown)}" if shown else "it goes through as it is"


def _require_usable(node: Node, name: str) -> None:
    """Refuse a name that Polars can't hold, or takes for a pattern, which means other columns."""
    pattern = name == "*" or (name.startswith("^") and name.endswith("$"))
    if pattern or "\0" in name:
        why = "reads as a pattern" if pattern else "cannot hold"
        raise OperatorError(
            f"{node!r}: a column cannot be named {name!r}, which Polars {why}; "
            "rename it in the data"
        )


def kind_of(dtype: pa.DataType) -> str:
    """Types of one kind may stand in for each other: any number for any number, say."""
    if pa.types.is_dictionary(dtype):
        return kind_of(dtype.value_type)
    if pa.types.is_null(dtype):
        return "nothing"
    if hasattr(dtype, "value_type"):
        return f"list of {kind_of(dtype.value_type)}"
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_boolean(dtype):
        return "number"
    if _is_text(dtype):
        return "text"
    return "time" if pa.types.is_temporal(dtype) else str(dtype)


def _alike(planned: str, given: str) -> bool:
    """Whether kinds are the same; nulls, and lists without values, are of any kind."""
    prefix = "list of "
    while planned.startswith(prefix) and given.startswith(prefix):
        planned, given = planned[len(prefix) :], given[len(prefix) :]
    return planned == given or "nothing" in (planned, given)


def _is_text(dtype: pa.DataType | None) -> bool:
    if dtype is None:
        return False
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_string_view(dtype)
    )
