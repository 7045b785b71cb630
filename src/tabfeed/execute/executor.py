"""Threads of this process as an executor, and the order in which every executor's results merge.

`LocalExecutor` has at most ``threads + 1`` items in work or waiting, besides the result its caller
holds: a slow consumer slows the workers instead of filling memory. Results arrive in the order of
the items. The first exception cancels what has not started and reaches the caller as it was raised.

Every executor merges in the order of `MergeTree`. Results are folded from the left in runs of
eight, the runs' results again in runs of eight, and so on until one is left. The tree depends only
on the number of results. So a merge that is only nearly associative, such as a sum of floats, gives
the same bits whoever did the work and whichever partition finished first. A plain fold from left to
right would too, but only one worker could take part in it.

A forked child can't use Polars, where it would deadlock; `refuse_forked` says so instead. A fork
copies memory, not threads. If Polars had started its threads in the parent, work handed to Polars
in the child never runs. Whether the threads exist is read from ``/proc`` at the moment of the fork,
which costs a fraction of a millisecond; without ``/proc``, Polars counts as running once
imported.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tabfeed.budget import cpu_count
from tabfeed.errors import ArgumentError, TabfeedError, WorkflowError

T = TypeVar("T")
R = TypeVar("R")
MERGE_WIDTH = 8


class Executor(Protocol):
    """Anything with these two methods can read, fit and write any dataset."""

    def map(self, items: Iterable[T], fn: Callable[[T], R]) -> Iterator[R]:
        """``fn`` of each item, in order, lazily."""
        ...

    def reduce(
        self, items: Iterable[T], partial: Callable[[T], R], merge: Callable[[R, R], R]
    ) -> R | None:
        """``partial`` of each item, neighbours merged; None if there are no items.

        Every executor merges in the order of `MergeTree`.
        """
        ...


class LocalExecutor:
    """Threads of this process.

    Parameters
    ----------
    threads
        How many; the number of usable cores by default.

    Examples
    --------
    >>> list(LocalExecutor(threads=2).map(range(4), lambda x: x * x))
    [0, 1, 4, 9]
    >>> LocalExecutor().reduce([1, 2, 3], lambda x: x, lambda a, b: a + b)
    6
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ArgumentError(f"threads is {threads}; it must be 1 or more")
        self.threads = threads or cpu_count()

    def map(self, items: Iterable[T], fn: Callable[[T], R]) -> Generator[R, None, None]:
        """``fn`` of each item, in order, lazily."""
        source = iter(items)
        if self.threads == 1:
            for item in source:  # not `yield from map`: a StopIteration from fn would end it
                yield fn(item)
            return
        with ThreadPoolExecutor(self.threads, thread_name_prefix="tabfeed-map") as pool:
            window: deque[Future[R]] = deque()
            try:
                for item in islice(source, self.threads + 1):
                    window.append(pool.submit(fn, item))
                while window:
                    result = window.popleft().result()
                    for item in islice(source, 1):
                        window.append(pool.submit(fn, item))
                    yield result
                    del result  # or it would stay alive after the caller drops it
            finally:
                for future in window:
                    future.cancel()

    def reduce(
        self, items: Iterable[T], partial: Callable[[T], R], merge: Callable[[R, R], R]
    ) -> R | None:
        """``partial`` of each item, neighbours merged; None if there are no items."""
        tree = MergeTree(merge)
        with closing(self.map(items, partial)) as results:
            for result in results:
                tree.add(result)
                del result  # or it would stay alive after the tree drops it
        return tree.result()

    def __repr__(self) -> str:
        return f"LocalExecutor(threads={self.threads})"


def runs_of(items: Sequence[R], width: int = MERGE_WIDTH) -> list[Sequence[R]]:
    """Consecutive items, `width` at a time.

    Examples
    --------
    >>> runs_of([1, 2, 3, 4, 5], width=2)
    [[1, 2], [3, 4], [5]]
    """
    return [items[start : start + width] for start in range(0, len(items), width)]


class MergeTree(Generic[R]):
    """Merges results as they arrive, in order, holding one per level of the tree.

    Parameters
    ----------
    merge
        Merges two neighbours.
    width
        The length of a run.

    Examples
    --------
    >>> tree = MergeTree(lambda a, b: f"({a}{b})", width=3)
    >>> for letter in "abcdefgh":
    ...     tree.add(letter)
    >>> tree.result()
    '((((ab)c)((de)f))(gh))'
    """

    def __init__(self, merge: Callable[[R, R], R], width: int = MERGE_WIDTH) -> None:
        self._merge, self._width = merge, width
        self._levels: list[tuple[int, list[R]]] = []

    def add(self, result: R, level: int = 0) -> None:
        """Add the next result."""
        if level == len(self._levels):
            self._levels.append((0, []))
        number, held = self._levels[level]
        held = [self._merge(held[0], result)] if held else [result]
        if number + 1 == self._width:
            self._levels[level] = (0, [])
            self.add(held[0], level + 1)
        else:
            self._levels[level] = (number + 1, held)

    def result(self) -> R | None:
        """All results merged; None if there were none."""
        whole: list[R] = []
        for _, held in self._levels:
            whole = [functools.reduce(self._merge, [*held, *whole])] if held else whole
        return whole[0] if whole else None


_TASKS = Path("/proc/self/task")
_running = False  # whether Polars had threads when this process last forked
_orphan = False  # whether this process was forked while Polars had threads


def _before_fork() -> None:
    global _running
    _running = "polars" in sys.modules and _threads_run()


def _threads_run() -> bool:
    try:
        names = [(task / "comm").read_text() for task in _TASKS.iterdir()]
    except OSError:
        return True
    return any(name.startswith("polars-") and name[7:].strip().isdigit() for name in names)


def _in_child() -> None:
    global _orphan
    _orphan = _orphan or _running


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def refuse_forked(what: str = "this workflow", error: type[TabfeedError] = WorkflowError) -> None:
    """Raise if this process was forked after Polars had started its threads.

    Call this before handing Polars a frame, or taking one from it.

    Parameters
    ----------
    what
        What Polars is needed for.
    error
        The type to raise.
    """
    if _orphan:
        raise error(
            f"Polars, which runs {what}, had started its threads when this process was forked, "
            "and would wait for them forever: start processes with spawn or forkserver (for a "
            'DataLoader multiprocessing_context="spawn", gunicorn without --preload), or use '
            "only threads (num_workers=0)"
        )
