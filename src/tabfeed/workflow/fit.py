"""Fitting: one pass over the data for each phase, bounded memory, any executor.

A pass reads the columns that its operators need, summarises each partition, and merges the
summaries in order. Operators whose groups must be whole (Groupby) cut the graph: what
comes before them is computed and regrouped on disk, what comes after starts from there.

On a cluster, what a phase learned is cut into merge groups (`MergeGroups`), which workers merge at
the same time. The number of rows is the first group. Each `LargeState` part of an operator's
summary (`StatOperator.large_parts`) is a group of its own, and can be split further; a small
summary is one group.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa

from tabfeed.arguments import add_note
from tabfeed.display import Bar, progress
from tabfeed.errors import DatasetError, OperatorError, TabfeedError, WorkflowError, WriteError
from tabfeed.execute import Executor
from tabfeed.io import Dataset
from tabfeed.io.shuffle.distributed import require_files, task_memory
from tabfeed.io.storage.retry import reason, remedy, system_error
from tabfeed.ops.base import Inputs, LargeState, StatOperator
from tabfeed.ops.frames import as_lazy, as_table, gather
from tabfeed.ops.graph.node import Concat, Node, Selection, list_nodes
from tabfeed.ops.graph.plan import Phase, Plan
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.schema.schema import ColumnSelector
from tabfeed.workflow.compiled import CompiledGraph, Halo, Inner, need_halo

_ROOMY = 2 << 30
_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
Summary = list[Any]  # how many rows, and each operator's summary


def fit_graph(
    output: Node,
    dataset: Dataset,
    executor: Executor,
    memory: MemoryManager,
    *,
    update: bool = False,
) -> None:
    """Fit every learning operator of a graph."""
    require_files(executor, dataset.fileset)
    while (node := first_shuffle(output, dataset)) is not None:
        before = Node(Concat(), node.parents)
        fit_graph(before, dataset, executor, memory, update=update)
        output, dataset = shuffled(output, node, dataset, memory, executor)
    plan = Plan(output, dataset.schema)
    for number in range(len(plan.phases)):
        if number:
            plan = Plan(output, dataset.schema)  # schemas are sharper after each phase
        _fit_phase(plan, plan.phases[number], dataset, executor, memory, update=update)


def _fit_phase(
    plan: Plan,
    phase: Phase,
    dataset: Dataset,
    executor: Executor,
    memory: MemoryManager,
    *,
    update: bool,
) -> None:
    partial = _Partial(plan, phase, dataset.on(executor), memory)
    partial.task_memory = task_memory(executor)
    label = f"fit {phase.number}/{len(plan.phases)}"
    rows = [p.rows for p in dataset.partitions]
    total = None if None in rows else sum(r for r in rows if r is not None)
    with progress(label, total=total) as bar:
        partial.bar = bar
        result = executor.reduce(range(dataset.npartitions), partial, partial.merge)
    if result is None or result[0] == 0:
        raise WorkflowError("there are no rows to fit on; check the dataset's path and filters")
    for node, summary in zip(phase.nodes, result[1], strict=True):
        assert isinstance(node.op, StatOperator)
        inputs = replace(plan.inputs[node], memory=memory)
        with _naming(node):
            if update:
                node.op.update(summary, inputs)
            else:
                node.op.forget()
                node.op.learn(summary, inputs)


class MergeGroups:
    """The merge groups of some operators, and their names for people: ``fit/Categorify/C1``.

    Parameters
    ----------
    nodes
        The learning nodes, each with its inputs.
    memory
        The memory limit that summaries are counted against.
    """

    def __init__(self, nodes: Sequence[tuple[Node, Inputs]], memory: MemoryManager) -> None:
        self.memory = memory
        self._ops: list[StatOperator] = []
        self._parts: list[list[str]] = []
        self._groups: list[tuple[int, str | None]] = []  # number of the operator, name of the part
        self.groups = ["fit/rows"]
        for number, (node, inputs) in enumerate(nodes):
            assert isinstance(node.op, StatOperator)
            parts = list(dict.fromkeys(node.op.large_parts(inputs)))
            self._ops.append(node.op)
            self._parts.append(parts)
            self._groups += [(number, part) for part in parts] or [(number, None)]
            columns = inputs.names[0] if len(inputs.names) == 1 else f"{len(inputs.names)}_columns"
            self.groups += [f"fit/{node.op.label}/{name}" for name in parts or [columns]]

    def hold(self, number: int, summary: Any) -> None:
        """Count an operator's summary of one partition against the memory limit."""
        parts = self._parts[number]
        if not parts:
            return
        if not isinstance(summary, dict) or set(summary) != set(parts):
            found = list(summary) if isinstance(summary, dict) else type(summary).__name__
            raise OperatorError(
                f"large_parts() names {parts}, but partial() returned {found}; it must return a "
                "dict with these keys"
            )
        for name in parts:
            if not isinstance(summary[name], LargeState):
                raise OperatorError(
                    f"large_parts() names {name!r}, but partial() returned "
                    f"{type(summary[name]).__name__} there, which is no tabfeed.ops.LargeState"
                )
            self.memory.hold(summary[name])

    def split(self, result: Summary) -> list[Any]:
        """What each group has of a result; None where there were no rows."""
        rows, summaries = result
        if rows == 0:
            return [0, *[None] * len(self._groups)]
        return [
            rows,
            *(summaries[i] if part is None else summaries[i][part] for i, part in self._groups),
        ]

    def merge_group(self, group: int, a: Any, b: Any) -> Any:
        """What a group has of two neighbouring results, merged."""
        if group == 0:
            return a + b
        number, part = self._groups[group - 1]
        return self._ops[number].merge(a, b) if part is None else a.join(b)

    def cut(self, group: int, value: Any, count: int) -> list[Any]:
        """A group's value in hash partitions, if it is large; else it is the first of them."""
        if group and self._groups[group - 1][1] is not None:
            return list(value.split(count))
        return [value, *[None] * (count - 1)]

    def assemble(self, values: Iterable[tuple[int, Any]]) -> Summary:
        """One result from the values of all groups, joined as they come, within the limit."""
        rows = 0
        found: list[Any] = [{} for _ in self._ops]
        for group, value in values:
            if group == 0:
                rows = value
            elif value is not None:
                number, part = self._groups[group - 1]
                if part is None:
                    found[number] = value
                    continue
                value.memory = self.memory
                held = found[number].get(part)
                found[number][part] = joined = value if held is None else held.join(value)
                self.memory.hold(joined)
                self.memory.settle()
        ordered = [
            {p: summary[p] for p in parts if p in summary} if parts else summary
            for parts, summary in zip(self._parts, found, strict=True)
        ]
        return [rows, ordered]


