"""Fitting on workers, which merge what others are still sending."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from tabfeed import Dataset, Workflow, ops
from tabfeed.execute import LocalExecutor


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
