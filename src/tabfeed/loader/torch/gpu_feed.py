"""A feed whose batches are made on a GPU, and which can go over to another way of making them.

The order of rows does not depend on who reads, nor on how many batches a chunk has. So an iterator
goes over by beginning again at the step where it stands. The memory of one way is given up before
another's is asked for.

If a GPU runs out of memory in mid-epoch, because the model or another process needs more than
before, the loader is the one to give its share up: from then on it makes batches in the computer's
memory, and copies them.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from tabfeed.errors import TabfeedWarning
from tabfeed.loader.base import EpochIterator, Feed
from tabfeed.loader.chunk import Chunk
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.prefetch import Prefetch
from tabfeed.loader.recipe import Recipe
from tabfeed.loader.state import Position
from tabfeed.loader.torch.gpu_recipe import GpuRecipe

__all__ = ["GpuFeed", "GpuIterator"]

B = TypeVar("B")
_GIVEN_UP = (
    "there was no memory left on the GPU, so the loader has given up its own: batches are made in "
    "the computer's memory from here on, and copied"
)


class GpuFeed(Feed[B]):
    """A feed that gives its memory on the GPU up if there is none left.

    Parameters
    ----------
    made
        Makes the batches on the GPU.
    spare
        Makes them in the computer's memory, and copies them.
    """

    _own: tuple[str, ...] = ("_spare",)  # what is of no use in another process

    def __init__(self, made: Feed[B], spare: Feed[Any]) -> None:
        super().__init__(made.recipe, made.plan, made.options)
        self._spare = spare

    def finishing(self, finish: Callable[[Chunk], list[Any]]) -> GpuFeed[Any]:
        """A feed of the same chunks, cut into batches by another function."""
        return self._kin_of(Feed(self.recipe.finishing(finish), self.plan, self.options))

    def _kin_of(self, made: Feed[Any]) -> GpuFeed[Any]:
        """A feed like this one, which makes other batches in the same memory."""
        new: GpuFeed[Any] = GpuFeed(made, self._spare)
        new.reader_choice = self.reader_choice
        return new

    def _iterator(
        self, recipe: Recipe[Any], begin: Position, options: LoaderOptions
    ) -> EpochIterator[Any]:
        if recipe is not self.recipe:
            return super()._iterator(recipe, begin, options)
        return self._begin_at(begin)

    def _begin_at(self, begin: Position) -> GpuIterator[B]:
        return GpuIterator(self, begin)

    def give_up(self) -> None:
        """Make batches in the computer's memory from now on.

        What others hold of the memory (a second iterator, a loader made by `map`) stays until they
        give it up as well.
        """
        finish = self.recipe.finish
        self.let_go()
        self.take_over(self._spare.finishing(finish))
        self.tell(f"Arrow: {_GIVEN_UP}")
        warnings.warn(_GIVEN_UP, TabfeedWarning, stacklevel=6)  # the training loop

    def tell(self, why: str) -> None:
        """Say who reads now, and why."""
        self.reader_choice = why

    def let_go(self) -> None:
        """Give up all memory on the GPU."""
        if isinstance(self.recipe, GpuRecipe):
            self.recipe = self.recipe.host
        gc.collect()  # an error that is on its way may hold some of it
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # pylibcudf's memory comes from elsewhere

    def take_over(self, made: Feed[Any]) -> None:
        """Make batches as another feed of the same rows does."""
        self.recipe, self.options = made.recipe, made.options
        self.plan = replace(self.plan, chunk=made.plan.chunk)
        self._next, self._now = self.with_chunk(self._next), self.with_chunk(self._now)

    def with_chunk(self, position: Position) -> Position:
        """The same place in an epoch, in the chunks of this feed."""
        return position._replace(plan=replace(position.plan, chunk=self.plan.chunk))

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain, ({k: v for k, v in self.__getstate__().items() if k not in self._own},)


class GpuIterator(EpochIterator[B]):
    """Batches of one epoch, in whichever way the feed makes them.

    Parameters
    ----------
    feed
        Whose.
    position
        Where to begin.
    """

    def __init__(self, feed: GpuFeed[B], position: Position) -> None:
        self._feed, self._closed = feed, False
        options = feed.options
        super().__init__(feed.recipe, position, options.place, options, feed._on_batch)

    def _take(self) -> list[B]:
        try:
            return self._take_now()
        except Exception as e:
            if self._closed or not isinstance(self._recipe, GpuRecipe) or not _no_memory(e):
                raise
        self._go_over(self._feed.give_up)
        return self._take_now()

    def _take_now(self) -> list[B]:
        return super()._take()

    def _go_over(self, change: Callable[[], None]) -> None:
        """Begin again where this stands, after the feed has changed its way."""
        feed = self._feed
        self._prefetch.close()
        self._prefetch = Prefetch(_nothing, range(0))  # the old one holds the recipe
        self._queued.clear()
        if feed.recipe is self._recipe:  # else it has changed before, for another iterator
            self._recipe = self._recipe.host  # type: ignore[attr-defined]
            change()
        self._recipe, self._options = feed.recipe, feed.options
        self._sit_down(feed.with_chunk(self.position))
        self._start()
        if self._closed:  # by another thread, meanwhile
            self._prefetch.close()

    def close(self) -> None:
        """End the threads; there is no next batch after this."""
        self._closed = True
        super().close()


def _no_memory(error: BaseException) -> bool:
    """Whether an error is of that kind; not all of them have a type of their own."""
    said = str(error).replace("_", " ")
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in said


def _plain(state: dict[str, Any]) -> Feed[Any]:
    """In another process batches are made on the CPU."""
    feed: Feed[Any] = Feed.__new__(Feed)
    feed.__setstate__(state)
    return feed


def _nothing(number: int) -> Any:
    raise AssertionError(f"there is no chunk {number}")
