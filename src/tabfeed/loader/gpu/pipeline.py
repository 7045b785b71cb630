"""A pipeline whose batches are made on a GPU, and which can go over to another way of making them.

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
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tabfeed.errors import TabfeedWarning
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu.delivery import DeviceLease, GpuStages
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import EpochIterator, Pipeline
from tabfeed.loader.plan.order import Plan
from tabfeed.loader.prefetch import Prefetch
from tabfeed.loader.stages import Stages
from tabfeed.loader.state import Position, restore

__all__ = ["GpuIterator", "GpuPipeline", "no_memory"]

B = TypeVar("B")
_GIVEN_UP = (
    "there was no memory left on the GPU, so the loader has given up its own: from now on batches "
    "are made in host memory and copied"
)
_RELEASED = "as requested, batches are made in host memory and copied"


class GpuPipeline(Pipeline[B]):
    """A pipeline that gives its memory on the GPU up if there is none left.

    Parameters
    ----------
    made
        Makes the batches on the GPU.
    spare
        Makes them in the computer's memory, and copies them.
    remake
        Gives such a pipeline for another plan of the same rows, for which other memory is needed.
    """

    _own: tuple[str, ...] = ("_spare", "remake")  # what is of no use in another process

    def __init__(
        self, made: Pipeline[B], spare: Pipeline[Any], remake: Callable[[Plan], Pipeline[Any]]
    ) -> None:
        super().__init__(made.stages, made.plan, made.options)
        self._spare, self.remake = spare, remake
        self._sized_for = sizes_of(made.plan)

    def finishing(self, finish: Callable[[Chunk], list[Any]]) -> GpuPipeline[Any]:
        """A feed of the same chunks, cut into batches by another function."""
        made: Pipeline[Any] = Pipeline(self.stages.finishing(finish), self.plan, self.options)
        return self._kin_of(made)._standing_as(self)

    def _kin_of(self, made: Pipeline[Any]) -> GpuPipeline[Any]:
        """A feed like this one, which makes other batches in the same memory."""
        new: GpuPipeline[Any] = GpuPipeline(made, self._spare, self.remake)
        new.reader_choice, new._sized_for = self.reader_choice, self._sized_for
        return new

    def _iterator(
        self, stages: Stages[Any], begin: Position, options: LoaderOptions
    ) -> EpochIterator[Any]:
        if stages is not self.stages:
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
        if isinstance(self.stages, GpuStages) and not self.has_room(plan):
            self.release_iterators()
            finish = self.stages.finish
            self.let_go()
            self._sized_for, made = sizes_of(plan), self._made_for(plan)
            if isinstance(made, GpuPipeline):
                self._spare = made._spare
            self.take_over(made.finishing(finish))

    def has_room(self, plan: Plan) -> bool:
        """Whether the memory on the GPU was divided for plans like this one."""
        return sizes_of(plan) == self._sized_for

    def _made_for(self, plan: Plan) -> Pipeline[Any]:
        """A feed with memory for another plan."""
        made = self.remake(plan)
        if made.reader_choice:
            self.tell(made.reader_choice)
        return made

    def peek(self) -> B:
        """The first batch of the next pass, without moving on."""
        ahead = self._aside(self._next, threads=1, depth=1)
        try:
            return next(ahead)
        finally:
            ahead.close()

    def seek(self, step: int) -> EpochIterator[B]:
        """Batches of the epoch that comes next from `step` on, without moving on to it."""
        begin = self._next._replace(step=step)
        free = isinstance(self.stages, GpuStages) and not self.stages.turn.taken
        iterator = GpuIterator(self, begin, _ignore) if free else self._aside(begin)
        self._iterators.add(iterator)
        return iterator

    def _aside(self, begin: Position, **few: Any) -> EpochIterator[B]:
        """Batches from a place on, made in the computer's memory: a pass may have the GPU's."""
        spare = self.spare(self.stages.finish)
        options = replace(spare.options, **few)
        begin = with_chunk(begin, spare.plan.chunk)
        return EpochIterator(spare.stages, begin, options.place, options, _ignore)

    def spare(self, finish: Callable[[Chunk], list[Any]]) -> Pipeline[Any]:
        """Makes the same batches in the computer's memory, and copies them."""
        return self._spare.finishing(finish)

    def give_up(self) -> None:
        """Make batches in the computer's memory from now on.

        What others hold of the memory (a second iterator, a loader made by `map`) stays until they
        give it up as well.
        """
        self._leave_gpu(_GIVEN_UP)
        warnings.warn(_GIVEN_UP, TabfeedWarning, stacklevel=6)  # the training loop

    def release_memory(self) -> None:
        """The same because the program wants it; a pass that runs goes on with its next chunk."""
        self.release_iterators()
        if isinstance(self.stages, GpuStages):
            self._leave_gpu(_RELEASED)

    def release_iterators(self) -> None:
        """Have all passes go on in the computer's memory."""
        for iterator in list(self._iterators):
            if isinstance(iterator, GpuIterator):
                iterator.release()

    def _leave_gpu(self, why: str) -> None:
        finish = self.stages.finish
        self.let_go()
        self.take_over(self.spare(finish))
        self.tell(f"Arrow: {why}")

    def tell(self, why: str) -> None:
        """Say who reads now, and why."""
        self.reader_choice = why

    def let_go(self) -> None:
        """Give up all memory on the GPU."""
        if isinstance(self.stages, GpuStages):
            self.stages.let_go()
            self.stages = self.spare(self.stages.finish).stages
        gc.collect()  # an error that is on its way may hold some of it
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # pylibcudf's memory comes from elsewhere

    def take_over(self, made: Pipeline[Any]) -> None:
        """Make batches as another feed of the same rows does."""
        self.stages, self.options = made.stages, made.options
        self.plan = replace(self.plan, chunk=made.plan.chunk)
        chunk = self.plan.chunk
        self._next, self._now = with_chunk(self._next, chunk), with_chunk(self._now, chunk)

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain, ({k: v for k, v in self.__getstate__().items() if k not in self._own},)


