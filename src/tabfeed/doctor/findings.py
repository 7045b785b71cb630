"""What the doctor says: findings with their evidence and what each costs, and one sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tabfeed.doctor.measure import Cost
from tabfeed.profile.format import rate

__all__ = ["Diagnosis", "Finding", "Forecast"]


@dataclass(frozen=True)
class Finding:
    """One thing about the files.

    Attributes
    ----------
    name
        A word for programs: "codec", "small_files" and so on.
    title, evidence
        What it is, and what shows it.
    cost
        How many times as long reading takes because of it, measured; None where it is not a matter
        of time, or could not be measured.
    note
        What to say instead of a cost; empty if there is nothing to be done.
    cure
        "rewrite", "rewrite --shuffle", "workflow", or "" where there is none.
    advice
        What to do.
    """

    name: str
    title: str
    evidence: str
    cost: Cost | None = None
    note: str = ""
    cure: str = "rewrite"
    advice: str = ""

    @property
    def matters(self) -> bool:
        """Whether something should be done about it."""
        return bool(self.note) if self.cost is None else self.cost.matters


@dataclass(frozen=True)
class Forecast:
    """What rewriting in one layout would give, measured on the sample.

    Attributes
    ----------
    layout
        "fast" or "compact".
    gain
        How many times as fast reading would be.
    size
        How many times as large the files would be.
    """

    layout: str
    gain: Cost
    size: float


@dataclass(frozen=True)
class Diagnosis:
    """What slows the reading of a dataset, and what rewriting it would give."""

    path: str
    rows: int
    files: int
    stored: int
    sample_rows: int
    rows_per_second: float
    findings: tuple[Finding, ...]
    forecasts: tuple[Forecast, ...]
    left_out: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def best(self) -> Forecast:
        """The layout that reads faster."""
        return max(self.forecasts, key=lambda f: f.gain.ratio)

    @property
    def verdict(self) -> str:
        """All of it in one sentence."""
        if self.unreadable:
            return (
                f"{len(self.unreadable)} of the files cannot be read: write them again or leave "
                f"them out before anything else. {self._of_the_rest()}"
            )
        return self._of_the_rest()

    def _of_the_rest(self) -> str:
        best = self.best
        now, then = self.rows_per_second, self.rows_per_second * best.gain.ratio
        worst = self._worst()
        if not best.gain.matters:
            if not worst:
                return (
                    f"These files are fine: read at {rate(now)} here, and rewriting gains nothing."
                )
            return f"Rewriting alone gains nothing here ({rate(now)}); what would help: {worst}."
        larger = f"{best.size:.1f} times as large" if best.size >= 1.05 else "no larger"
        mostly = f", mostly because of {worst}" if worst else ""
        return (
            f"Rewritten, these files would be read {best.gain.ratio:.1f} times as fast "
            f"({rate(now)} now, {rate(then)} then) and be {larger}{mostly}."
        )

    def _worst(self) -> str:
        timed = [f for f in self.findings if f.name != "skew" and f.cost and f.cost.matters]
        if not timed:
            return ""
        top = max(timed, key=lambda f: f.cost.ratio if f.cost else 0.0)
        return top.title[0].lower() + top.title[1:]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        told = asdict(self)
        for finding, values in zip(self.findings, told["findings"], strict=True):
            values["matters"] = finding.matters
        return {"verdict": self.verdict, **told}

    def __str__(self) -> str:
        from tabfeed.doctor.terminal import report

        return report(self)
