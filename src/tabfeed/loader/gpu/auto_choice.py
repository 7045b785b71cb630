"""Which reader trains faster: how ``reader="auto"`` decides.

It begins with Arrow, which leaves the GPU to the model. Only if the model waits for batches does it
try decoding on the GPU, in the same training run, and keeps that if steps become faster. It
compares steps, not readers alone: decoding on the GPU takes time from the model, decoding on the
CPU takes cores and the GIL from the training loop, and only the steps show both.

There is one trial at most, so that a run does not switch back and forth. Arithmetic only, no clock
and no thread: `tabfeed.loader.gpu.auto_reader` measures.
"""

from __future__ import annotations

import logging
from statistics import median

__all__ = ["ARROW", "GPU", "Choice", "Stretch"]

ARROW, GPU = "Arrow", "the GPU"
_WARM = 2.0  # seconds: processes start, libraries load, memory is allocated
_SECONDS = 2.0
_CHUNKS = 8
_WAITS = 0.05  # of the time: less than that is not worth a trial
_GAIN = 1.02
_log = logging.getLogger("tabfeed")


class Stretch:
    """A stretch of training with one reader, chunk by chunk.

    Parameters
    ----------
    warm
        Seconds to leave out at the start.

    Examples
    --------
    >>> stretch = Stretch(warm=0)
    >>> for seconds in (1.0, 1.0, 60.0):  # the last with a validation in between
    ...     stretch.add(seconds, waited=0.5, steps=5)
    >>> round(stretch.step_seconds, 3), round(stretch.waits, 3)
    (0.2, 0.5)
    """

    def __init__(self, warm: float = 0.0) -> None:
        self._warm = warm
        self._seconds = self._waited = 0.0
        self._steps = 0
        self._work: list[float] = []

    def add(self, seconds: float, waited: float, steps: int) -> None:
        """Add a chunk of so many steps, from its request to the request of the next one."""
        if self._warm > 0:
            self._warm -= seconds
            return
        self._seconds += seconds
        self._waited += waited
        self._steps += steps
        self._work.append((seconds - waited) / steps)

    @property
    def full(self) -> bool:
        """Whether it is long enough to judge by."""
        return self._seconds >= _SECONDS and len(self._work) >= _CHUNKS

    @property
    def step_seconds(self) -> float:
        """Time of a step, waiting included; pauses in the training do not count."""
        return median(self._work) + self._waited / self._steps

    @property
    def waits(self) -> float:
        """The share of the time that steps waited for batches."""
        return self._waited / self._steps / max(self.step_seconds, 1e-12)


class Choice:
    """What ``reader="auto"`` has decided so far.

    Attributes
    ----------
    reader
        The reader in use.
    wanted
        The reader to use from the next chunk on.
    settled
        Whether the decision is final: nothing needs to be measured any more.
    why
        The decision and its reason, as a sentence.

    Examples
    --------
    >>> choice = Choice()
    >>> for _ in range(20):
    ...     choice.add(1.0, waited=0.25, steps=10)
    >>> choice.reader, choice.wanted
    ('Arrow', 'the GPU')
    """

    def __init__(self) -> None:
        self.reader = self.wanted = ARROW
        self.settled = False
        self.why = f"{ARROW}: nothing was measured yet"
        self._stretch = Stretch(_WARM)
        self._before: Stretch | None = None
        self._rates: dict[str, float] = {}

    @property
    def trying(self) -> bool:
        """Whether decoding on the GPU is on trial."""
        return self.reader == GPU and not self.settled

    def add(self, seconds: float, waited: float, steps: int, rate: float = 0.0) -> None:
        """Add a chunk, as in `Stretch.add`, and the reader's rate in rows a second."""
        if self.settled or self.wanted != self.reader:
            return
        self._rates[self.reader] = rate
        self._stretch.add(seconds, waited, steps)
        if self._stretch.full:
            done, self._stretch = self._stretch, Stretch()
            if self.trying:
                self._judge(done)
            else:
                self._look(done)

    def _look(self, now: Stretch) -> None:
        """Whether it is worth a trial."""
        waits = f"training waits {now.waits:.0%} of its time for batches"
        again = self._before is not None  # the first time processes may still be starting
        self._before = now if now.waits > _WAITS else None
        if self._before is None or not again:
            self.why = f"{ARROW}: {waits}{self._reads(ARROW)}"
            return
        self.wanted = GPU
        self.why = f"{ARROW}: {waits}{self._reads(ARROW)}; {GPU} will be tried"

    def _judge(self, now: Stretch) -> None:
        """Whether the trial was worth it."""
        assert self._before is not None
        gain = self._before.step_seconds / now.step_seconds
        kept = gain >= _GAIN
        self.wanted, self.settled = (GPU if kept else ARROW), kept
        self._log_choice(
            f"{self.wanted}: steps came {gain:.2f} times as fast with {GPU}, waiting "
            f"{now.waits:.0%} of the time{self._reads(GPU)}, as with {ARROW}, waiting "
            f"{self._before.waits:.0%}{self._reads(ARROW)}"
        )

    def went_over(self) -> None:
        """The wanted reader reads from now on."""
        self.reader = self.wanted
        self._stretch = Stretch(_WARM)
        self.settled = self.reader == ARROW or self.settled
        if self.trying:
            self.why = f"{GPU}: on trial{self._waited_before()}"

    def refuse(self, reason: str) -> None:
        """Use Arrow for good, since the GPU cannot decode."""
        self.wanted = ARROW
        self.settled = self.reader == ARROW
        self._log_choice(f"{ARROW}: {GPU} was to be tried{self._waited_before()}, but {reason}")

    def end(self, why: str) -> None:
        """Use Arrow for good, for a reason other than the measurements."""
        self.reader = self.wanted = ARROW
        self.settled = True
        self._log_choice(why)

    def _waited_before(self) -> str:
        before = self._before
        return f", since training waited {before.waits:.0%} of its time" if before else ""

    def _reads(self, reader: str) -> str:
        rate = self._rates.get(reader, 0.0)
        return f" ({reader} reads {rate / 1e6:,.1f} million rows/s)" if rate else ""

    def _log_choice(self, why: str) -> None:
        self.why = why
        _log.info("reader: %s", why)
