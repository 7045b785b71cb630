"""Map and reduce on threads.

At most ``threads + 1`` items are in work or done and waiting, beside the result the caller
holds: a slow consumer slows the workers instead of filling memory. Results come in the order
of the items. The first exception cancels what has not started and reaches the caller as it
was raised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Protocol, TypeVar

from tabfeed.budget import cpu_count
from tabfeed.errors import ArgumentError
from tabfeed.execute.merge_tree import Tree

__all__ = ["Executor", "LocalExecutor"]

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Anything with these two verbs can read, fit and write any dataset."""

    def map(self, items: Iterable[T], fn: Callable[[T], R]) -> Iterator[R]:
        """``fn`` of each item, in order, lazily."""
        ...

    def reduce(
        self, items: Iterable[T], partial: Callable[[T], R], merge: Callable[[R, R], R]
    ) -> R | None:
        """All of ``partial(item)``, neighbours merged; None if there are no items.

        Which neighbours first is told by `tabfeed.execute.merge_tree`, alike for every executor.
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
            for item in source:  # not yield from map: it would take fn's StopIteration for the end
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
                    del result  # the caller may be done with it; then so are we
            finally:
                for future in window:
                    future.cancel()

    def reduce(
        self, items: Iterable[T], partial: Callable[[T], R], merge: Callable[[R, R], R]
    ) -> R | None:
        """All of ``partial(item)``, neighbours merged; None if there are no items."""
        tree = Tree(merge)
        with closing(self.map(items, partial)) as results:
            for result in results:
                tree.add(result)
                del result  # the tree's now, which may be done with it soon
        return tree.result()

    def __repr__(self) -> str:
        return f"LocalExecutor(threads={self.threads})"
