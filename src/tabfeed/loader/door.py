"""What every door has: length, epochs, state, an end. Knows no framework.

A door is a framework's own class (an `IterableDataset`, a `PyDataset`) that composes a `Feed`. Its
constructor says, argument by argument, what a user may say; what comes after that is here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from tabfeed.errors import ArgumentError
from tabfeed.loader.base import Feed
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.quality import ShuffleQuality, shuffle_quality
from tabfeed.loader.telling import line, page

__all__ = ["Door"]

D = TypeVar("D", bound="Door")
# What a loader is made with, or has read from that.
_CHOSEN = {field.name for field in fields(LoaderOptions)} | {
    "cats",
    "conts",
    "device",
    "device_memory",
    "extras",
    "input_schema",
    "labels",
    "output_schema",
    "reader",
    "row_major",
    "sharding",
    "sparse_as_dense",
    "sparse_max",
    "sparse_names",
    "static_batch",
    "targets",
    "transforms",
}


class Door:
    """The methods of a loader, whatever its framework."""

    feed: Feed[Any]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CHOSEN and "feed" in vars(self):
            raise ArgumentError(
                f"{name} is chosen when a {type(self).__name__} is made, and setting it later "
                f"would change nothing: make another one"
            )
        super().__setattr__(name, value)

    @property
    def batch_size(self) -> int:
        """Rows in a batch, on each rank."""
        return self.feed.options.batch_size

    def __len__(self) -> int:
        """Batches in an epoch; the same on every rank."""
        return len(self.feed)

    def peek(self) -> Any:
        """The first batch of the next pass, without moving on."""
        return self.feed.peek()

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

    @property
    def reader_choice(self) -> str:
        """Who decodes the files, and why; with ``reader="auto"`` it may change while training."""
        return self.feed.reader_choice or "Arrow: batches are made in the computer's memory"

    def shuffle_quality(self) -> ShuffleQuality:
        """How well the order mixes, from 0 (the files' own order) to 1 (a uniform permutation)."""
        return shuffle_quality(self.feed.plan)

    def release_memory(self) -> None:
        """Give back the memory on a GPU that chunks lie in, for a step that found too little.

        Call it where the step was called; then call the step again. From the next chunk on, the
        same batches are made in the computer's memory, and copied. It is torch's memory, which JAX
        may not be able to have; and where all rows lie there (``cache="device"``) it is refused.
        """
        self.feed.release_memory()

    def close(self) -> None:
        """End the background threads of all passes."""
        self.feed.close()

    def stop(self) -> None:
        """The same as `close`."""
        self.close()

    def __repr__(self) -> str:
        return line(type(self).__name__, self.feed)

    def _repr_html_(self) -> str:
        return page(type(self).__name__, self.feed)

    def __enter__(self: D) -> D:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
