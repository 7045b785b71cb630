"""Copies whole buffers to a GPU in the background, without stopping the model.

``tensor.to("cuda")`` of ordinary memory runs on the model's stream: it waits for every kernel
queued there, and later kernels wait for it. Here a buffer is first copied to page-locked memory and
then, on a stream of the thread's own, to the GPU; the thread waits for that without the GIL. A
tensor it returns is complete, so the training loop waits for no event.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from tabfeed.trace import span

__all__ = ["Carrier"]

Tensor = torch.Tensor


class Carrier:
    """Copies arrays to a device; threads may share it.

    Parameters
    ----------
    device
        The destination. On the CPU a tensor shares the array's memory.

    Examples
    --------
    >>> import numpy as np
    >>> carry = Carrier("cpu")
    >>> first, second = carry.columns([np.array([[1, 2, 3], [4, 5, 6]])], (0, 2, 3))
    >>> [column.tolist() for column in first], [column.tolist() for column in second]
    ([[[1], [2]], [[4], [5]]], [[[3]], [[6]]])
    """

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self._streams = threading.local()

    def __call__(self, array: Any) -> Tensor:
        """An array as a tensor on the device; tensors are returned as they are."""
        if isinstance(array, Tensor):
            return array
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        with span("copy", rows=array.shape[-1]):
            return self._to_gpu(tensor) if self.device.type == "cuda" else tensor.to(self.device)

    def _to_gpu(self, tensor: Tensor) -> Tensor:
        stream = self._stream()
        with torch.cuda.stream(stream):
            moved = tensor.pin_memory().to(self.device, non_blocking=True)
        stream.synchronize()
        # Its memory, once freed, is not reused before the model's stream has read it.
        moved.record_stream(torch.cuda.default_stream(self.device))
        return moved

    def _stream(self) -> Any:
        """The stream of this thread."""
        if not hasattr(self._streams, "own"):
            self._streams.own = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        return self._streams.own

    def columns(self, matrices: Sequence[Any], bounds: Sequence[int]) -> list[list[Tensor]]:
        """For each batch of a chunk the columns of all its ``(columns, rows)`` buffers.

        They are views, ``(rows, 1)``.
        """
        sizes = [high - low for low, high in pairwise(bounds)]
        batches: list[list[Tensor]] = [[] for _ in sizes]
        for whole in [self(matrix).unsqueeze(2) for matrix in matrices]:
            for batch, part in zip(batches, torch.split(whole, sizes, dim=1), strict=True):
                batch.extend(part.unbind(0))
        return batches

    def __reduce__(self) -> tuple[type[Carrier], tuple[str]]:
        return Carrier, (str(self.device),)  # streams stay with their threads
