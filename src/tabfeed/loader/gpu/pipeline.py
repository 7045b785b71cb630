"""A pipeline whose batches are made on a GPU, and a state that can go over to another pipeline.

The order of rows depends neither on the reader nor on the number of batches in a chunk. So an
iterator changes over by starting again at its current step. It frees the memory of one pipeline
before it allocates that of another.

If a GPU runs out of memory in mid-epoch, because the model or another process needs more than
before, the loader frees its share: from then on it makes batches in host memory and copies them. It
does so when it finds no memory itself, and on request (`release_memory`), after a training step
found none.

The memory is enough for one iterator at a time, the newest one. An older iterator that still runs
goes on in host memory; so do single batches taken in between (`peek`, a batch by its number).
"""

from __future__ import annotations

import gc
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from tabfeed.errors import TabfeedWarning
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu.delivery import DeviceLease, GpuStages
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Pipeline, Stages
from tabfeed.loader.plan import Plan
from tabfeed.loader.position import Position, restore
from tabfeed.loader.prefetch import Prefetch
from tabfeed.loader.state import EpochIterator, LoaderState

__all__ = ["GpuIterator", "GpuPipeline", "GpuState", "no_memory"]

B = TypeVar("B")
_GIVEN_UP = (
    "there was no memory left on the GPU, so the loader has given up its own: from now on batches "
    "are made in host memory and copied"
)
_RELEASED = "as requested, batches are made in host memory and copied"


