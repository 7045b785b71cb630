"""A heat: a few contenders in turn, round by round, each in a process of its own.

A noisy machine then disturbs all of them alike, and every figure can be a ratio to the reference
in the same round. Who fails, or takes too long, is out; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .contender import Case, Contender, contenders
from .remote import ContenderFailed, Remote

__all__ = ["Heat", "Point", "Settings", "run_heat"]

START_LIMIT = 600.0
"""Seconds a contender may take to be imported, or to make its own files."""


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
        The longest one run over the data; it is cut after that. Long enough for whole epochs of
        all but a few: a cut in the middle would wrong those whose batches come in bursts. Several
        epochs together are never cut.
    patience
        The longest all rounds of one contender may take; otherwise the run that warms up counts.
    hang
        Seconds after which a command is taken for a hang.
    logs
        Where what contenders print goes.
    """

    rounds: int = 5
    seconds: float = 4.0
    patience: float = 60.0
    hang: float = 240.0
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

    def start(self) -> None:
        """Start the process, import, convert, open, and go over each case once to warm up."""
        log = self.settings.logs / f"{self.heat.suite}-{self.who.name}.log"
        self.remote = Remote(self.who, log, self.heat.package)
        loaded = self.remote.ask("load", limit=START_LIMIT)
        self.found["versions"] = loaded["versions"]
        self.found["import"] = {"seconds": loaded["seconds"], "memory": loaded["memory"]}
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
        warm, more = self.remote.watched("run", limit=hang, **self._how(number, check=True))
        if number == 0:
            own = self.remote.ask("memory", limit=hang)["memory"]
            self.found["memory"] = max(most, more, own)
        self.found["points"][point.label] = {
            "convert_s": converted.get("seconds"),
            "open_s": opened["seconds"],
            "rows": opened["rows"],
            "warm": warm,
            "runs": [],
        }

    def _how(self, number: int, *, check: bool) -> dict[str, Any]:
        return {"number": number, "seconds_limit": self.settings.seconds, "check": check}

    def run(self, point: Point) -> None:
        """Once over a case, and note what was seen."""
        if point.label not in self.numbers or self._too_slow(point.label):
            return
        assert self.remote is not None
        number = self.numbers[point.label]
        found = self.remote.ask("run", limit=self.settings.hang, **self._how(number, check=False))
        self.found["points"][point.label]["runs"].append(found)

    def _too_slow(self, label: str) -> bool:
        """Whether the rounds together would try our patience; the one run must do then."""
        seen = self.found["points"][label]
        if seen["warm"].get("seconds", 0.0) * self.settings.rounds <= self.settings.patience:
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
        for runner in runners:
            runner.attempt(runner.start)
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
