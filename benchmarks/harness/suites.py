"""Which contenders run on which data.

A suite varies one thing. The first, "loading", is all contenders, shuffled and in order; the
others take the few contenders worth following along an axis. Every heat holds the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import criteo_raw

from .contender import Case, Contender, contenders
from .data import Spec, make
from .heat import Heat, Point

__all__ = ["REFERENCE", "SUITES", "Options", "Plan", "estimate", "heats", "placed", "spec_of"]

REFERENCE = "tabfeed"
FEATURES_REFERENCE = "tabfeed-features"
SECONDS = {
    "loading": 7.0,
    "batch": 15.0,
    "rows": 17.0,
    "columns": 5.0,
    "lists": 9.0,
    "workers": 12.0,
    "codec": 9.0,
    "epochs": 8.0,
    "remote": 22.0,
    "features": 9.0,
}
"""About how long a contender takes in a heat of each suite, on two cores."""

SUITES = tuple(SECONDS)
APART = ("rows", "columns", "features")
"""Each point is a heat of its own, so that its memory can be seen."""

IN_A_HEAT = 8
"""Contenders beside the reference: so many are in memory at once."""

CELLS = 40
"""Numbers in the files of the "columns" suite for each of the usual rows, whatever their width."""

LATENCY, BANDWIDTH = 0.03, 50e6
"""Of the server of the "remote" suite: seconds a request, bytes a second and connection."""

Where = tuple[str, Spec, dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """How large, and what of it."""

    folder: Path
    rows: int = 1_000_000
    feature_rows: int = 50_000
    only: tuple[str, ...] = ()
    suites: tuple[str, ...] = SUITES

    def wants(self, who: Contender) -> bool:
        """Whether ``--only`` lets it take part."""
        return not self.only or any(o in f"{who.name} {who.peer}" for o in self.only)


@dataclass(frozen=True)
class Plan:
    """A heat to be: its data are made when it is its turn."""

    suite: str
    points: tuple[Where, ...]
    names: tuple[str, ...]
    reference: str = REFERENCE

    @property
    def title(self) -> str:
        """For the progress line."""
        points = "; ".join(label for label, _, _ in self.points)
        return f"{self.suite} ({points}): {', '.join(self.names)}"

    @contextmanager
    def ready(self, options: Options) -> Iterator[Heat]:
        """Make the data, unless they are there; serve them, where they are to be remote."""
        with ExitStack() as stack:
            url = stack.enter_context(_serve(options)) if self.suite == "remote" else ""
            points = tuple(
                Point(label, placed(_case(self.suite, spec, options), changes, url))
                for label, spec, changes in self.points
            )
            yield Heat(self.suite, points, self.names, self.reference)


@contextmanager
def _serve(options: Options) -> Iterator[str]:
    """All data as buckets on a slow server of this machine."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.faulty_server import FaultyServer

    folder = options.folder / "data"
    with FaultyServer(folder=folder, latency=LATENCY, bandwidth=BANDWIDTH) as server:
        yield server.url


def placed(case: Case, changes: dict[str, Any], url: str) -> Case:
    """With what a point changes; remote, if it says so."""
    rest = {name: value for name, value in changes.items() if name != "remote"}
    return replace(case, **rest, endpoint=url if changes.get("remote") else "")


def heats(options: Options) -> list[Plan]:
    """All heats, in order."""
    return [plan for suite in SUITES if suite in options.suites for plan in _of(suite, options)]


def _of(suite: str, options: Options) -> Iterator[Plan]:
    reference = FEATURES_REFERENCE if suite == "features" else REFERENCE
    rivals = [
        who
        for who in contenders().values()
        if suite in who.suites and who.name != reference and options.wants(who)
    ]
    if not rivals and options.only:
        return
    points = list(_points(suite, options))
    for group in _groups(rivals):
        for each in [[p] for p in points] if suite in APART else [points]:
            cases = [placed(Case("", spec.rows, ""), changes, "") for _, spec, changes in each]
            names = [who.name for who in group if any(who.takes(case) for case in cases)]
            yield Plan(suite, tuple(each), (reference, *names), reference)


def _points(suite: str, options: Options) -> Iterator[Where]:
    rows, base = options.rows, spec_of(options.rows)
    if suite == "loading":
        yield "shuffled", base, {"shuffle": True}
        yield "in order", base, {"shuffle": False}
    elif suite == "batch":
        for batch in (256, 4_096, 65_536):
            yield f"{batch:,}", base, {"batch": batch}
    elif suite == "rows":
        for count in (rows, rows * 4, rows * 16):
            yield f"{count:,}", spec_of(count), {}
    elif suite == "columns":
        for width in (10, 40, 200, 1_000):
            yield f"{width:,}", spec_of(CELLS * rows // width, width), {"batch": 16_384}
    elif suite == "lists":
        for count in (1, 8):
            yield str(count), spec_of(rows, 10, lists=count), {}
    elif suite == "workers":
        for count in (0, 1, 2):
            yield str(count), base, {"workers": count}
    elif suite == "codec":
        for codec in ("plain", "snappy", "lz4", "zstd"):
            yield codec, replace(base, codec=codec), {}
    elif suite == "epochs":
        for count in (1, 5):
            yield str(count), spec_of(rows // 2), {"epochs": count}
    elif suite == "remote":
        here = spec_of(rows // 2)
        yield "local, shuffled", here, {}
        yield "remote, shuffled", here, {"remote": True}
        yield "remote, in order", here, {"remote": True, "shuffle": False}
    else:
        for count in (options.feature_rows, options.feature_rows * 8):
            yield f"{count:,}", Spec(count), {"batch": 0}


def spec_of(rows: int, columns: int = 40, *, lists: int = 0) -> Spec:
    """Data in 16 row groups or more, none larger than 250,000 rows, none of a few rows."""
    return Spec(rows, columns, lists, group=max(10_000, min(250_000, rows // 16)))


def _case(suite: str, spec: Spec, options: Options) -> Case:
    scratch = str(options.folder / "own" / spec.name)
    if suite == "features":
        folder = options.folder / "data" / f"raw-{spec.rows}"
        criteo_raw.write(folder, spec.rows, group=max(1_000, min(250_000, spec.rows // 4)))
        return Case(
            folder=str(folder),
            rows=spec.rows,
            scratch=scratch,
            cats=tuple(criteo_raw.CATS),
            conts=tuple(criteo_raw.CONTS),
        )
    return Case(
        folder=str(make(spec, options.folder / "data")),
        rows=spec.rows,
        scratch=scratch,
        cats=spec.cats,
        conts=spec.conts,
        lists=spec.multi_hot,
    )


def _groups(rivals: Iterable[Contender]) -> Iterator[list[Contender]]:
    """At most so many at a time; those of TensorFlow together, so that they share a heat."""
    ordered = sorted(rivals, key=lambda who: ("tensorflow" in who.modules, who.venv != "bench"))
    count = max(1, -(-len(ordered) // IN_A_HEAT))
    ends = [len(ordered) * number // count for number in range(count + 1)]
    for start, end in pairwise(ends):
        yield ordered[start:end]


def estimate(plan: Plan) -> float:
    """About how many seconds a heat takes."""
    return len(plan.names) * SECONDS[plan.suite]