@dataclass(frozen=True, eq=False, kw_only=True)
class GpuPipeline(Pipeline[B]):
    """A pipeline whose stages make batches on a GPU, and what replaces them.

    Attributes
    ----------
    spare
        Makes the batches in host memory, and copies them.
    remake
        Gives such a pipeline for another plan of the same rows, for which other memory is needed.
    """

    spare: Pipeline[Any]
    remake: Callable[[Plan], Pipeline[Any]]

    def start(self) -> GpuState[B]:
        """A position at the first batch of epoch 0, from which epochs are read."""
        return GpuState(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process batches are made on the CPU.
        return Pipeline, (self.stages, self.plan, self.options, self.reader_choice)


class GpuState(LoaderState[B]):
    """The state of a loader that gives its memory on the GPU up if there is none left.

    Parameters
    ----------
    pipeline
        Makes the batches on the GPU.
    """

    pipeline: GpuPipeline[B]

    def __init__(self, pipeline: GpuPipeline[B]) -> None:
        super().__init__(pipeline)
        self._sized_for = sizes_of(pipeline.plan)

    def finishing(self, finish: Callable[[Chunk], list[Any]]) -> LoaderState[Any]:
        """The same chunks at the same position, cut into batches by another function."""
        new = super().finishing(finish)
        if isinstance(new, GpuState):
            new._sized_for = self._sized_for
        return new

    def _iterator(
        self, stages: Stages[Any], begin: Position, options: LoaderOptions
    ) -> EpochIterator[Any]:
        if stages is not self.pipeline.stages:
            return super()._iterator(stages, begin, options)
        return self._begin_at(begin)

    def _begin_at(self, begin: Position) -> GpuIterator[B]:
        return GpuIterator(self, begin, self._on_batch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter` goes on where `state` stands, in constant time.

        If that was planned for other ranks or streams, memory is divided anew.
        """
        super().load_state_dict(state)
        plan = self._next.plan
        if isinstance(self.pipeline.stages, GpuStages) and not self.has_room(plan):
            self.release_iterators()
            finish = self.pipeline.stages.finish
            self.let_go()
            self._sized_for, made = sizes_of(plan), self._made_for(plan)
            if isinstance(made, GpuPipeline):
                self.pipeline = replace(self.pipeline, spare=made.spare)
            self.take_over(made.finishing(finish))

    def has_room(self, plan: Plan) -> bool:
        """Whether the memory on the GPU was divided for plans like this one."""
        return sizes_of(plan) == self._sized_for

    def _made_for(self, plan: Plan) -> Pipeline[Any]:
        """A pipeline with memory for another plan."""
        made = self.pipeline.remake(plan)
        if made.reader_choice:
            self.tell(made.reader_choice)
        return made

    def seek(self, step: int) -> EpochIterator[B]:
        """Batches of the epoch that comes next from `step` on, without moving on to it."""
        begin, stages = self._next._replace(step=step), self.pipeline.stages
        free = isinstance(stages, GpuStages) and not stages.turn.taken
        iterator = GpuIterator(self, begin, _ignore) if free else self._aside(begin)
        self._keep_track_of(iterator)
        return iterator

    def _aside(self, begin: Position, **few: Any) -> EpochIterator[B]:
        """Batches from a position on, made in host memory: an epoch may have the GPU's."""
        spare = self.spare(self.pipeline.stages.finish)
        options = replace(spare.options, **few)
        begin = begin.with_chunk(spare.plan.chunk)
        return EpochIterator(spare.stages, begin, options.shard, options)

    def spare(self, finish: Callable[[Chunk], list[Any]]) -> Pipeline[Any]:
        """Makes the same batches in host memory, and copies them."""
        return self.pipeline.spare.finishing(finish)

    def give_up(self) -> None:
        """Make batches in host memory from now on.

        What others hold of the memory (a second iterator, a loader made by `map`) stays until they
        give it up as well.
        """
        self._leave_gpu(_GIVEN_UP)
        warnings.warn(_GIVEN_UP, TabfeedWarning, stacklevel=6)  # the training loop

    def release_memory(self) -> None:
        """The same because the program wants it; a pass that runs goes on with its next chunk."""
        self.release_iterators()
        if isinstance(self.pipeline.stages, GpuStages):
            self._leave_gpu(_RELEASED)

    def release_iterators(self) -> None:
        """Have all passes go on in host memory."""
        for iterator in list(self._iterators):
            if isinstance(iterator, GpuIterator):
                iterator.release()

    def _leave_gpu(self, why: str) -> None:
        finish = self.pipeline.stages.finish
        self.let_go()
        self.take_over(self.spare(finish))
        self.tell(f"Arrow: {why}")

    def tell(self, why: str) -> None:
        """Say who reads now, and why."""
        self.pipeline = replace(self.pipeline, reader_choice=why)

    def let_go(self) -> None:
        """Give up all memory on the GPU."""
        stages = self.pipeline.stages
        if isinstance(stages, GpuStages):
            stages.let_go()
            self.pipeline = replace(self.pipeline, stages=self.spare(stages.finish).stages)
        del stages
        gc.collect()  # an error that is on its way may hold some of it
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # pylibcudf's memory comes from elsewhere

    def take_over(self, made: Pipeline[Any]) -> None:
        """Make batches as another pipeline of the same rows does."""
        plan = replace(self.pipeline.plan, chunk=made.plan.chunk)
        parts: Any = {"stages": made.stages, "options": made.options, "plan": plan}
        self.go_over(replace(self.pipeline, **parts))


class GpuIterator(EpochIterator[B]):
    """Batches of one epoch, in whichever way the pipeline makes them.

    Parameters
    ----------
    state
        Whose.
    position
        Where to begin.
    on_batch
        As for `EpochIterator`.
    """

    def __init__(
        self,
        state: GpuState[B],
        position: Position,
        on_batch: Callable[[EpochIterator[B], int], None],
    ) -> None:
        self._state, self._closed = state, False
        self._sent_aside = False  # to be told by the next `_take`, which goes on elsewhere
        self._taking = False  # whether a thread is just about to take a chunk
        self._lock = threading.RLock()  # of these, and of `_recipe` and `_prefetch`
        stages, options = state.pipeline.stages, state.pipeline.options
        self._stages, self._finish = stages, stages.finish
        if isinstance(stages, GpuStages):
            stages.turn.take(self)  # not with the lock: two passes would wait for each other
        with self._lock:
            super().__init__(stages, position, options.shard, options, on_batch)
            if self._sent_aside:  # by another thread, meanwhile
                self._leave_gpu()

    def _take(self) -> list[B]:
        while self._begin_taking():
            try:
                return self._take_now()
            except Exception as e:  # StopIteration too: another thread may have sent it aside
                if not self._sent_aside and (self._closed or not no_memory(e)):
                    if not isinstance(e, StopIteration):
                        self.close()  # or the next chunk would follow as if nothing had happened
                    raise
                traceback.clear_frames(e.__traceback__)  # their variables hold some of the memory
            finally:
                self._end_taking()
            if not self._sent_aside:
                self._go_over(self._state.give_up)
        return super()._take()

    def _begin_taking(self) -> bool:
        """Whether to take a chunk that was made on the GPU."""
        with self._lock:
            if self._sent_aside and not self._closed:
                self._go_on_aside()
            self._taking = self.there and not self._closed
            return self._taking

    def _end_taking(self) -> None:
        with self._lock:
            self._taking = False
            if self._sent_aside or self._closed:
                self._leave_gpu()

    def _take_now(self) -> list[B]:
        return super()._take()

    @property
    def there(self) -> bool:
        """Whether its chunks are made on the GPU."""
        return isinstance(self._stages, GpuStages)

    def evict(self, turn: DeviceLease) -> None:
        """Free the GPU memory of the next chunks, for an iterator that begins now.

        May be called from another thread. This iterator goes on in host memory, with its next
        chunk.
        """
        with self._lock:
            stages = self._stages
            if self._closed or not isinstance(stages, GpuStages) or stages.turn is not turn:
                return
            self._sent_aside = True
            if hasattr(self, "_prefetch"):  # else it will see that by itself
                self._leave_gpu()

    def release(self) -> None:
        """Free the GPU memory of the next chunks, for good."""
        stages = self._stages
        if isinstance(stages, GpuStages):
            self.evict(stages.turn)
            stages.turn.give_back(self)

    def _leave_gpu(self) -> None:
        """Drop the chunks that were prepared; the lock is held."""
        self._prefetch.close()
        if self._taking or not isinstance(self._stages, GpuStages):
            return  # the thread that takes a chunk will do so, and needs the stages until then
        self._prefetch = Prefetch(_nothing, range(0))  # the old one holds the stages
        self._queued.clear()
        self._stages = self._stages.host

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` says, in the pass that it says; at that pass's end, if it says so."""
        if self.there and not self._state.has_room(restore(state, self._begin.plan).plan):
            self.release()
        with self._lock:
            if self._sent_aside:
                self._go_on_aside()
            super().load_state_dict(state)

    def _go_on_aside(self) -> None:
        """Begin again where this stands, in host memory; the lock is held."""
        spare = self._state.spare(self._finish)
        self._begin_again(spare.stages, spare.options, spare.plan.chunk)

    def _go_over(self, change: Callable[[], None]) -> None:
        """Begin again where this stands, after the state has gone over to another pipeline."""
        state, stages = self._state, self._stages
        with self._lock:
            taking, self._taking = self._taking, False
            self._sent_aside = True  # if the change fails, it goes on there
            self._leave_gpu()
            self._taking = taking
        if isinstance(stages, GpuStages):
            stages.turn.give_back(self)
        if state.pipeline.stages is stages:  # else it has changed before, for another iterator
            del stages
            change()
        pipeline = state.pipeline
        made, options, chunk = pipeline.stages, pipeline.options, pipeline.plan.chunk
        del pipeline
        with self._lock:
            self._stages, self._sent_aside = made, False
        if isinstance(made, GpuStages):
            made.turn.take(self)
        with self._lock:
            if self._sent_aside:  # by another thread, meanwhile
                self._go_on_aside()
            else:
                self._begin_again(made, options, chunk)

    def _begin_again(self, stages: Any, options: LoaderOptions, chunk: int) -> None:
        """Begin where this stands, in another way; the lock is held."""
        self._stages, self._options, self._sent_aside = stages, options, False
        self._stand_at(self.position.with_chunk(chunk))
        self._start()
        if self._closed:  # by another thread, meanwhile
            self._prefetch.close()

    def close(self) -> None:
        """End the threads; there is no next batch after this."""
        with self._lock:
            self._closed = True
            if isinstance(self._stages, GpuStages):
                self._stages.turn.give_back(self)
            super().close()
            self._leave_gpu()


def sizes_of(plan: Plan) -> tuple[int, ...]:
    """What of a plan the memory on a GPU is divided by."""
    return plan.batch, plan.ranks, plan.streams, plan.block


def _ignore(iterator: EpochIterator[Any], rows: int) -> None:
    return None


def no_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; some such errors have no type of their own."""
    said = str(error).replace("_", " ")
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in said.lower()


def _nothing(number: int) -> Any:
    raise AssertionError(f"there is no chunk {number}")
