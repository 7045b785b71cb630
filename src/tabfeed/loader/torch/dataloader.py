"""`DLDataLoader`: a torch `DataLoader` for code that wants one.

Batches are whole already, and each rank has its own rows. Class attributes tell Accelerate so;
otherwise it would distribute the batches of one rank to all, and lose the other ranks' rows.

With worker processes the state is kept in the main process: workers give batches in turn, so the
number of batches taken says where each of them stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from tabfeed.arguments import Guarded
from tabfeed.display import box
from tabfeed.errors import ArgumentError, LoaderError, StateError
from tabfeed.loader.torch.base import TorchBase

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
        Leave it None: the dataset makes whole batches.
    collate_fn
        Applied to each batch.
    pin_memory
        As in torch. It has no effect on batches that are on a GPU already.
    num_workers
        Processes that share each epoch's rows; none are needed for speed. They have no GPU: their
        batches come in host memory, whatever the device of `dataset`.
    persistent_workers, prefetch_factor, multiprocessing_context, worker_init_fn, timeout
        As in torch.

    Examples
    --------
    >>> from tabfeed import Dataset
    >>> from tabfeed.loader.torch import TorchAsyncItr
    >>> ds = Dataset({"C": [1, 2, 3], "label": [0, 1, 0]})
    >>> loader = DLDataLoader(TorchAsyncItr(ds, ["C"], labels=["label"], batch_size=2))
    >>> len(loader), [y.tolist() for _, _, y in loader]
    (2, [[0.0, 1.0], [0.0]])
    """

    _is_accelerate_prepared = True  # each rank has its own rows: Accelerate must not share them out
    use_stateful_dataloader = True  # Accelerate's save_state and load_state keep our state

    def __init__(
        self,
        dataset: TorchBase,
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
            collate_fn=Guarded(collate_fn, "collate_fn") if collate_fn else _same,
            pin_memory=pin_memory and (dataset.device.type == "cpu" or num_workers > 0),
            num_workers=num_workers,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=Guarded(worker_init_fn, "worker_init_fn") if worker_init_fn else None,
            timeout=timeout,
        )

    @property
    def _loader(self) -> TorchBase:
        found: Any = self.dataset
        return found  # type: ignore[no-any-return]

    @property
    def device(self) -> torch.device:
        """That of the loader it wraps: where training code moves its model."""
        return self._loader.device

    def __len__(self) -> int:
        """Batches in an epoch, exactly."""
        if self.num_workers < 2:
            return len(self._loader)
        return self.num_workers * self._loader.state.steps_with(self.num_workers)

    def __iter__(self) -> Any:
        if self.num_workers == 0:
            return super().__iter__()
        batches = super().__iter__()  # the workers' copies begin this epoch
        return _Counted(batches, self._loader.state.lend(self.num_workers))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass is."""
        self._loader.set_epoch(epoch)
        self._forget_workers()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: after the batch taken last, worker processes or not."""
        if self.num_workers and self._loader.pipeline.options.seed_fn is not None:
            raise LoaderError(
                "seed_fn is asked in each worker process, so the seed is not known here: give "
                "seed= instead, or use num_workers=0, which prepares batches in background threads"
            )
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state, which must be of as many worker processes."""
        state = self._loader.state
        before = state.mark()
        state.load_state_dict(state_dict)
        try:
            state.check_workers(max(1, self.num_workers))
        except StateError:
            state.go_back(before)
            raise
        self._forget_workers()

    def __repr__(self) -> str:
        return f"<DLDataLoader of {self.num_workers} worker processes over {self.dataset!r}>"

    def _repr_html_(self) -> str:
        over = self._loader._repr_html_()
        return box("DLDataLoader", [f"{self.num_workers} worker processes, over"], over)

    def _forget_workers(self) -> None:
        """Have the next pass start new worker processes: living ones know nothing of a change."""
        self._iterator = None


class _Counted(Iterator[Any]):
    """Batches of worker processes, counted where they are taken."""

    def __init__(self, batches: Any, took: Callable[[], None]) -> None:
        self._batches, self._took = batches, took

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._took()
        return batch
