"""Workflow: a graph of operators that is fitted once and applied anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tabfeed.budget import parse_bytes
from tabfeed.display import box
from tabfeed.errors import (
    ArgumentError,
    ColumnNotFoundError,
    GraphError,
    NotFittedError,
    TabfeedError,
)
from tabfeed.execute import Executor, as_executor, current_executor
from tabfeed.io import Dataset
from tabfeed.io.memory_needs import few_readers
from tabfeed.io.shuffle.distributed import is_remote
from tabfeed.ops.base import Operator, StatOperator
from tabfeed.ops.categorify import Categorify
from tabfeed.ops.frames import open_frame
from tabfeed.ops.graph.node import Concat, Node, Selection, list_nodes
from tabfeed.ops.graph.plan import Plan
from tabfeed.ops.graph.subgraph import Loop, Subgraph
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.schema import Schema
from tabfeed.schema.column import counted
from tabfeed.workflow.compiled import CompiledGraph, WithHalo, need_halo
from tabfeed.workflow.fit import (
    first_shuffle,
    fit_graph,
    mapped,
    shuffled,
    small_partitions,
    unchanged_on_failure,
)


class Workflow:
    """Features, made by a graph of operators.

    Parameters
    ----------
    output_node
        The graph's end: a node, or a list of nodes and names.
    client
        A ``distributed.Client``: fitting, and writing what `transform` makes of a dataset, is done
        by the workers of its cluster.
    executor
        Who does the work, in place of a client. Without either, the executor that is set when the
        work starts (`tabfeed.Distributed`, `tabfeed.set_client`); else threads of this machine.

    Examples
    --------
    >>> from tabfeed import ops
    >>> conts = ["x"] >> ops.FillMissing() >> ops.Normalize()
    >>> workflow = Workflow(conts + ["label"])
    >>> workflow.fit({"x": [1.0, None, 2.0], "label": [0, 1, 0]})
    <Workflow of FillMissing, Normalize, fitted, 2 columns out>
    >>> workflow.transform({"x": [1.0], "label": [1]})
    {'x': array([0.]), 'label': array([1])}
    """

    def __init__(
        self, output_node: Any, *, client: Any = None, executor: Executor | None = None
    ) -> None:
        self.output_node = Node.of(output_node)
        if client is not None and executor is not None:
            raise ArgumentError("give client= or executor=, not both: a client is one")
        self._chosen = executor if client is None else as_executor(client)
        self._source: Schema | None = None
        self._program: CompiledGraph | None = None
        _refuse_shared_operators(self.output_node)

    @property
    def executor(self) -> Executor:
        """Who does the work now."""
        return self._chosen or current_executor()

    # -- fitting ------------------------------------------------------------------

    def fit(
        self,
        dataset: Any,
        *,
        memory_limit: int | float | str | None = None,
        executor: Executor | None = None,
    ) -> Workflow:
        """Learn from the data.

        Parameters
        ----------
        dataset
            A `Dataset`, or anything one is made of.
        memory_limit
            Most memory that what is learned may take while fitting (``"1GB"``, ``0.25`` of what is
            free); half of what is free by default. Beyond it, it goes to disk. DuckDB, Polars and
            the partitions in work take some 300 MB, however small it is. An operator behind
            one that looks values up (`tabfeed.ops.Categorify`, say) needs that one's table in
            memory to learn; where it is larger than the limit, that is an error. So is a block of
            Avro, a compressed record batch of Arrow, or a row or page of Parquet that takes over
            half of it to read.
        executor
            Who does the work, if not this workflow's executor.
        """
        self._fit(dataset, memory_limit, executor, update=False)
        return self

    def _fit(self, dataset: Any, limit: Any, executor: Executor | None, *, update: bool) -> Dataset:
        data = _as_dataset(dataset)
        if not update:
            _check_taken(self.output_node, data.schema)
        most = parse_bytes(0.5 if limit is None else limit, name="memory_limit")
        memory = MemoryManager(most)
        who = executor or self.executor
        if limit is not None:
            used = Plan(self.output_node, data.schema).without_unused_columns().source
            columns = data.columns_read(used.column_names)
            who = few_readers(data.fileset, data.table.partitioning.pieces, columns, most, who)
        pieces = small_partitions(data, memory, who)
        with unchanged_on_failure(self.output_node, memory):
            fit_graph(self.output_node, pieces, who, memory, update=update)
            self._use(Plan(self.output_node, data.schema))
        return data

    def _use(self, plan: Plan) -> None:
        """Run what a plan says from now on, and ask data for no more columns than it uses."""
        used = plan.without_unused_columns()
        used.remember()
        self._source = used.source
        self._program = CompiledGraph(used)

    def fit_schema(self, schema: Schema) -> Workflow:
        """Resolve the graph against a schema; enough where no operator learns."""
        _check_taken(self.output_node, schema)
        self._use(Plan(self.output_node, schema))
        return self

    def fit_transform(self, dataset: Any, *, memory_limit: int | float | str | None = None) -> Any:
        """Fit, and transform the same data as training data.

        This differs from ``fit`` then ``transform`` where an operator must not let a row's own
        target leak into its features (`tabfeed.ops.TargetEncoding`).
        """
        if isinstance(dataset, Dataset):
            self.fit(dataset, memory_limit=memory_limit)
            return self._transform_dataset(dataset, training=True)
        table, back = open_frame(dataset)
        self.fit(Dataset(table), memory_limit=memory_limit)
        return back(self.program(table, training=True))

    def update(
        self, dataset: Any, *, memory_limit: int | float | str | None = None
    ) -> dict[str, int]:
        """Learn more data on top of what is known.

        Ids that exist stay, new values are appended; counts and moments become those of both. An
        operator behind another learning operator sees the new data as the updated one makes it.

        Returns
        -------
        dict
            For each categorical output column, how many rows its embedding table must grow by.
        """
        before = self._cardinalities()
        source = self.input_schema
        data = _as_dataset(dataset)
        self.program.plan.check_types({n: data.schema[n].dtype for n in source.column_names})
        self._fit(data, memory_limit, None, update=True)
        self._use(Plan(self.output_node, source))
        return {n: after - before[n] for n, after in self._cardinalities().items()}

    def _cardinalities(self) -> dict[str, int]:
        """Rows of each column's embedding table; one that columns share counts as a whole."""
        sized = [c for c in self.output_schema if c.embedding_size is not None]
        rows = {c.name: c.embedding_size[0] for c in sized if c.embedding_size is not None}
        for name, op in self._encoders().items():
            if op.single_table:
                rows[name] = max(op.cardinalities_.values())
        return rows

    def clear_stats(self) -> Workflow:
        """Forget everything learned."""
        for node in list_nodes(self.output_node):
            if isinstance(node.op, StatOperator):
                node.op.forget()
        self._source = self._program = None
        return self

    # -- transforming -------------------------------------------------------------

    @property
    def program(self) -> CompiledGraph:
        """The runnable form of the fitted graph."""
        if self._program is None:
            self._require_nothing_to_learn()
            raise NotFittedError("the workflow has not seen data yet; call fit(dataset) first")
        return self._program

    def _require_nothing_to_learn(self) -> None:
        for node in list_nodes(self.output_node):
            if isinstance(node.op, StatOperator) and not node.op.is_fitted:
                raise NotFittedError(
                    f"{node!r} has not been fitted; call workflow.fit(dataset) first"
                )

    def transform(self, data: Any) -> Any:
        """Apply to data; what comes out is of the kind that went in.

        Parameters
        ----------
        data
            A `Dataset` (the result is lazy), a Polars or pandas frame, an Arrow table, a dict of
            arrays, a dict of single values, which is one row, or a list of such rows.

        Notes
        -----
        Numbers of another type than the workflow was fitted on are converted to it. A value that
        the type cannot hold (a fraction or 2**40 in an int32 column) is an error that names the
        column, in a row as in a table. A missing value is None, or NaN where the column is not one
        of fractions.
        """
        if isinstance(data, Dataset):
            self._meet(data.schema)
            return self._transform_dataset(data, training=False)
        if isinstance(data, Mapping) and self._is_row(data):
            return self.program.rows.one(data)
        if isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
            return self.program.rows.several(data)
        table, back = open_frame(data)
        self._meet(Schema.from_arrow(table.schema))
        return back(self.program(table))

    def _meet(self, schema: Schema) -> None:
        """A graph that learns nothing needs no fit: it takes its columns from any data."""
        if self._program is None:
            try:
                plan = Plan(self.output_node, schema)  # may show that an operator needs no fit
            except TabfeedError:
                self._require_nothing_to_learn()
                raise
            self._require_nothing_to_learn()
            self._use(plan)

    def _is_row(self, data: Mapping[str, Any]) -> bool:
        """Whether a dict holds single values: then some column cannot be an array of rows."""
        if any(not _is_sequence(v) for v in data.values()):
            return True
        if self._source is None or any(
            n in data and not self._source[n].is_list for n in self._source.column_names
        ):
            return False
        lists = [data[n] for n in self._source.column_names if n in data]
        inside = [v for values in lists for v in values if v is not None]
        return bool(inside) and not any(_is_sequence(v) for v in inside)

    def _transform_dataset(self, dataset: Dataset, *, training: bool) -> Dataset:
        output, data = self.output_node, dataset
        memory = MemoryManager(parse_bytes(0.5))
        while (node := first_shuffle(output, data)) is not None:
            output, data = shuffled(output, node, data, memory, self.executor)
        if output is self.output_node:
            program = self.program
            program.plan.check_types({n: data.schema[n].dtype for n in program.columns})
        else:
            program = CompiledGraph(Plan(output, data.schema))
        fn: Any = partial(program, training=True) if training else program
        around = program.reach != (0, 0) and need_halo(program, data)
        if around:
            fn = WithHalo(program, data, training=training)
        numbered = around or (training and program.numbered)
        return mapped(
            data.on(self.executor if is_remote(self.executor) else None),
            program,
            fn,
            numbered=numbered,
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        """Transform an Arrow table: a fitted workflow is a function from table to table."""
        result: pa.Table = self.transform(table)
        return result

    def decode(self, frame: Any) -> Any:
        """Ids back to values, in every column that Categorify made; other columns as they are."""
        table, back = open_frame(frame)
        encoders = self._encoders()
        columns = [
            encoders[name].decode(column, name) if name in encoders else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return back(pa.table(columns, names=table.column_names))

    def _encoders(self) -> dict[str, Categorify]:
        plan, found = self.program.plan, {}
        for name in self.output_schema.column_names:
            node, made = plan.origin(self.output_node, name)
            if node is not None and isinstance(node.op, Categorify):
                found[made] = node.op
        return found

    # -- schemas ------------------------------------------------------------------

    @property
    def input_schema(self) -> Schema:
        """The raw columns that the graph uses."""
        if self._source is None:
            raise NotFittedError("the workflow has not seen data yet; call fit(dataset) first")
        return self._source

    @property
    def output_schema(self) -> Schema:
        """The columns that come out, with what is known of them."""
        return self.program.plan.output_schema

    @property
    def input_dtypes(self) -> dict[str, Any]:
        """Types of the raw columns."""
        return {c.name: c.dtype for c in self.input_schema}

    @property
    def output_dtypes(self) -> dict[str, Any]:
        """Types of the columns that come out."""
        return {c.name: c.dtype for c in self.output_schema}

    # -- other workflows made from it ---------------------------------------------

    def remove_inputs(self, names: Iterable[str] | str) -> Workflow:
        """A workflow that does without some raw columns, such as the label, and what needs them."""
        gone = [names] if isinstance(names, str) else list(names)
        for name in gone:
            if not isinstance(name, str):
                raise ArgumentError(f"remove_inputs takes names of columns, not {name!r}")
        if self._source is not None:
            for name in gone:
                if name not in self._source:
                    known = self._source.column_names
                    raise ColumnNotFoundError(name, known, where="the workflow's inputs")
        new = Workflow(self.output_node.remove_inputs(gone), executor=self._chosen)
        if self._source is not None:
            new._use(Plan(new.output_node, self._source.without(gone)))
        return new

    @property
    def subworkflows(self) -> list[str]:
        """Names of the named parts."""
        marks = (n.op for n in list_nodes(self.output_node))
        return [op.name for op in marks if isinstance(op, Subgraph | Loop)]

    def get_subworkflow(self, name: str) -> Workflow:
        """A named part as a workflow of its own; it shares what was learned."""
        for node in list_nodes(self.output_node):
            if isinstance(node.op, Subgraph | Loop) and node.op.name == name:
                end = node if isinstance(node.op, Loop) else node.parents[0]
                new = Workflow(end, executor=self._chosen)
                if self._source is not None:
                    new._use(Plan(end, self._source))
                return new
        raise ArgumentError(f"there is no part named {name!r}; there are {self.subworkflows}")

    # -- looking ------------------------------------------------------------------

    @property
    def graph(self) -> Any:
        """The graph as a picture: SVG in a notebook, Mermaid as text."""
        return self.output_node.graph

    def explain(self, dataset: Any = None) -> str:
        """What a fit does: its phases, what each learns and which columns it reads."""
        if dataset is None and self._source is None:
            plan = Plan.without_data(self.output_node)
        else:
            schema = self._source if dataset is None else _as_dataset(dataset).schema
            assert schema is not None
            plan = Plan(self.output_node, schema)
        lines = []
        for phase in plan.phases:
            reads = ", ".join(phase.columns)
            lines.append(f"fit, pass {phase.number} of {len(plan.phases)}: reads {reads}")
            lines += [f"  learns {n!r}" for n in phase.nodes]
        reads = ", ".join(plan.required([plan.output])[1])
        lines.append(f"transform: reads {reads}")
        lines.append(f"  makes {', '.join(plan.output_schema.column_names)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Workflow {', '.join(self._summary())}>"

    def _repr_html_(self) -> str:
        """For a notebook: what it is, its graph, and the columns that come out."""
        parts = [f'<div style="overflow:auto;margin-top:6px">{self.graph.to_svg()}</div>']
        if self._program is not None:
            parts.append(self.output_schema.html_table())
        return box("Workflow", self._summary(), *parts)

    def _summary(self) -> list[str]:
        steps = (n.op for n in list_nodes(self.output_node))
        labels = dict.fromkeys(o.label for o in steps if not isinstance(o, Selection | Concat))
        parts = [f"of {', '.join(labels)}"] if labels else []
        if self._program is None:
            return [*parts, "not fitted"]
        return [*parts, "fitted", f"{counted(len(self.output_schema), 'column')} out"]

    # -- saving -------------------------------------------------------------------

    def save(self, path: str | Path, *, updatable: bool = True) -> None:
        """Write the workflow to a folder: JSON and Parquet, with checksums. No pickle.

        Parameters
        ----------
        path
            The folder. A workflow saved there before is replaced.
        updatable
            False leaves out counts that only `update` needs, such as those of values too rare for
            the vocabulary or those behind a median: the folder is smaller, and what is loaded from
            it transforms the same.
        """
        from tabfeed.workflow.artefact import save

        _ = self.program  # which refuses a graph that is not fitted
        save(self.output_node, self.input_schema, Path(path), updatable=updatable)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        operators: Iterable[type[Operator]] = (),
        trusted: Iterable[str] | bool = (),
        client: Any = None,
        executor: Executor | None = None,
    ) -> Workflow:
        """Read what `save` wrote. No code of the folder's choosing runs.

        Where a workflow holds operators or functions of your own, say where they may come from;
        otherwise loading it is an error that lists them, and nothing is imported.

        Parameters
        ----------
        path
            The folder.
        operators
            Classes of operators of your own that the workflow uses, beside those registered with
            `tabfeed.ops.register`.
        trusted
            Names of modules that functions and operators may be imported from, such as
            ``["my_features"]``; a package stands for all that is in it. True trusts every
            module that the folder names, as unpickling would.
        client, executor
            As for a new workflow.
        """
        from tabfeed.workflow.artefact import blaming, load
        from tabfeed.workflow.trust import Trust

        trust = Trust(operators, trusted)
        with blaming(f"{path}"):
            plan = load(Path(path), trust)
            new = cls(plan.output, client=client, executor=executor)
            new._use(plan)
        return new


def _as_dataset(data: Any) -> Dataset:
    return data if isinstance(data, Dataset) else Dataset(data)


def _check_taken(output: Node, schema: Schema) -> None:
    """Refuse to take a column away that the data do not have: its name may be misspelled."""
    for node in list_nodes(output):
        if isinstance(node.op, Selection):
            node.op.selector.check_taken(schema)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, str | bytes) or value is None:
        return False
    return isinstance(value, list | tuple | np.ndarray) or hasattr(value, "__len__")


def _refuse_shared_operators(output: Node) -> None:
    seen: dict[int, Node] = {}
    for node in list_nodes(output):
        if isinstance(node.op, StatOperator) and seen.setdefault(id(node.op), node) is not node:
            raise GraphError(
                f"the same {node.op.label} object is used by {seen[id(node.op)]!r} and {node!r}; "
                "it can learn one set of columns only: make two"
            )
