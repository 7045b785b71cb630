"""Lance: its own format, its torch dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import each


def convert(case: Case) -> None:
    """The same rows as a Lance dataset."""
    import lance
    import pyarrow.dataset as ds

    lance.write_dataset(ds.dataset(case.files), f"{case.scratch}/data.lance")


def scanned(case: Case) -> Epoch:
    """`LanceDataset`, batches read ahead; shuffled by its own sampler."""
    from lance.sampler import ShardedBatchSampler
    from lance.torch.data import LanceDataset

    data = LanceDataset(
        f"{case.scratch}/data.lance",
        columns=case.columns,
        batch_size=case.batch,
        batch_readahead=8,
        sampler=ShardedBatchSampler(0, 1, randomize=True) if case.shuffle else None,
    )
    return each(data)


def taken(case: Case) -> Epoch:
    """Random rows: `take` of a batch's share of a permutation."""
    import lance
    import numpy as np
    import torch

    data = lance.dataset(f"{case.scratch}/data.lance")

    def epoch() -> Iterator[tuple[int, Any]]:
        order = np.random.permutation(case.rows)
        for start in range(0, case.rows, case.batch):
            rows = data.take(order[start : start + case.batch], columns=case.columns)
            columns = {n: torch.from_numpy(rows.column(n).to_numpy()) for n in case.columns}
            yield rows.num_rows, columns

    return epoch


_FORM = "torch, a tensor a column, the files' dtypes"
_MODULES = ("lance", "torch", "numpy")

CONTENDERS = (
    Contender(
        name="lance",
        title="Lance `LanceDataset`, own format",
        open=scanned,
        suites=("loading", "batch"),
        modules=_MODULES,
        delivers=_FORM,
        shuffles="the order of batches",
        why="Its own encoding takes fewer bytes here than snappy Parquet and still decodes faster; "
        "columns become tensors without a copy. Its sampler shuffles batches, never the rows "
        "within them.",
        convert=convert,
    ),
    Contender(
        name="lance-take",
        title="Lance `take`, own format",
        open=taken,
        suites=("loading",),
        modules=_MODULES,
        delivers=_FORM,
        shuffles="all rows, by random access",
        why="Its pages are laid out for random access, but every row of a batch lies elsewhere.",
        convert=convert,
        most_rows=131_072,
        orders=(True,),
    ),
)
