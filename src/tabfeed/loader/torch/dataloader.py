"""`DLDataLoader`: a torch `DataLoader` for code that wants one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.loader.torch.feed import TorchFeed

__all__ = ["DLDataLoader"]

B = TypeVar("B")


def _same(batch: B) -> B:
    return batch


class DLDataLoader(DataLoader[Any]):
    """A torch `DataLoader` over one of tabfeed's, for code that wants one.

    Parameters
    ----------
    dataset
        A `TorchAsyncItr` or a `Loader`.
    batch_size
        Leave it None: batches are made already.
    collate_fn
        Applied to each batch.
    pin_memory, num_workers, persistent_workers, prefetch_factor, multiprocessing_context
        As in torch. Workers share each epoch's rows among them; none are needed for speed.
    """

    def __init__(
        self,
        dataset: TorchFeed,
        batch_size: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        num_workers: int = 0,
        *,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
    ) -> None:
        if batch_size is not None:
            raise ArgumentError(
                f"batch_size is {batch_size}, but the dataset makes whole batches already; give "
                "batch_size to it, and None here"
            )
        super().__init__(
            dataset,
            batch_size=None,
            collate_fn=collate_fn or _same,
            pin_memory=pin_memory,
            num_workers=num_workers,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=worker_init_fn,
            timeout=timeout,
        )
        self._begun = 0

    @property
    def device(self) -> torch.device:
        """The GPU where there is one: where training code moves its model."""
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def __len__(self) -> int:
        """Batches in an epoch, exactly."""
        dataset: Any = self.dataset
        if self.num_workers < 2:
            return len(dataset)
        return self.num_workers * int(dataset.feed.steps_with(self.num_workers))

    def __iter__(self) -> Any:
        dataset: Any = self.dataset
        if self.num_workers == 0:
            return super().__iter__()
        if not self.persistent_workers:
            batches = super().__iter__()  # the workers' copies begin this epoch
            dataset.feed.skip_epoch()  # and the next copies the next one
            return batches
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass is."""
        dataset: Any = self.dataset
        dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands."""
        self._refuse_workers()
        dataset: Any = self.dataset
        return dict(dataset.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._refuse_workers()
        dataset: Any = self.dataset
        dataset.load_state_dict(state_dict)

    def _refuse_workers(self) -> None:
        if self.num_workers:
            raise LoaderError(
                "with worker processes only they know where they stand; use num_workers=0, which "
                "prepares batches in background threads just as well"
            )
