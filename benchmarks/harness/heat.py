"""A heat: a few contenders in turn, round by round, each in a process of its own.

A noisy machine then disturbs all of them alike, and every figure can be a ratio to the reference
in the same round. Who fails, or takes too long, is out; the others go on. They are imported side by
side, which nobody's figures count; all else is done by one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .contender import Case, Contender, contenders
from .remote import ContenderFailed, Remote

__all__ = ["Heat", "Point", "Settings", "run_heat"]

START_LIMIT = 600.0
"""Seconds a contender may take to be imported, or to make its own files."""

WARM_ALONE = 1.0
"""Seconds after its first batch that end the warm-up of a heat of one point."""


@dataclass(frozen=True)
class Point:
    """A case, and where it stands on its suite's axis."""

    label: str
    case: Case


@dataclass(frozen=True)
class Heat:
    """Who runs on what."""

    suite: str
    points: tuple[Point, ...]
    names: tuple[str, ...]
    reference: str
    package: str = "benchmarks.peers"


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    Parameters
    ----------
    rounds
        How often each contender runs.
    seconds
        The longest one run over the data may go on after its first batch; it is cut then. Long
        enough for whole epochs of all: a cut in the middle would wrong those whose batches come in
        bursts. Several epochs together are never cut.
    patience
        The longest all rounds of one contender may take; otherwise its first run is its only one.
    hang
        Seconds after which a command is taken for a hang.
    logs
        Where what contenders print goes.
    """

    rounds: int = 5
    seconds: float = 60.0
    patience: float = 120.0
    hang: float = 300.0
    logs: Path = field(default=Path("build/bench/logs"))


class Runner:
    """One contender in a heat."""

    def __init__(self, who: Contender, heat: Heat, settings: Settings) -> None:
        self.who, self.heat, self.settings = who, heat, settings
        self.remote: Remote | None = None
        self.numbers: dict[str, int] = {}
        self.found: dict[str, Any] = {"state": "ok", "points": {}}

    @property
    def works(self) -> bool:
        """Whether it still takes part."""
        return self.found["state"] == "ok"

    def attempt(self, step: Callable[[], None]) -> None:
        """Do something; if that fails, this contender is out, and the reason is kept."""
        if not self.works:
            return
        try:
            step()
        except ContenderFailed as e:
            self.found |= {"state": "failed", "error": str(e)}
            self.close(wait=0.0)

    def load(self) -> None:
        """Start the process and import."""
        log = self.settings.logs / f"{self.heat.suite}-{self.who.name}.log"
        self.remote = Remote(self.who, log, self.heat.package)
        loaded = self.remote.ask("load", limit=START_LIMIT)
        self.found["versions"] = loaded["versions"]
        self.found["import"] = {"memory": loaded["memory"]}

    def warm_up(self) -> None:
        """Convert, open, and go over each case once; where there is one only, over a part of it."""
        for point in self.heat.points:
            if self.who.takes(point.case):
                self._warm(point)

    def _warm(self, point: Point) -> None:
        assert self.remote is not None
        case = _own_scratch(point.case, self.who)
        converted = self.remote.ask("convert", limit=START_LIMIT, case=case.to_json())
        hang = self.settings.hang
        opened, most = self.remote.watched("open", limit=hang, case=case.to_json())
        number = self.numbers[point.label] = len(self.numbers)
        seconds = WARM_ALONE if self._alone else self.settings.seconds
        how = {"number": number, "seconds_limit": seconds, "check": True}
        warm, more = self.remote.watched("run", limit=hang, **how)
        if number == 0:
            self._note_memory(most, more)
        self.found["points"][point.label] = {
            "convert_s": converted.get("seconds"),
            "open_s": opened["seconds"],
            "rows": opened["rows"],
            "warm": warm,
            "runs": [],
        }

    @property
    def _alone(self) -> bool:
        return len(self.heat.points) == 1

    def _note_memory(self, *seen: int) -> None:
        """The most that was seen from outside, or that the process itself knows of."""
        assert self.remote is not None
        own = self.remote.ask("memory", limit=self.settings.hang)["memory"]
        self.found["memory"] = max(self.found.get("memory", 0), own, *seen)

    def run(self, point: Point) -> None:
        """Once over a case, and note what was seen."""
        if point.label not in self.numbers or self._too_slow(point.label):
            return
        assert self.remote is not None
        how = {"number": self.numbers[point.label], "check": False}
        limit, seconds = self.settings.hang, self.settings.seconds
        found = self.remote.ask("run", limit=limit, seconds_limit=seconds, **how)
        runs = self.found["points"][point.label]["runs"]
        runs.append(found)
        if self._alone and len(runs) == 1:  # the first time that it went over all the data
            self._note_memory(0)

    def _too_slow(self, label: str) -> bool:
        """Whether the rounds together would try our patience; the one run must do then."""
        seen = self.found["points"][label]
        took = [run.get("seconds", 0.0) for run in (seen["warm"], *seen["runs"])]
        if not seen["runs"] or min(took) * self.settings.rounds <= self.settings.patience:
            return False
        seen["slow"] = True
        return True

    def close(self, *, wait: float = 5.0) -> None:
        """End the process."""
        if self.remote is not None:
            self.remote.close(wait=wait)
            self.remote = None


def run_heat(heat: Heat, settings: Settings) -> dict[str, Any]:
    """Run it; what was seen, by contender and point."""
    known = contenders(heat.package)
    runners = [Runner(known[name], heat, settings) for name in heat.names]
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            list(threads.map(lambda runner: runner.attempt(runner.load), runners))
        for runner in runners:
            runner.attempt(runner.warm_up)
        for number in range(settings.rounds):
            for point in heat.points:
                for runner in _rotated(runners, number):
                    runner.attempt(lambda r=runner, p=point: r.run(p))  # type: ignore[misc]
    finally:
        for runner in runners:
            runner.close()
    return {
        "suite": heat.suite,
        "reference": heat.reference,
        "points": [{"label": p.label, **_facts(p.case)} for p in heat.points],
        "contenders": {r.who.name: r.found for r in runners},
    }


def _own_scratch(case: Case, who: Contender) -> Case:
    return replace(case, scratch=f"{case.scratch}/{who.name}")


def _rotated(runners: list[Runner], number: int) -> list[Runner]:
    """Beginning with another one each round."""
    first = number % len(runners)
    return runners[first:] + runners[:first]


def _facts(case: Case) -> dict[str, Any]:
    """What the page says of a case."""
    return {
        "rows": case.rows,
        "columns": len(case.columns),
        "lists": len(case.lists),
        "batch": case.batch,
        "shuffle": case.shuffle,
        "workers": case.workers,
        "epochs": case.epochs,
        "remote": bool(case.endpoint),
    }