class GpuIterator(EpochIterator[B]):
    """Batches of one epoch, in whichever way the pipeline makes them.

    Parameters
    ----------
    feed
        Whose.
    position
        Where to begin.
    on_batch
        As for `EpochIterator`.
    """

    def __init__(
        self,
        pipeline: GpuPipeline[B],
        position: Position,
        on_batch: Callable[[EpochIterator[B], int], None],
    ) -> None:
        self._pipeline, self._closed = pipeline, False
        self._sent_aside = False  # to be told by the next `_take`, which goes on elsewhere
        self._taking = False  # whether a thread is just about to take a chunk
        self._lock = threading.RLock()  # of these, and of `_recipe` and `_prefetch`
        stages, options = pipeline.stages, pipeline.options
        self._stages, self._finish = stages, stages.finish
        if isinstance(stages, GpuStages):
            stages.turn.take(self)  # not with the lock: two passes would wait for each other
        with self._lock:
            super().__init__(stages, position, options.place, options, on_batch)
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
                self._go_over(self._pipeline.give_up)
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
        if self.there and not self._pipeline.has_room(restore(state, self._begin.plan).plan):
            self.release()
        with self._lock:
            if self._sent_aside:
                self._go_on_aside()
            super().load_state_dict(state)

    def _go_on_aside(self) -> None:
        """Begin again where this stands, in the computer's memory; the lock is held."""
        spare = self._pipeline.spare(self._finish)
        self._begin_again(spare.stages, spare.options, spare.plan.chunk)

    def _go_over(self, change: Callable[[], None]) -> None:
        """Begin again where this stands, after the feed has changed its way."""
        pipeline, stages = self._pipeline, self._stages
        with self._lock:
            taking, self._taking = self._taking, False
            self._sent_aside = True  # if the change fails, it goes on there
            self._leave_gpu()
            self._taking = taking
        if isinstance(stages, GpuStages):
            stages.turn.give_back(self)
        if pipeline.stages is stages:  # else it has changed before, for another iterator
            del stages
            change()
        made, options, chunk = pipeline.stages, pipeline.options, pipeline.plan.chunk
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
        self._sit_down(with_chunk(self.position, chunk))
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


def with_chunk(position: Position, chunk: int) -> Position:
    """The same place in an epoch, in chunks of so many steps."""
    return position._replace(plan=replace(position.plan, chunk=chunk))


def _ignore(iterator: EpochIterator[Any], rows: int) -> None:
    return None


def no_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; some such errors have no type of their own."""
    said = str(error).replace("_", " ")
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in said.lower()


def _plain(state: dict[str, Any]) -> Pipeline[Any]:
    """In another process batches are made on the CPU."""
    pipeline: Pipeline[Any] = Pipeline.__new__(Pipeline)
    pipeline.__setstate__(state)
    return pipeline


def _nothing(number: int) -> Any:
    raise AssertionError(f"there is no chunk {number}")
