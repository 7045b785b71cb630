"""``reader="auto"``: a pipeline that changes its reader in mid-epoch, if that trains faster.

How long a step waits is measured by the GPU's own clock, since Python may run ahead of it: by an
event behind the model's work when the next chunk is requested, and the event behind that chunk. If
the second comes later, the model was idle in between. These are two events a chunk, read once they
have happened; no thread waits for them.

The change is that of `tabfeed.loader.gpu.pipeline`; it makes one step slow, and happens at most
twice. It waits as long as others (a second iterator, a loader made by `map`) use the same memory.
At that point the training loop still has the last batch, which is a view of its chunk. Arrow's
chunk, the larger one, has to be freed before the GPU's memory is allocated; so once decoding on the
GPU is wanted, the last batch of a chunk is a copy.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch

from tabfeed.errors import TabfeedError
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu.auto_choice import GPU, Choice
from tabfeed.loader.gpu.delivery import GpuStages, timed_event
from tabfeed.loader.gpu.pipeline import GpuIterator, GpuPipeline, GpuState
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.plan import Epoch, Plan
from tabfeed.loader.position import Position
from tabfeed.loader.read.blocks import ReadsBlocks
from tabfeed.loader.read.partition_reader import ReadsParts
from tabfeed.loader.state import LoaderState
from tabfeed.loader.tensors.tree import copied

__all__ = ["AutoIterator", "AutoPipeline", "AutoState", "Backends", "Meter", "Metered"]

B = TypeVar("B")


class Meter:
    """How fast a reader reads: its rows, and the time during which any read was running.

    Examples
    --------
    >>> times = iter([0.0, 0.5, 1.5, 2.0])
    >>> meter = Meter(lambda: next(times))
    >>> meter.begin(); meter.begin(); meter.end(300); meter.end(100)
    >>> meter.rate
    200.0
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._rows, self._running = 0, 0
        self._busy = self._since = 0.0

    def begin(self) -> None:
        """A reading begins."""
        with self._lock:
            now = self._clock()
            if not self._running:
                self._since = now
            self._running += 1

    def end(self, rows: int) -> None:
        """A reading is done."""
        with self._lock:
            now = self._clock()
            self._busy, self._since = self._busy + now - self._since, now
            self._running -= 1
            self._rows += rows

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self._rows / self._busy if self._busy else 0.0


@dataclass(frozen=True)
class Metered:
    """A reader of blocks, with a meter."""

    reader: ReadsBlocks
    meter: Meter = field(default_factory=Meter)

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return self.reader.parts

    def reading(self, parts: ReadsParts) -> Metered:
        """The same for another reader of the same partitions."""
        return replace(self, reader=self.reader.reading(parts))

    def close(self) -> None:
        """End the processes of the reader."""
        self.reader.close()

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> Any:
        """Some blocks of an epoch."""
        rows = 0
        self.meter.begin()
        try:
            blocks = self.reader.read(epoch, numbers)
            rows = sum(epoch.block_rows(n) for n in numbers)
            return blocks
        finally:
            self.meter.end(rows)


class _Mark(NamedTuple):
    """Events of a chunk: the end of the model's work at its request, and its own end."""

    asked: Any
    made: Any
    step: int


