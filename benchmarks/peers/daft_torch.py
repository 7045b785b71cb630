"""Daft: a lazy frame streamed out as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch


def batches(case: Case) -> Epoch:
    """`into_batches`, partitions iterated as they come, columns as tensors."""
    import daft
    import torch

    def epoch() -> Iterator[tuple[int, Any]]:
        frame = daft.read_parquet(case.files).select(*case.columns).into_batches(case.batch)
        for part in frame.to_arrow_iter():
            columns = {n: torch.from_numpy(part.column(n).to_numpy()) for n in case.columns}
            yield part.num_rows, columns

    return epoch


CONTENDERS = (
    Contender(
        name="daft",
        title="Daft `to_arrow_iter`",
        open=batches,
        suites=("loading",),
        modules=("daft", "torch", "pyarrow"),
        delivers="torch, a tensor a column, the files' dtypes",
        why="A query engine: it decodes on all cores and streams; it has no shuffle for training.",
    ),
)
