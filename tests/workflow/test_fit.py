"""What a pass learned, cut into merge groups and put together again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from tabfeed import Dataset, Workflow, ops
from tabfeed.execute import LocalExecutor
from tabfeed.ops.base import Inputs
from tabfeed.ops.state.counting import Counter
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.schema import Schema
from tabfeed.workflow.fit import MergeGroups


def test_groups_that_come_in_any_order_make_the_same_result() -> None:
    names = ("a", "b", "c")
    table = pa.table({n: [n, n, "x"] for n in names})
    memory = MemoryManager()
    groups = tuple((n,) for n in names)
    inputs = Inputs(Schema.from_arrow(table.schema), names, groups, memory=memory)
    node = list(names) >> ops.Categorify()
    found = MergeGroups([(node, inputs)], memory)
    assert found.groups[1:] == [f"fit/Categorify/{n}" for n in names]
    parts = list(enumerate(found.split([3, [node.op.partial(table, inputs)]])))
    for order in (parts, parts[::-1], [parts[3], parts[0], parts[1], parts[2]]):
        rows, (counts,) = found.assemble(order)
        assert rows == 3
        assert tuple(counts) == names
        assert all(isinstance(c, Counter) and c.distinct() == 2 for c in counts.values())


class OneWorker(LocalExecutor):
    """Merges in a copy of the work, as a worker does, while a summary of it is being sent."""

    remote = True
    task_memory = 1000

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.spilled: list[bool] = []

    def require_files(self, files: Any) -> None:
        """All are here."""

    def reduce(
        self,
        items: Iterable[Any],
        partial: Callable[[Any], Any],
        merge: Callable[[Any, Any], Any],
    ) -> Any:
        partial, merge = pickle.loads(pickle.dumps((partial, merge)))
        a, b, *_ = items
        sent = partial(a)
        merge(*(pickle.loads(pickle.dumps(partial(i))) for i in (a, b)))
        self.spilled += [counter.spilled for counter in sent[1][0].values()]
        return super().reduce(items, partial, merge)


def test_a_merge_on_a_worker_leaves_summaries_of_other_threads_alone() -> None:
    worker = OneWorker()
    data = Dataset({"a": [f"{i}" for i in range(1000)]}, npartitions=2)
    workflow = Workflow(["a"] >> ops.Categorify(), executor=worker)
    workflow.fit(data)
    assert worker.spilled == [False]
    ids = workflow.transform({"a": [f"{i}" for i in range(1000)]})["a"].tolist()
    assert sorted(ids) == list(range(3, 1003))
