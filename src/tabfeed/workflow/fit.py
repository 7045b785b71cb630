"""Fitting: one pass over the data for each phase, bounded memory, any executor.

A pass reads the columns that its operators need, summarises each partition, and merges the
summaries in order. Operators whose groups must be whole (Groupby) cut the graph: what
comes before them is computed and regrouped on disk, what comes after starts from there.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa

from tabfeed.errors import DatasetError, OperatorError, TabfeedError, WorkflowError, WriteError
from tabfeed.execute import Executor
from tabfeed.io import Dataset
from tabfeed.io.shuffle.distributed import require_files, task_memory
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.ops.base import StatOperator
from tabfeed.ops.graph.node import Concat, Node, Selection, list_nodes
from tabfeed.ops.graph.plan import Phase, Plan
from tabfeed.ops.graph.run import as_lazy, as_table
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.progress import Bar, progress
from tabfeed.schema.selector import ColumnSelector
from tabfeed.user_functions import add_note
from tabfeed.workflow.compiled import CompiledGraph, Inner
from tabfeed.workflow.halo import Halo, need_halo
from tabfeed.workflow.merge_groups import MergeGroups

__all__ = [
    "first_shuffle", "fit_graph", "shuffled", "small_partitions", "unchanged_on_failure",
]  # fmt: skip


_ROOMY = 2 << 30
_NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


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
        with _Named(node):
            if update:
                node.op.update(summary, inputs)
            else:
                node.op.forget()
                node.op.learn(summary, inputs)


class _Partial:
    """Summarises a partition for all operators of a phase. Travels to other processes."""

    def __init__(self, plan: Plan, phase: Phase, dataset: Dataset, memory: MemoryManager) -> None:
        self.nodes = phase.nodes
        self.plan, self.dataset, self.memory = plan, dataset, memory
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
        self._merge = MergeGroups([(n, plan.inputs[n]) for n in phase.nodes])

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
        columns = inputs.schema.column_names
        taken = self.plan.sources(node, columns, fitting=True)
        if len(taken) == 1:
            value = values[taken[0][0]].select(columns)
        else:
            found = {}
            for source, names in taken:
                part = as_table(values[source])
                found.update({n: part.column(n) for n in names})
            value = pa.table(found)
        with _Named(node):
            summary = node.op.partial(as_table(value) if node.op.eager else as_lazy(value), inputs)
            self._merge.hold(number, summary, self.memory)
        return summary

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        """Rows and summaries of both."""
        if a[0] == 0 or b[0] == 0:
            return a if b[0] == 0 else b
        merged = []
        for node, x, y in zip(self.nodes, a[1], b[1], strict=True):
            assert isinstance(node.op, StatOperator)
            with _Named(node):
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

    @property
    def groups(self) -> list[str]:
        """The names of the merge groups."""
        return self._merge.names

    def split(self, result: list[Any]) -> list[Any]:
        """Rows and summaries, by merge groups."""
        return self._merge.split(result)

    def merge_group(self, group: int, a: Any, b: Any) -> Any:
        """Two values of a merge group as one."""
        return self._merge.merge(group, a, b)

    def cut(self, group: int, part: Any, count: int) -> list[Any]:
        """A value of a merge group in hash partitions."""
        return self._merge.cut(group, part, count)

    def assemble(self, parts: Iterable[tuple[int, Any]]) -> list[Any]:
        """Rows and summaries again, within this process's memory."""
        return self._merge.assemble(parts, self.memory)

    def __getstate__(self) -> dict[str, Any]:
        """In another process there is no progress bar, and another memory limit."""
        memory = self.memory if self.task_memory is None else MemoryManager(self.task_memory)
        return {**vars(self), "bar": None, "memory": memory, "_settles": False}


class _Named:
    """Errors raised inside name the node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        if isinstance(error, TabfeedError):
            if not str(error).startswith("<"):
                error.args = (
                    f"{self.node!r}: {error.args[0] if error.args else error}",
                    *error.args[1:],
                )
        elif isinstance(error, OSError) and error.errno in _NO_PLACE:
            where = f" {error.filename}" if error.filename else ""
            raise WriteError(
                f"{self.node!r}: what was learned cannot be written{where}: {reason(error)}. "
                f"{remedy(error, writing=True)}, then fit again"
            ) from error
        elif isinstance(error, Exception) and not isinstance(error, NotImplementedError):
            raise OperatorError(
                f"{self.node!r} failed to fit: {type(error).__name__}: {error}"
            ) from error


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
    return dataset.in_smaller_partitions(size) if size < cut.part_size else dataset


def first_shuffle(output: Node, dataset: Dataset) -> Node | None:
    """The first node whose groups must be made whole; none if the data is one partition anyway."""
    if dataset.npartitions <= 1:
        return None
    waiting = (n for n in list_nodes(output) if n.op.shuffle_keys is not None)
    return next((n for n in waiting if not isinstance(n.parents[0].op, _Regrouped)), None)


class _Regrouped(Selection):
    """All columns of data in which the groups of the next node are whole."""


def shuffled(
    output: Node, node: Node, dataset: Dataset, memory: MemoryManager, executor: Executor
) -> tuple[Node, Dataset]:
    """The graph from `node` on, and the data it starts from: regrouped by the node's keys."""
    plan = Plan(Node(Concat(), node.parents), dataset.schema)
    program = CompiledGraph(plan)
    before = dataset.map(
        program,
        schema=plan.output_schema,
        columns=program.columns,
        keeps_rows=plan.output.rows is None,
        dictionary=program.dictionary,
        numbered=program.numbered,
    )
    keys = node.op.shuffle_keys or []
    regrouped = before.shuffle_by_keys(keys, memory_limit=memory.limit, executor=executor)
    new: dict[Node, Node] = {node: Node(node.op, [Node(_Regrouped(ColumnSelector("*")))])}
    for found in list_nodes(output):
        if found in new or not set(found.sources) & set(new):
            continue
        parents = [new.get(p, p) for p in found.parents]
        new[found] = Node(found.op, parents, [new.get(d, d) for d in found.dependencies])
    return new[output], regrouped
