"""Lance: its own format, its torch dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch


def convert(case: Case) -> None:
    """The same rows as a Lance dataset."""
    import lance
    import pyarrow.dataset as ds

    lance.write_dataset(ds.dataset(case.files), f"{case.scratch}/data.lance")


def scanned(case: Case) -> Epoch:
    """`LanceDataset` of `lance.torch.data`, batches read ahead."""
    from lance.torch.data import LanceDataset

    data = LanceDataset(
        f"{case.scratch}/data.lance",
        columns=case.columns,
        batch_size=case.batch,
        batch_readahead=8,
    )

    def epoch() -> Iterator[tuple[int, Any]]:
        for batch in data:
            yield len(batch["label"]), batch

    return epoch


def taken(case: Case) -> Epoch:
    """Random rows: `take` of a batch's share of a permutation, as its samplers do."""
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


def either(case: Case) -> Epoch:
    """In order by scanning; shuffled by taking random rows."""
    return taken(case) if case.shuffle else scanned(case)


CONTENDERS = (
    Contender(
        name="lance",
        title="Lance, own format",
        open=either,
        suites=("loading", "batch"),
        modules=("lance", "torch", "numpy"),
        delivers="torch, a tensor a column, the files' dtypes",
        shuffles="all rows, by random access",
        why="Its pages are laid out for random access. In order they decode faster than Parquet's; "
        "shuffled, every row of a batch lies elsewhere.",
        convert=convert,
    ),
)