class _Partial(MergeGroups):
    """Summarises a partition for all operators of a phase. Travels to other processes."""

    def __init__(self, plan: Plan, phase: Phase, dataset: Dataset, memory: MemoryManager) -> None:
        super().__init__([(n, plan.inputs[n]) for n in phase.nodes], memory)
        self.nodes, self.plan, self.dataset = phase.nodes, plan, dataset
        sources = list(dict.fromkeys(s for n in phase.nodes for s in n.sources))
        self.program = CompiledGraph(plan, sources)
        self.roomy = memory.limit is None or memory.limit >= _ROOMY
        # Where a file has no dictionary, the reader makes one, and that takes much memory.
        self.dictionary = self.program.dictionary if self.roomy else []
        self.halo: Halo | None = None
        if self.program.reach != (0, 0) and need_halo(self.program, dataset):
            self.halo = Halo(dataset, self.program.columns, self.program.reach)
        numbered = any(n.op.uses_row_numbers for n in phase.nodes) or self.program.numbered
        numbered = numbered or self.halo is not None
        self.starts = list(accumulate(dataset.partition_lens, initial=0)) if numbered else None
        self.bar: Bar | None = None
        self.task_memory: int | None = None
        self._settles = True  # not on a worker: other threads send what would be spilled

    def __call__(self, index: int) -> list[Any]:
        try:
            found = self._of(index)
        except DatasetError:
            raise  # it names its file
        except Exception as e:
            add_note(e, f"on {self.dataset.table.where(self.dataset.partitions[index])}")
            raise
        if not self.roomy:  # each thread would keep what its partitions took
            pa.default_memory_pool().release_unused()
        return found

    def _of(self, index: int) -> list[Any]:
        program = self.program
        table = self.dataset.read(index, program.columns, dictionary=self.dictionary)
        offset = 0 if self.starts is None else self.starts[index]
        inner, whole = Inner(0, table.num_rows), table
        if self.halo is not None:
            whole, inner = self.halo.around(table, offset)
        made = program.run(
            whole, offset=offset - inner.start, memory=self.memory,
            inner=None if self.halo is None else inner,
        )  # fmt: skip
        values = dict(zip(program.targets, made, strict=True))
        found = [self._summarise(i, node, values, offset) for i, node in enumerate(self.nodes)]
        if self.bar is not None:
            self.bar.advance(table.num_rows)
        return [table.num_rows, found]

    def _summarise(self, number: int, node: Node, values: dict[Node, Any], offset: int) -> Any:
        assert isinstance(node.op, StatOperator)
        inputs = replace(self.plan.inputs[node], offset=offset, memory=self.memory)
        taken = self.plan.sources(node, inputs.schema.column_names, fitting=True)
        value = gather([(values[source], names) for source, names in taken])
        with _naming(node):
            summary = node.op.partial(as_table(value) if node.op.eager else as_lazy(value), inputs)
            self.hold(number, summary)
        return summary

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        """Rows and summaries of both."""
        if a[0] == 0 or b[0] == 0:
            return a if b[0] == 0 else b
        merged = []
        for node, x, y in zip(self.nodes, a[1], b[1], strict=True):
            assert isinstance(node.op, StatOperator)
            with _naming(node):
                merged.append(node.op.merge(x, y))
                if self._settles:
                    self.memory.settle()
        return [a[0] + b[0], merged]

    # -- on a cluster -------------------------------------------------------------

    def task_name(self, index: int) -> str:
        """What the dashboard shows."""
        return f"fit/part_{index}"

    def finished(self, index: int) -> None:
        """A partition was summarised in another process."""
        if self.bar is not None:
            self.bar.advance(self.dataset.partitions[index].rows or 0)

    def __getstate__(self) -> dict[str, Any]:
        """In another process there is no progress bar, and another memory limit."""
        memory = self.memory if self.task_memory is None else MemoryManager(self.task_memory)
        return {**vars(self), "bar": None, "memory": memory, "_settles": False}


