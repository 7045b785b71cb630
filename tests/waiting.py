"""How tests wait: until something happens, never for a time.

A wait that lasts `HANG` seconds is a hang. No machine is so busy that what a test waits for takes
as long, and a test's own timeout is longer, so what is said here comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["HANG", "wait_until"]

HANG = 300.0


def wait_until(condition: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    """Wait until a condition holds; `what` describes the state if it never does."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.01)
