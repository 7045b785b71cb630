"""Parts of a verdict: causes, evidence, advice."""

from __future__ import annotations

from dataclasses import dataclass

from tabfeed.profile.format import percent, times
from tabfeed.profile.run import Run

__all__ = [
    "CAUSES",
    "MIN_GAIN",
    "Advice",
    "Verdict",
    "cause_of",
    "crowded",
    "step_without_waiting",
    "top_lines",
    "waited",
]

MIN_GAIN = 1.05  # a smaller gain is not mentioned
CAUSES = {
    "short": "run too short",
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
    """Something to do, and the highest speedup of training to expect, if known."""

    text: str
    gain: float | None = None

    def __str__(self) -> str:
        if self.gain is None or self.gain < MIN_GAIN:
            return self.text
        return f"{self.text} (up to {times(self.gain)})"


@dataclass(frozen=True)
class Verdict:
    """The cause, a key of `CAUSES`; one sentence; evidence; what to do."""

    cause: str
    sentence: str
    evidence: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the input needs no improvement."""
        return self.cause == "compute"


def cause_of(run: Run, verdict: Verdict) -> str:
    """The cause in a few words; a loader without a model is limited, not starved."""
    text = CAUSES[verdict.cause]
    return text if run.model else text.replace("starved", "limited").replace("held up", "limited")


def waited(run: Run) -> str:
    """How long the loop waited for data, and the GPU with it."""
    host = f"waiting for data: {percent(run.times.wait_share)} of the time after start-up"
    if run.device is None:
        return host
    return f"{host}; the GPU was idle for {percent(run.wait_share)} of it"


def crowded(run: Run) -> tuple[str, ...]:
    """The training thread's wait for a core, if it matters."""
    main = next((t for t in run.threads if t.name == "MainThread"), None)
    if main is None or run.elapsed <= 0 or main.delay / run.elapsed < 0.2:
        return ()
    share = percent(main.delay / run.elapsed)
    return (
        f"the training thread waited for a core {share} of the time: the machine is overloaded",
    )


def top_lines(run: Run, phase: str) -> list[str]:
    """The lines the training thread was at most often, in one phase."""
    samples = [s for s in run.seen if s.phase == phase]
    total = sum(s.count for s in samples)
    return [f"in {s.where}: {percent(s.count / total)} of samples" for s in samples[:2]]


def step_without_waiting(run: Run) -> float:
    """Seconds of a step without its wait."""
    return (run.times.compute + run.times.copy) / run.steps.count
