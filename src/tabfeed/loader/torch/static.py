"""``static_batch=True``: every batch in the same tensors, for CUDA graphs and `torch.compile`.

A captured graph reads from fixed addresses, and a compiled function expects fixed shapes and
strides. So each batch, when it is taken, is copied into the tensors of the first one, on the
current stream: after everything the model has queued on the batch before, and before what it queues
next. That is one more copy of each batch, on the device.

While a graph is captured, the loader's threads keep using the GPU, which CUDA forbids unless only
the capturing thread counts: ``torch.cuda.graph(graph, capture_error_mode="thread_local")``.
`torch.compile` sets this itself.

The price: the next batch overwrites a batch, so keep one with `clone`; and two iterators over one
loader would write into each other's batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import get_worker_info

from tabfeed.errors import LoaderError
from tabfeed.loader.assemble.batch_ops import EmbeddingOperator, Padding
from tabfeed.loader.build import Steps
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.loader.state import EpochIterator
from tabfeed.loader.tensors.tree import tensors_in, with_tensors

__all__ = ["StaticBatch", "StaticIterator", "check_full", "ragged_after"]

Tensor = torch.Tensor


def ragged_after(layout: Layout, steps: Steps) -> list[str]:
    """The columns whose rows are of different lengths after all steps.

    Examples
    --------
    >>> import numpy as np
    >>> layout = Layout(lists=(("words", np.dtype(np.int64)), ("tags", np.dtype(np.int64))))
    >>> ragged_after(layout, Steps(chunks=(Padding(4, columns=["words"]),)))
    ['tags']
    """
    names = [name for name, _ in layout.lists]
    for op in steps.chunks:
        if isinstance(op, Padding):
            names = [n for n in names if op.columns is not None and n not in op.columns]
        elif isinstance(op, EmbeddingOperator) and op.lookup_key in names:
            names.append(op.embedding_name)
    return names


def check_full(pipeline: Pipeline[Any], ragged: list[str]) -> None:
    """Refuse batches that are not all of one shape."""
    if ragged:
        raise LoaderError(
            f"static_batch=True needs batches of one shape, and {', '.join(ragged)} "
            f"{'have' if len(ragged) > 1 else 'has'} rows of different lengths: make them of one "
            "length with Padding in transforms=, or in TorchAsyncItr with sparse_names=, "
            "sparse_max= and sparse_as_dense=True; or leave them out"
        )
    plan = pipeline.plan
    if any(rows != plan.batch for rows in plan.tail):
        last, rank = plan.rows % plan.batch, plan.batch // plan.ranks
        raise LoaderError(
            f"static_batch=True needs full batches, and {plan.rows:,} rows in batches of {rank:,} "
            f"leave {last:,} for the last one: give drop_last=True, which leaves them out, or "
            'last="wrap", which fills it up with rows from the start'
        )


class StaticBatch:
    """The tensors that every batch is copied into.

    Examples
    --------
    >>> static = StaticBatch()
    >>> first = static.take((torch.tensor([1, 2]), None))
    >>> second = static.take((torch.tensor([3, 4]), None))
    >>> second[0].tolist(), second[0].data_ptr() == first[0].data_ptr()
    ([3, 4], True)
    """

    def __init__(self) -> None:
        self._held: list[Tensor] = []

    def take(self, batch: Any) -> Any:
        """The same batch in these tensors; other values stay as they are."""
        found = list(tensors_in(batch))
        if not self._held:
            self._held = [_like(tensor) for tensor in found]
        shapes = [tuple(t.shape) for t in found]
        expected = [tuple(t.shape) for t in self._held]
        if shapes != expected:
            raise LoaderError(
                f"static_batch=True, and a batch has tensors of the shapes {shapes} where those "
                f"before had {expected}; use drop_last=True, and functions that keep shapes"
            )
        for dtype in {tensor.dtype for tensor in found}:  # those of one dtype in one call
            places = [i for i, tensor in enumerate(found) if tensor.dtype == dtype]
            torch._foreach_copy_(
                [self._held[i] for i in places], [found[i] for i in places], non_blocking=True
            )
        return with_tensors(batch, iter(self._held))

    def __reduce__(self) -> tuple[Any, ...]:
        return StaticBatch, ()  # a copy has tensors of its own


class StaticIterator(Iterator[Any]):
    """Batches of an epoch, each in the same tensors."""

    def __init__(self, batches: EpochIterator[Any], static: StaticBatch) -> None:
        if get_worker_info() is not None:
            raise LoaderError(
                "static_batch=True gives batches in tensors of this process, not of a worker's: "
                "use num_workers=0, which prepares batches in background threads"
            )
        self._batches, self._static = batches, static

    def __next__(self) -> Any:
        return self._static.take(next(self._batches))

    def state_dict(self) -> dict[str, Any]:
        """Where this iterator stands."""
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` says."""
        self._batches.load_state_dict(state)

    def close(self) -> None:
        """End the threads."""
        self._batches.close()


def _like(tensor: Tensor) -> Tensor:
    """A tensor of its own memory without gaps; columns stay contiguous where they are."""
    if tensor.dim() == 2 and tensor.stride(0) < tensor.stride(1):
        return torch.empty_like(tensor.t(), memory_format=torch.contiguous_format).t()
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
