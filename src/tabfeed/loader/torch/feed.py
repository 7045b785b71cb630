"""What the torch doors share: an iterable dataset over a `Feed`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import device as Device
from torch import distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from tabfeed.loader.base import EpochIterator, Feed
from tabfeed.loader.quality import ShuffleQuality, shuffle_quality

__all__ = ["TorchFeed", "rank_and_world"]


def rank_and_world(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """As given, else those of the process group if there is one; the environment comes last."""
    if rank is None and world is None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return rank, world


class TorchFeed(IterableDataset[Any]):
    """What the torch doors share: an iterable dataset over a `Feed`."""

    feed: Feed[Any]
    device: Device

    def __len__(self) -> int:
        """Batches in an epoch; the same on every rank."""
        return len(self.feed)

    def __iter__(self) -> EpochIterator[Any]:
        info = get_worker_info()
        if info is None:
            return self.feed.iterate()
        return self.feed.iterate(info.id, info.num_workers)

    @property
    def num_rows_processed(self) -> int:
        """Rows given so far, over all epochs."""
        return self.feed.rows_given

    @property
    def epoch(self) -> int:
        """The epoch of the latest batch."""
        return self.feed.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass is; otherwise each pass is the next one."""
        self.feed.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands; small, plain values."""
        return self.feed.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state: the next pass begins with the batch that would have come next."""
        self.feed.load_state_dict(state_dict)

    def shuffle_quality(self) -> ShuffleQuality:
        """How well the order mixes, from 0 (the files' own order) to 1 (a uniform permutation)."""
        return shuffle_quality(self.feed.plan)

    def peek(self) -> Any:
        """The first batch of the next pass, without moving on."""
        return self.feed.peek()

    def close(self) -> None:
        """End the background threads of all passes."""
        self.feed.close()

    stop = close

    def __enter__(self) -> TorchFeed:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