class _Timeline:
    """The chunks of one epoch whose events are still to happen."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self._first = True

    def add(self, mark: _Mark) -> None:
        """Add a chunk; the first of an epoch is skipped, since it waits for reading to start."""
        if self._first:
            self._first = False
        else:
            self._marks.append(mark)

    def tell(self, choice: Choice, rate: float) -> None:
        """Report the chunks whose events have happened."""
        marks = self._marks
        while len(marks) > 1 and marks[0].made.query() and marks[1].asked.query():
            this, after = marks.popleft(), marks[0]
            seconds = this.asked.elapsed_time(after.asked) / 1000
            waited = this.asked.elapsed_time(this.made) / 1000
            choice.add(seconds, min(max(waited, 0.0), seconds), after.step - this.step, rate)


class Backends(NamedTuple):
    """The two ways of making a pipeline's batches on a GPU.

    Attributes
    ----------
    build
        A pipeline for which the GPU decodes (True) or Arrow does; None if memory is too small.
    why_not
        Why the GPU cannot decode, None if it can; may take seconds, to load what does.
    for_plan
        The same two for another plan of the same rows.
    """

    build: Callable[[bool], Pipeline[Any] | None]
    why_not: Callable[[], str | None]
    for_plan: Callable[[Plan], Any]


class _Loading(threading.Thread):
    """Loads the decoders for the GPU, beside the training."""

    def __init__(self, why_not: Callable[[], str | None]) -> None:
        super().__init__(name="tabfeed-loading")
        self._why_not, self.reason = why_not, "it could not be loaded"  # until it has been
        self.ok = False
        self.start()

    def run(self) -> None:
        reason = self._why_not()
        self.ok, self.reason = reason is None, reason or ""


def _made_by_itself(plan: Plan) -> Pipeline[Any]:
    raise AssertionError("what was made for a plan is its own matter")


@dataclass(frozen=True, eq=False, kw_only=True)
class AutoPipeline(GpuPipeline[B]):
    """A pipeline that begins with Arrow and may go over to the GPU.

    Attributes
    ----------
    backends
        Both ways to make its batches on the GPU.
    """

    remake: Callable[[Plan], Pipeline[Any]] = _made_by_itself
    backends: Backends

    def start(self) -> GpuState[B]:
        """A position at the first batch of epoch 0, from which epochs are read."""
        if isinstance(self.stages, GpuStages):
            return AutoState(self)
        return super().start()  # it has given up its memory


class AutoState(GpuState[B]):
    """The state of a loader that begins with Arrow and may go over to the GPU.

    Parameters
    ----------
    pipeline
        Makes the batches with Arrow.
    """

    pipeline: AutoPipeline[B]

    def __init__(self, pipeline: AutoPipeline[B]) -> None:
        super().__init__(replace(pipeline, stages=_watched(pipeline.stages)))
        self.choice = Choice()
        self._loading: _Loading | None = None
        # Those that use the same memory.
        self._kin: weakref.WeakSet[AutoState[Any]] = weakref.WeakSet([self])

    @property
    def reader_choice(self) -> str:
        """Which reader, and why."""
        return self.choice.why

    def tell(self, why: str) -> None:
        """Say who reads now, and why; for good."""
        self.choice.end(why)

    def _made_for(self, plan: Plan) -> Pipeline[Any]:
        self.pipeline = replace(self.pipeline, backends=self.pipeline.backends.for_plan(plan))
        made, _ = self._built(self.choice.reader == GPU)
        if made is None:
            made, _ = self._built(False)
        return made or self.pipeline.spare

    def take_over(self, made: Pipeline[Any]) -> None:
        """Make batches as another pipeline of the same rows does."""
        super().take_over(made)
        if isinstance(self.pipeline.stages, GpuStages):
            self.pipeline = replace(self.pipeline, stages=_watched(self.pipeline.stages))

    def finishing(self, finish: Callable[[Chunk], list[Any]]) -> LoaderState[Any]:
        """The same chunks at the same position, cut into batches by another function."""
        new = super().finishing(finish)
        if isinstance(new, AutoState):
            new._kin = self._kin
            new._kin.add(new)
        elif isinstance(new, GpuState):
            new.tell(self.reader_choice)
        return new

    def _begin_at(self, begin: Position) -> AutoIterator[B]:
        return AutoIterator(self, begin, self._on_batch)

    def may_change(self) -> bool:
        """Whether another reader is wanted and can be had at this moment."""
        if self.choice.wanted == self.choice.reader:
            return False
        if self.choice.wanted == GPU and not self._loaded():
            return False
        there = [i for i in self._iterators if isinstance(i, GpuIterator) and i.there]
        return len(self._kin) == 1 and len(there) == 1

    def _loaded(self) -> bool:
        """Whether what decodes there is loaded; if not yet, it soon will be."""
        if self._loading is None:
            self._loading = _Loading(self.pipeline.backends.why_not)
        if self._loading.is_alive():
            return False
        if not self._loading.ok:
            self.choice.refuse(self._loading.reason)
        return self._loading.ok

    def change(self) -> None:
        """Go over to the reader that is wanted. Nothing else may hold the stages."""
        finish = self.pipeline.stages.finish
        made: Pipeline[Any] | None = None
        self.let_go()
        if self.choice.wanted == GPU:
            made, why_not = self._built(True)
            if made is None:
                self.choice.refuse(why_not)
        if made is None:
            made, why_not = self._built(False)
        if made is None:  # though it was there before
            self.take_over(self.spare(finish))
            self.tell(f"Arrow: batches are made in host memory and copied: {why_not}")
            return
        self.choice.went_over()
        self.take_over(made.finishing(finish))

    def _built(self, on_gpu: bool) -> tuple[Pipeline[Any] | None, str]:
        """A pipeline for which the GPU decodes, or Arrow does; None, and why there is none."""
        try:
            made = self.pipeline.backends.build(on_gpu)
        except (TabfeedError, MemoryError, RuntimeError) as e:
            return None, f"it cannot begin: {e}"
        return made, "" if made else "device_memory is too small for it"


def _watched(stages: Any) -> Any:
    reader = stages.reader
    metered = reader if isinstance(reader, Metered) else Metered(reader)
    return replace(stages, reader=metered, timed=True)


class AutoIterator(GpuIterator[B]):
    """Batches of one epoch, by whichever reader the pipeline has chosen.

    Parameters
    ----------
    state
        Whose.
    position
        Where to begin.
    """

    _state: AutoState[B]

    def _start(self) -> None:
        self._timeline = _Timeline()
        self._own_batch = False  # whether the program's last batch holds no other memory
        super()._start()

    def _take_now(self) -> list[B]:
        state = self._state
        if state.choice.settled:
            return super()._take_now()
        meter: Meter = self._stages.reader.meter  # type: ignore[attr-defined]
        self._timeline.tell(state.choice, meter.rate)
        if self._step < self._plan.steps and state.may_change() and self._can_let_go():
            self._go_over(state.change)
        asked = timed_event(torch.cuda.current_stream(self._stages.device))  # type: ignore[attr-defined]
        made = self._next_chunk()
        self._timeline.add(_Mark(asked, made.event, self._step))
        batches = self._stages.arrive(made)
        if state.choice.wanted == GPU != state.choice.reader:
            self._own_batch = True
            if self._plan.chunk > 1:
                batches[-1] = copied(batches[-1])
        return batches

    def _can_let_go(self) -> bool:
        """Whether the program's last batch holds no chunk that is larger than those to come."""
        return self._own_batch or self._state.choice.reader == GPU

    def _next_chunk(self) -> Any:
        """The next chunk; from Arrow, if the GPU fails while it is on trial."""
        try:
            return super()._next_chunk()
        except StopIteration:
            raise
        except Exception as e:  # whatever it is: Arrow will say if the data are to blame
            if self._closed or self._sent_aside or not self._state.choice.trying:
                raise
            self._state.choice.refuse(f"it failed: {e!r}")
        self._go_over(self._state.change)
        return super()._next_chunk()
