"""Which contenders run on which data.

A suite varies one thing. The first, "loading", is all contenders, shuffled and in order; the
others take the few contenders worth following along an axis. Every heat holds the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import criteo_raw

from .contender import Case, Contender, contenders
from .data import Spec, make
from .heat import Heat, Point, Settings

__all__ = ["REFERENCE", "SUITES", "Options", "estimate", "heats", "spec_of"]

REFERENCE = "tabfeed"
FEATURES_REFERENCE = "tabfeed-features"
SUITES = ("loading", "batch", "rows", "columns", "lists", "workers", "codec", "features")
IN_A_HEAT = 6
"""Contenders beside the reference: so many are in memory at once."""

CELLS = 40_000_000
"""Numbers in the files of the "columns" suite, whatever their width."""


@dataclass(frozen=True)
class Options:
    """How large, and what of it."""

    folder: Path
    rows: int = 2_000_000
    feature_rows: int = 200_000
    full: bool = False
    only: tuple[str, ...] = ()
    suites: tuple[str, ...] = SUITES

    def wants(self, who: Contender) -> bool:
        """Whether ``--only`` lets it take part."""
        return not self.only or any(o in f"{who.name} {who.peer}" for o in self.only)


@dataclass(frozen=True)
class Plan:
    """A heat to be: its data are made when it is its turn."""

    suite: str
    points: tuple[tuple[str, Spec, dict[str, object]], ...]
    names: tuple[str, ...]
    reference: str = REFERENCE

    def make(self, options: Options) -> Heat:
        """Make the data, unless they are there."""
        points = tuple(
            Point(label, replace(_case(self.suite, spec, options), **changes))  # type: ignore[arg-type]
            for label, spec, changes in self.points
        )
        return Heat(self.suite, points, self.names, self.reference)


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
    apart = suite == "rows"  # memory is to be seen at each point
    points = list(_points(suite, options))
    for group in _groups(rivals):
        names = (reference, *(who.name for who in group))
        for each in [[p] for p in points] if apart else [points]:
            yield Plan(suite, tuple(each), names, reference)


def _points(suite: str, options: Options) -> Iterator[tuple[str, Spec, dict[str, object]]]:
    rows, base = options.rows, spec_of(options.rows)
    if suite == "loading":
        yield "shuffled", base, {"shuffle": True}
        yield "in order", base, {"shuffle": False}
    elif suite == "batch":
        for batch in (256, 4_096, 65_536):
            yield f"{batch:,}", base, {"batch": batch}
    elif suite == "rows":
        for count in (rows // 2, rows * 2, *((rows * 8,) if options.full else ())):
            yield f"{count:,}", spec_of(count), {}
    elif suite == "columns":
        for width in (10, 40, 200, *((1_000,) if options.full else ())):
            yield str(width), spec_of(CELLS * rows // 2_000_000 // width, width), {"batch": 16_384}
    elif suite == "lists":
        yield "3 lists", spec_of(rows // 2, 10, lists=3), {}
    elif suite == "workers":
        for count in (0, 1, 2, *((4,) if options.full else ())):
            yield str(count), base, {"workers": count}
    elif suite == "codec":
        for codec in ("plain", "snappy", "zstd", *(("lz4",) if options.full else ())):
            yield codec, replace(base, codec=codec), {}
    else:
        yield "fit and transform", Spec(options.feature_rows), {"batch": 0}


def spec_of(rows: int, columns: int = 40, *, lists: int = 0) -> Spec:
    """Data in at least 16 row groups, none larger than 250,000 rows."""
    return Spec(rows, columns, lists, group=max(1_000, min(250_000, rows // 16)))


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
    size = -(-len(ordered) // count) if ordered else 1
    for start in range(0, max(1, len(ordered)), size):
        yield ordered[start : start + size]


def estimate(plan: Plan, settings: Settings) -> float:
    """About how many seconds a heat takes: start-up, one run to warm up, then the rounds."""
    runs = (settings.rounds + 1) * len(plan.points)
    if plan.suite == "features":
        return 15.0 * runs * len(plan.names) / 5
    return len(plan.names) * (5.0 + min(0.8, settings.seconds) * runs)
