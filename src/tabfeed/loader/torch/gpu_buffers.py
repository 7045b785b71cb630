"""Memory on a GPU for lots, and the streams that fill and read it.

Lots are large, of nearly one size, and short-lived: they are cut from a fixed number of blocks that
go round, so that what the loader holds on the GPU is known beforehand. A block is written on the
stream of the thread that reads a lot and read on the one stream that puts chunks together. The
event after the last such reading travels with the block; whoever writes it next waits for that, on
the GPU, not in the program.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import torch

__all__ = ["GpuBlocks", "ThreadStreams", "pinned_bytes"]

Tensor = torch.Tensor


def pinned_bytes(nbytes: int) -> Any:
    """Page-locked memory, from which a GPU copies while the program goes on."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()


class ThreadStreams(threading.local):
    """A stream for each thread: reading on one stream for all was measured half as fast."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: Any = None

    def get(self) -> Any:
        """The stream of this thread."""
        if self._own is None:
            self._own = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return self._own


class GpuBlocks:
    """Blocks of one size on a GPU, used again and again.

    Parameters
    ----------
    device
        The GPU.
    nbytes
        The size of a block.
    stream
        The stream that reads blocks; their memory is asked for in its name.
    """

    def __init__(self, device: torch.device, nbytes: int, stream: Any) -> None:
        self.device = device
        self.nbytes = nbytes
        self._stream = stream
        self._free: deque[tuple[Tensor, Any]] = deque()
        self.made = 0

    def take(self, stream: Any) -> Tensor:
        """A block that work queued on `stream` from now on may write."""
        try:
            block, event = self._free.popleft()
        except IndexError:
            block, event = self._make()
        stream.wait_event(event)
        return block

    def _make(self) -> tuple[Tensor, Any]:
        self.made += 1
        with torch.cuda.stream(self._stream):
            block = torch.empty(self.nbytes, dtype=torch.uint8, device=self.device)
        return block, self._stream.record_event()

    def give(self, block: Tensor, event: Any) -> None:
        """Take a block back; it may be written after `event`. Safe inside a finaliser."""
        self._free.append((block, event))
