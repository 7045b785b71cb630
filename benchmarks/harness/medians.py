"""One figure of several runs."""

from __future__ import annotations

import statistics
from typing import Any

__all__ = ["medians"]


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure, of the runs in which it is known.

    Examples
    --------
    >>> medians([{"rate": 2.0, "busy": None}, {"rate": 4.0, "busy": 97.0}])
    {'rate': 3.0, 'busy': 97.0}
    >>> medians([{"busy": None}])
    {'busy': None}
    """
    known = {key: [run[key] for run in runs if run[key] is not None] for key in runs[0]}
    return {key: statistics.median(found) if found else None for key, found in known.items()}
