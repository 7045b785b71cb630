"""torch's own DataLoader over tensors in memory: item by item, and with whole batches as items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import each, matrices


def tensors(case: Case) -> tuple[Any, ...]:
    """The first rows of the files: int64 categories, float32 numbers, labels."""
    import torch

    return tuple(torch.from_numpy(part) for part in matrices(case))


def item_by_item(case: Case) -> Epoch:
    """`TensorDataset` in a `DataLoader`: what the tutorials show."""
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(*tensors(case))
    loader = DataLoader(
        data,
        batch_size=case.batch,
        shuffle=case.shuffle,
        num_workers=case.workers,
        persistent_workers=case.workers > 0,
    )
    return each(loader, _rows)


def whole_batches(case: Case) -> Epoch:
    """A batch sampler as the sampler, no automatic batching: one index of tensors a batch."""
    from torch.utils.data import (
        BatchSampler,
        DataLoader,
        RandomSampler,
        SequentialSampler,
        TensorDataset,
    )

    data = TensorDataset(*tensors(case))
    order = RandomSampler(data) if case.shuffle else SequentialSampler(data)
    sampler = BatchSampler(order, case.batch, drop_last=False)
    return each(DataLoader(data, sampler=sampler, batch_size=None), _rows)


def by_hand(case: Case) -> Epoch:
    """No DataLoader at all: a permutation, and one `index_select` a batch."""
    import torch

    data = tensors(case)

    def epoch() -> Iterator[tuple[int, Any]]:
        for index in torch.randperm(case.rows).split(case.batch):
            yield len(index), tuple(t.index_select(0, index) for t in data)

    return epoch


def _rows(batch: Any) -> int:
    return len(batch[2])


_ALL = "all rows, in memory"
_FORM = "torch, int64 and float32 matrices"

CONTENDERS = (
    Contender(
        name="torch-items",
        title="torch `DataLoader(TensorDataset)`, item by item, in memory",
        open=item_by_item,
        suites=("loading", "workers"),
        modules=("torch", "pyarrow.dataset"),
        delivers=_FORM,
        shuffles=_ALL,
        why="Every row is a Python call and a small tensor, stacked again into a batch.",
        most_rows=32_768,
    ),
    Contender(
        name="torch-batches",
        title="torch `DataLoader`, whole batches, in memory",
        open=whole_batches,
        suites=("loading",),
        modules=("torch", "pyarrow.dataset"),
        delivers=_FORM,
        shuffles=_ALL,
        why="One gather a batch, but the sampler makes a Python integer for each row.",
    ),
    Contender(
        name="torch-by-hand",
        title="torch by hand: `randperm` and `index_select`, in memory",
        open=by_hand,
        suites=("loading", "batch", "epochs"),
        modules=("torch", "pyarrow.dataset"),
        delivers=_FORM,
        shuffles=_ALL,
        why="Nothing is decoded: all rows are in memory, decoded and widened before the first "
        "epoch. Best where the data fits in memory and is gone over many times.",
        orders=(True,),  # in order it would be slices of memory: nothing to measure
    ),
)
