"""The tree of a reduction on a Dask cluster: which tasks there are, and what each takes.

``partial`` of each item, runs of eight merged and cut into slots, and for each slot a tree of
merges (`tabfeed.execute.merge_tree`), whose root alone reaches the client, one after the other. A
slot too large for one worker is cut into shares first, and each has a tree of its own. Tasks carry
names that people understand in the dashboard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from distributed import Future

from tabfeed.execute import dask_tasks
from tabfeed.execute.dask_run import Killed, Run, deadly
from tabfeed.execute.dask_tasks import Reduction
from tabfeed.execute.merge_tree import WIDTH, runs_of
from tabfeed.execute.payload import pack, unpack

__all__ = ["Tree"]

_MOST_SHARES = 256
_ONE_TASK = 2**20  # bytes that could be merged in the time a task itself takes, about
Leaf = tuple[str, Any]  # a task's name, and its item


class Tree:
    """One reduction, level by level.

    Parameters
    ----------
    run
        Submits and waits.
    work
        What is reduced, and how.
    """

    def __init__(self, run: Run, work: Reduction) -> None:
        self._run, self._work = run, work

    def merged(self, leaves: Sequence[Leaf]) -> Iterator[tuple[int, Any]]:
        """Slots and their merged parts, one at a time, forgotten by the cluster as they come."""
        roots = self._roots(_FirstLevel(self._run, self._work, leaves).merged())
        roots.reverse()
        while roots:
            slot, future = roots.pop()
            yield slot, unpack(self._run.result(future))

    def _roots(self, runs: list[Future[Any]]) -> list[tuple[int, Future[Any]]]:
        """What is left of each slot once it is merged; of one too large, each share.

        The largest come first: the client takes them in while workers merge the others.
        """
        sizes = self._sizes(runs)
        shares = self._shares(sizes) if len(runs) > 1 else [1] * len(sizes)
        workers = self._workers(sizes)
        order = sorted(range(len(sizes)), key=lambda slot: -sizes[slot])
        return [
            (slot, root)
            for number, slot in enumerate(order)
            for root in self._slot(
                slot, shares[slot], runs, worker=workers[slot], priority=-number / len(order)
            )
        ]

    def _slot(
        self, slot: int, shares: int, runs: list[Future[Any]], **where: Any
    ) -> list[Future[Any]]:
        run, name = self._run, self._work.slots[slot]
        if shares == 1 and len(runs) <= WIDTH:  # so few that each worker may have them all
            return [run.submit(dask_tasks.merge_picked, name, slot, *runs, **where)]
        parts = [run.submit_plain(dask_tasks.pick, name, f, slot) for f in runs]
        if shares == 1:
            return [self._trunk(slot, name, parts)]
        cut = [run.submit(dask_tasks.cut_slot, name, slot, shares, part) for part in parts]
        return [
            self._trunk(
                slot, name, [run.submit_plain(dask_tasks.pick, name, f, share) for f in cut]
            )
            for share in range(shares)
        ]

    def _sizes(self, runs: list[Future[Any]]) -> list[int]:
        """Bytes of each slot in all runs."""
        run = self._run
        asked = [run.submit_plain(dask_tasks.sizes, "merge/sizes", f) for f in runs]
        return [sum(s) for s in zip(*(run.result(f) for f in asked), strict=True)]

    def _shares(self, sizes: list[int]) -> list[int]:
        """How many shares each slot is cut into, so that a merge is a fraction of the memory."""
        most = max(1, (self._run.task_memory() or 2**30) // 8)
        return [min(_MOST_SHARES, max(1, -(-size // most))) for size in sizes]

    def _workers(self, sizes: list[int]) -> list[str | None]:
        """A worker for each slot, so that all have about as much to merge.

        Left to itself Dask merges everything where most of it lies, since it takes
        moving bytes for slower than it is.
        """
        loads: dict[str | None, int] = dict.fromkeys(self._run.workers(), 0)
        chosen: list[str | None] = [None] * len(sizes)
        for slot in sorted(range(len(sizes)), key=lambda slot: -sizes[slot]):
            least = min(loads, key=lambda worker: loads[worker], default=None)
            loads[least] = loads.get(least, 0) + sizes[slot] + _ONE_TASK
            chosen[slot] = least
        return chosen

    def _trunk(self, slot: int, name: str, level: list[Future[Any]]) -> Future[Any]:
        while len(level) > 1:
            level = [
                group[0]
                if len(group) == 1
                else self._run.submit(dask_tasks.merge_slot, name, slot, *group)
                for group in runs_of(level)
            ]
        return level[0]


class _FirstLevel:
    """The first level of a reduction's tree: a summary of each item, merged eight at a time.

    When workers die under a task Dask suspects all tasks they had, so the whole run of eight is
    submitted again; if that goes on, one after the other, which shows the one to blame.
    """

    def __init__(self, run: Run, work: Reduction, leaves: Sequence[Leaf]) -> None:
        self._run = run
        self._done = getattr(work.partial, "finished", lambda item: None)
        self._groups = runs_of(leaves)
        self._merged: dict[int, Future[Any]] = {}
        self._runs: dict[Any, int] = {}
        self._tasks: dict[int, list[Future[Any]]] = {}
        self._items: dict[Any, Any] = {}
        self._deaths: Counter[int] = Counter()

    def merged(self) -> list[Future[Any]]:
        """What was merged, in slots; waits for all of it."""
        workers = self._run.workers()
        even = len(self._groups) // len(workers) * len(workers) if len(workers) > 1 else 0
        for number, group in enumerate(self._groups[:even]):
            # Those of a run on one worker, where they are merged without being sent.
            self._merge(number, self._summaries(group, workers[number % len(workers)]))
        rest = [leaf for group in self._groups[even:] for leaf in group]
        summaries = iter(self._summaries(rest))
        for number, group in enumerate(self._groups[even:], even):
            self._merge(number, list(islice(summaries, len(group))))
        for future in self._run.finished():
            if future.key not in self._runs:
                continue  # of a run that was submitted again
            try:
                self._run.raise_for(future)
            except Killed as e:
                self._submit_again(self._runs[future.key], e)
                continue
            if future.key in self._items:
                self._done(self._items.pop(future.key))
            else:
                del self._tasks[self._runs[future.key]]  # so that the cluster forgets them too
        return [self._merged[number] for number in range(len(self._groups))]

    def _summaries(self, leaves: Sequence[Leaf], worker: str | None = None) -> list[Future[Any]]:
        work = [(name, pack(item)) for name, item in leaves]
        futures = self._run.submit_many(dask_tasks.summarise, work, worker=worker)
        self._items.update({f.key: item for f, (_, item) in zip(futures, leaves, strict=True)})
        return futures

    def _merge(self, number: int, futures: list[Future[Any]]) -> None:
        merged = self._run.submit(dask_tasks.merge_run, f"merge/run_{number}", *futures)
        self._merged[number] = merged
        self._tasks[number] = [*futures, merged]
        self._runs.update({f.key: number for f in self._tasks[number]})
        self._run.watch(self._tasks[number])

    def _submit_again(self, number: int, killed: Killed) -> None:
        self._runs = {key: n for key, n in self._runs.items() if n != number}
        self._run.cancel(self._tasks.pop(number))
        self._deaths[number] += not killed.parcel
        if self._deaths[number] < max(1, self._run.executor.tries - 1):
            self._merge(number, self._summaries(self._groups[number]))
            return
        self._merge(number, [self._alone(*leaf) for leaf in self._groups[number]])

    def _alone(self, name: str, item: Any) -> Future[Any]:
        """A summary made while nothing else of its run is under way; twice, against bad luck."""
        left = 2
        while True:
            (future,) = self._summaries([(name, item)])
            try:
                self._run.result(future)
                return future
            except Killed as e:
                left -= not e.parcel
                if left == 0:
                    raise deadly(name) from e