@contextmanager
def _naming(node: Node) -> Iterator[None]:
    """Errors raised inside name the node."""
    try:
        yield
    except NotImplementedError:
        raise
    except TabfeedError as e:
        if not str(e).startswith("<"):
            e.args = (f"{node!r}: {e.args[0] if e.args else e}", *e.args[1:])
        raise
    except Exception as e:
        known = system_error(e)
        if known is not None and known.errno in _NO_PLACE:
            where = f" {known.filename}" if known.filename else ""
            raise WriteError(
                f"{node!r}: what was learned cannot be written{where}: {reason(known)}. "
                f"{remedy(known, writing=True)} (temporary files go to {tempfile.gettempdir()}; "
                "TMPDIR moves them), then fit again"
            ) from e
        raise OperatorError(f"{node!r} failed to fit: {type(e).__name__}: {e}") from e


@contextmanager
def unchanged_on_failure(output: Node, memory: MemoryManager) -> Iterator[None]:
    """A fit that fails, or is interrupted, leaves no files, and operators as they were."""
    learners = [
        (n.op, dict(vars(n.op))) for n in list_nodes(output) if isinstance(n.op, StatOperator)
    ]
    try:
        yield
    except BaseException:
        for op, known in learners:
            vars(op).clear()
            vars(op).update(known)
        memory.close()
        raise


def small_partitions(dataset: Dataset, memory: MemoryManager, executor: Executor) -> Dataset:
    """The data in partitions small enough that those being worked on fit the limit.

    A few are in flight at a time, each many times its size while it is counted.
    """
    limit, cut = task_memory(executor) or memory.limit, dataset.table.partitioning
    if limit is None or cut.npartitions is not None:
        return dataset
    size = max(1 << 20, limit // 36)
    large = dataset.table.bytes_to_read(size) < cut.part_size
    return dataset.in_smaller_partitions(size) if large else dataset


def first_shuffle(output: Node, dataset: Dataset) -> Node | None:
    """The first node whose groups must be made whole; none if the data is one partition anyway."""
    if dataset.npartitions <= 1:
        return None
    waiting = (n for n in list_nodes(output) if n.op.shuffle_keys is not None)
    return next((n for n in waiting if not isinstance(n.parents[0].op, _Regrouped)), None)


def mapped(
    dataset: Dataset, program: CompiledGraph, fn: Callable[..., pa.Table], *, numbered: bool = False
) -> Dataset:
    """The data as a graph makes it; `fn` is the graph, or something around it."""
    return dataset.map(
        fn,
        schema=program.plan.output_schema,
        columns=program.columns,
        keeps_rows=program.plan.output.rows is None,
        dictionary=program.dictionary,
        numbered=numbered,
    )


class _Regrouped(Selection):
    """All columns of data in which the groups of the next node are whole."""


def shuffled(
    output: Node, node: Node, dataset: Dataset, memory: MemoryManager, executor: Executor
) -> tuple[Node, Dataset]:
    """The graph from `node` on, and the data it starts from: regrouped by the node's keys."""
    plan = Plan(Node(Concat(), node.parents), dataset.schema)
    program = CompiledGraph(plan)
    before = mapped(dataset, program, program, numbered=program.numbered)
    keys = node.op.shuffle_keys or []
    regrouped = before.shuffle_by_keys(keys, memory_limit=memory.limit, executor=executor)
    new: dict[Node, Node] = {node: Node(node.op, [Node(_Regrouped(ColumnSelector("*")))])}
    for found in list_nodes(output):
        if found not in new and set(found.sources) & set(new):
            new[found] = found.on(new)
    return new[output], regrouped
