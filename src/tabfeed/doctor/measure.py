"""How much faster is one way of storing the same rows than another, on this machine.

Every way is read in turn, again and again, the order reversed every second round, so that a
machine that is busy for a while is busy for all of them. Told is the ratio of the medians; the
quartiles of the rounds' own ratios say how sure it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tabfeed.io.dataset import Dataset
from tabfeed.loader.assemble.chunk import ChunkMaker
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.buffers import BufferPool

__all__ = ["Cost", "Times", "measure"]

_SHORTEST = 0.3
_ROUNDS = 5
_MOST_REPEATS = 1000
_KEPT = 2**28
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 15


@dataclass(frozen=True)
class Cost:
    """How many times as long one way takes as another.

    Attributes
    ----------
    ratio
        Of the medians.
    low, high
        The quartiles of the ratios of single rounds.
    """

    ratio: float
    low: float
    high: float

    @property
    def matters(self) -> bool:
        """Whether it is more than 5 % and more than what rounds differ by."""
        return self.ratio >= 1.05 and self.low > 1.0

    def __str__(self) -> str:
        return f"{self.ratio:.2f}"


@dataclass(frozen=True)
class Times:
    """Seconds a row in each round, by the name of what was read."""

    seconds: Mapping[str, tuple[float, ...]]

    def cost(self, slow: str, fast: str) -> Cost:
        """How many times as long `slow` took.

        Examples
        --------
        >>> Times({"a": (2.0, 2.0, 8.0), "b": (1.0, 1.0, 1.0)}).cost("a", "b")
        Cost(ratio=2.0, low=2.0, high=5.0)
        """
        a, b = np.array(self.seconds[slow]), np.array(self.seconds[fast])
        low, high = np.percentile(a / b, [25, 75])
        return Cost(float(np.median(a) / np.median(b)), float(low), float(high))

    def median(self, name: str) -> float:
        """Of the middle round."""
        return float(np.median(self.seconds[name]))

    def rate(self, name: str) -> float:
        """Rows a second."""
        return 1 / max(1e-12, self.median(name))


def measure(
    ways: Mapping[str, Dataset],
    loader: Callable[[Dataset], Pipeline[Any]],
    seconds: float,
    *,
    short: Sequence[str] = (),
) -> Times:
    """Read each in turn for about so many seconds in all, three rounds at least.

    The first pass of each warms up and is not counted. A way of few row groups is read as if it
    had many of the same, so that all threads have work and starting a pass does not count; but not
    the ways named in `short`, which are all there is.
    """
    # Starting a pass costs the same for all, which would make slow and fast look alike.
    shortest = min(_SHORTEST, seconds / len(ways) / _ROUNDS)
    pool = BufferPool(keep=_KEPT)
    feeds = {
        name: _sharing(loader(w if name in short else _long_enough(w, loader, shortest)), pool)
        for name, w in ways.items()
    }
    found: dict[str, list[float]] = {name: [] for name in feeds}
    end = time.monotonic() + seconds
    for number in range(_MOST_ROUNDS):
        for name in list(feeds) if number % 2 else reversed(feeds):
            found[name].append(_time(feeds[name]) / feeds[name].plan.rows)
        if number + 1 >= _FEWEST_ROUNDS and time.monotonic() > end:
            break
    return Times({name: tuple(times) for name, times in found.items()})


def _sharing(feed: Pipeline[Any], pool: BufferPool) -> Pipeline[Any]:
    """The loader with the buffers of the others: one runs at a time, so one set is enough."""
    reader, maker = feed.stages.reader, feed.stages.maker
    if isinstance(reader, BlockReader) and isinstance(maker, ChunkMaker):
        sharing = replace(reader, pool=pool), replace(maker, pool=pool)
        stages = replace(feed.stages, reader=sharing[0], maker=sharing[1])
        return replace(feed, stages=stages)
    return feed


def _long_enough(
    way: Dataset, loader: Callable[[Dataset], Pipeline[Any]], shortest: float
) -> Dataset:
    feed = loader(way)
    _time(feed)
    by_time = round(shortest / max(_time(feed), 1e-6))
    by_threads = -(-2 * feed.options.workers // len(feed.plan.sizes))
    return way._derive(partitions=way.partitions * min(max(by_time, by_threads), _MOST_REPEATS))


def _time(feed: Pipeline[Any]) -> float:
    """Seconds of a pass."""
    start = time.perf_counter()
    for _ in feed:
        pass
    return time.perf_counter() - start
