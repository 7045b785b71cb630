"""Which reader trains faster: what ``reader="auto"`` concludes from what it sees.

It begins with Arrow, which takes nothing of the GPU from the model. Only where the model waits for
batches is decoding on the GPU tried, under the same training, and kept if steps come faster. What
is compared are steps, not readers alone: decoding on the GPU takes time from the model, decoding on
the CPU takes cores and the interpreter from the training loop, and only the steps show both.

One trial at most: a training run that goes back and forth would never be at its best. Pure
arithmetic, no clock and no thread: `tabfeed.loader.gpu.auto_reader` brings the figures.
"""

from __future__ import annotations

import logging
from statistics import median

__all__ = ["ARROW", "GPU", "Choice", "Stretch"]

ARROW, GPU = "Arrow", "the GPU"
_WARM = 2.0  # seconds: processes come up, libraries load, memory is asked for
_SECONDS = 2.0
_CHUNKS = 8
_WAITS = 0.05  # of the time: less than that is not worth a trial
_GAIN = 1.02
_log = logging.getLogger("tabfeed")


class Stretch:
    """Some time of training with one reader, chunk by chunk.

    Parameters
    ----------
    warm
        Seconds to let pass first.

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
        """A chunk of so many steps, from asking for it to asking for the next one."""
        if self._warm > 0:
            self._warm -= seconds
            return
        self._seconds += seconds
        self._waited += waited
        self._steps += steps
        self._work.append((seconds - waited) / steps)

    @property
    def full(self) -> bool:
        """Whether it was long enough to conclude anything."""
        return self._seconds >= _SECONDS and len(self._work) >= _CHUNKS

    @property
    def step_seconds(self) -> float:
        """Time of a step, what it waited included; a pause in the training does not count."""
        return median(self._work) + self._waited / self._steps

    @property
    def waits(self) -> float:
        """The share of the time that steps waited for batches."""
        return self._waited / self._steps / max(self.step_seconds, 1e-12)


class Choice:
    """What a loader has concluded so far.

    Attributes
    ----------
    reader
        Who reads.
    wanted
        Who should, from the next chunk on.
    settled
        Whether that is the end of it: nothing needs to be measured any more.
    why
        All of it in a sentence.

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
        """Whether the GPU is on trial."""
        return self.reader == GPU and not self.settled

    def add(self, seconds: float, waited: float, steps: int, rate: float = 0.0) -> None:
        """A chunk, as in `Stretch.add`; and how many rows a second the reader reads by now."""
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
        again = self._before is not None  # the first time it may be processes that come up
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
        self._say(
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
            self.why = f"{GPU}: on trial{self._told_before()}"

    def refuse(self, reason: str) -> None:
        """Use Arrow for good, since the GPU cannot decode."""
        self.wanted = ARROW
        self.settled = self.reader == ARROW
        self._say(f"{ARROW}: {GPU} was to be tried{self._told_before()}, but {reason}")

    def end(self, why: str) -> None:
        """Use Arrow for good, for another reason than what was measured."""
        self.reader = self.wanted = ARROW
        self.settled = True
        self._say(why)

    def _told_before(self) -> str:
        before = self._before
        return f", since training waited {before.waits:.0%} of its time" if before else ""

    def _reads(self, reader: str) -> str:
        rate = self._rates.get(reader, 0.0)
        return f" ({reader} reads {rate / 1e6:,.1f} million rows/s)" if rate else ""

    def _say(self, why: str) -> None:
        self.why = why
        _log.info("reader: %s", why)
