"""What a verdict is made of: causes, evidence, advice."""

from __future__ import annotations

from dataclasses import dataclass

from tabfeed.profile.format import percent, times
from tabfeed.profile.run import Run

__all__ = [
    "CAUSES",
    "LITTLE",
    "Advice",
    "Verdict",
    "cause_of",
    "crowded",
    "step_without_waiting",
    "top_places",
    "waited",
]

LITTLE = 1.05  # a gain not worth a word
CAUSES = {
    "short": "too little to say",
    "unseen": "waits not visible",
    "startup": "start-up",
    "read": "starved by reading",
    "decode": "starved by decoding",
    "transform": "starved by the transform",
    "gather": "starved by shuffling",
    "batches": "starved by making batches",
    "copy": "held up by the copy to the device",
    "python": "held up by Python in the training loop",
    "small_batches": "batches too small",
    "workers": "starved by worker processes",
    "input": "starved by the input",
    "crowded": "cores too crowded",
    "compute": "compute-bound",
}


@dataclass(frozen=True)
class Advice:
    """Something to do, and how many times as fast training would be at most, if that is known."""

    text: str
    gain: float | None = None

    def __str__(self) -> str:
        if self.gain is None or self.gain < LITTLE:
            return self.text
        return f"{self.text} (up to {times(self.gain)})"


@dataclass(frozen=True)
class Verdict:
    """The cause, by a word of `CAUSES`; a sentence; why; what to do."""

    cause: str
    sentence: str
    evidence: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def good(self) -> bool:
        """Whether there is nothing to do about the input."""
        return self.cause == "compute"


def cause_of(run: Run, verdict: Verdict) -> str:
    """The cause in a few words; a feed without a model is limited, not starved."""
    words = CAUSES[verdict.cause]
    return words if run.model else words.replace("starved", "limited").replace("held up", "limited")


def waited(run: Run) -> str:
    """How much the loop waited, and what the GPU saw of it."""
    host = f"waiting for data: {percent(run.times.wait_share)} of the time after start-up"
    if run.device is None:
        return host
    return f"{host}; the GPU was idle for want of a batch {percent(run.wait_share)}"


def crowded(run: Run) -> tuple[str, ...]:
    """The training thread's wait for a core, if it is long enough to matter."""
    main = next((t for t in run.threads if t.name == "MainThread"), None)
    if main is None or run.elapsed <= 0 or main.delay / run.elapsed < 0.2:
        return ()
    share = percent(main.delay / run.elapsed)
    return (
        f"the training thread waited for a core {share} of the time: too much runs here at once",
    )


def top_places(run: Run, phase: str) -> list[str]:
    """Where the training thread was found most, in one phase."""
    looks = [s for s in run.seen if s.phase == phase]
    total = sum(s.count for s in looks)
    return [f"found in {s.where}: {percent(s.count / total)} of looks" for s in looks[:2]]


def step_without_waiting(run: Run) -> float:
    """Seconds of a step, less its wait."""
    return (run.times.compute + run.times.copy) / run.steps.count
