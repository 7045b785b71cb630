"""Contenders that behave in known ways."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.harness.contender import Case, Contender, Epoch


def good(case: Case) -> Epoch:
    def epoch() -> Iterator[tuple[int, Any]]:
        for start in range(0, case.rows, case.batch):
            n = min(case.batch, case.rows - start)
            yield n, {name: np.zeros(n) for name in case.columns}

    return epoch


def without_a_column(case: Case) -> Epoch:
    def epoch() -> Iterator[tuple[int, Any]]:
        yield case.rows, {name: np.zeros(case.rows) for name in case.columns[1:]}

    return epoch


def without_a_row(case: Case) -> Epoch:
    def epoch() -> Iterator[tuple[int, Any]]:
        n = case.rows - 1
        yield n, {name: np.zeros(n) for name in case.columns}

    return epoch


def forgetful(case: Case) -> Epoch:
    """Delivers all the first time, and nothing after that."""
    times = iter([case, *[None] * 9])

    def epoch() -> Iterator[tuple[int, Any]]:
        now = next(times)
        if now is not None:
            yield from good(now)()

    return epoch


def raising(case: Case) -> Epoch:
    raise OSError("no such disk")


def dying(case: Case) -> Epoch:
    os._exit(7)


def hanging(case: Case) -> Epoch:
    time.sleep(600)
    raise AssertionError


def endless(case: Case) -> Epoch:
    def epoch() -> Iterator[tuple[int, Any]]:
        while True:
            time.sleep(0.01)
            yield 1, {name: np.zeros(1) for name in case.columns}

    return epoch


def late(case: Case) -> Epoch:
    """Gets everything ready before the first batch, as one that sorts all rows does."""

    def epoch() -> Iterator[tuple[int, Any]]:
        time.sleep(0.5)
        yield from good(case)()

    return epoch


def growing(case: Case) -> Epoch:
    """Holds the more memory the further it gets; the last row comes late."""

    def epoch() -> Iterator[tuple[int, Any]]:
        yield from good(replace(case, rows=1, batch=1))()
        time.sleep(0.1)
        yield from good(replace(case, rows=1, batch=1))()
        held = np.ones(25_000_000)
        yield from good(replace(case, rows=case.rows - 2))()
        del held

    return epoch


def talking(case: Case) -> Epoch:
    print("this is not an answer")
    return good(case)


def convert(case: Case) -> None:
    with open(f"{case.scratch}/own", "w") as file:
        file.write(str(case.rows))


def converted(case: Case) -> Epoch:
    with open(f"{case.scratch}/own") as file:
        assert int(file.read()) == case.rows
    return good(case)


def _one(name: str, function: Any, **more: Any) -> Contender:
    return Contender(name, name, function, ("loading",), ("numpy",), shuffles="well", **more)


CONTENDERS = (
    _one("good", good),
    _one("column", without_a_column),
    _one("row", without_a_row),
    _one("raising", raising),
    _one("dying", dying),
    _one("hanging", hanging),
    _one("endless", endless),
    _one("late", late),
    _one("forgetful", forgetful),
    _one("growing", growing),
    _one("talking", talking),
    _one("few", converted, convert=convert, most_rows=10),
    _one("ordered", good, orders=(False,)),
    _one("elsewhere", good, venv="nowhere"),
    Contender("absent", "absent", good, ("loading",), ("no_such_module",), shuffles="well"),
)
