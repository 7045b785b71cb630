"""How many cores are at work, and how many the machine's other guests take."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["Cores"]

_STAT = Path("/proc/stat")
_IDLE, _WAITING, _STOLEN = 3, 4, 7


class Cores:
    """Counts within a ``with``; where there is no ``/proc`` it knows nothing.

    A virtual machine has its cores only as far as its neighbours leave them. What they take is
    *stolen*: a figure measured meanwhile says less than another.

    Examples
    --------
    >>> with Cores() as cores:
    ...     pass
    >>> cores.used is None or cores.used >= 0
    True
    >>> list(cores.figures)
    ['cores', 'stolen']
    """

    used: float | None = None
    stolen: float | None = None

    def __enter__(self) -> Cores:
        self._begin, self._before = time.perf_counter(), _ticks()
        return self

    def __exit__(self, *exc: object) -> None:
        seconds = (time.perf_counter() - self._begin) * os.sysconf("SC_CLK_TCK")
        spent = [now - then for now, then in zip(_ticks(), self._before, strict=True)]
        if spent:
            self.stolen = spent[_STOLEN] / seconds
            self.used = (sum(spent) - spent[_IDLE] - spent[_WAITING]) / seconds - self.stolen

    @property
    def figures(self) -> dict[str, float | None]:
        """Both, as results name them."""
        return {"cores": self.used, "stolen": self.stolen}


def _ticks() -> list[int]:
    """What the kernel has counted of all cores so far, kind by kind."""
    try:
        return [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return []
