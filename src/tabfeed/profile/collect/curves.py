"""Readings over time that never take more than a fixed amount of memory.

When a curve is full, every second point goes and from then on every second reading is skipped. The
picture stays right, as coarse as it has to be.
"""

from __future__ import annotations

__all__ = ["Bins", "Curve"]

_MOST = 2048
_BINS = 240


class Curve:
    """Values at times.

    Examples
    --------
    >>> curve = Curve(most=4)
    >>> for t in range(9):
    ...     curve.add(t, 10.0 * t)
    >>> curve.points
    [(0, 0.0), (4, 40.0), (8, 80.0)]
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._every = 1
        self._seen = 0
        self.points: list[tuple[int, float]] = []

    def add(self, time: int, value: float) -> None:
        """One more reading."""
        if self._seen % self._every == 0:
            if len(self.points) == self._most:
                del self.points[1::2]
                self._every *= 2
            if self._seen % self._every == 0:
                self.points.append((time, value))
        self._seen += 1


class Bins:
    """Sums over stretches of time, by name; stretches grow as the run does.

    Examples
    --------
    >>> bins = Bins(width=10, most=2)
    >>> bins.add("read", 0, 10, 5.0)
    >>> bins.add("read", 15, 25, 4.0)
    >>> bins.width, bins.sums
    (20, {'read': {0: 7.0, 1: 2.0}})
    """

    def __init__(self, width: int, most: int = _BINS) -> None:
        self.width = width
        self._most = most
        self.sums: dict[str, dict[int, float]] = {}

    def add(self, name: str, start: int, end: int, amount: float) -> None:
        """Spread an amount evenly from `start` to `end`."""
        start = max(0, start)
        end = max(end, start + 1)
        while (end - 1) // self.width >= self._most:
            self._merge()
        sums = self.sums.setdefault(name, {})
        first = start // self.width
        if end <= (first + 1) * self.width:  # most are short
            sums[first] = sums.get(first, 0.0) + amount
            return
        for number in range(start // self.width, (end - 1) // self.width + 1):
            low, high = max(start, number * self.width), min(end, (number + 1) * self.width)
            sums[number] = sums.get(number, 0.0) + amount * (high - low) / (end - start)

    def _merge(self) -> None:
        self.width *= 2
        for name, sums in self.sums.items():
            merged: dict[int, float] = {}
            for number, value in sums.items():
                merged[number // 2] = merged.get(number // 2, 0.0) + value
            self.sums[name] = merged
