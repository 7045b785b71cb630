"""Petastorm: `make_batch_reader` over Parquet, its batched torch loader.

Its last release needs a part of pyarrow that today's no longer has, so it lives in the environment
of packages of 2023. Where the buffer is larger than the data, an epoch may deliver nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch


def batches(case: Case) -> Epoch:
    """Threads read row groups; `BatchedDataLoader` shuffles in a buffer."""
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    urls = [f"file://{file}" for file in case.files]

    def epoch() -> Iterator[tuple[int, Any]]:
        reader = make_batch_reader(
            urls,
            schema_fields=case.columns,
            num_epochs=1,
            reader_pool_type="thread",
            shuffle_row_groups=case.shuffle,
        )
        capacity = 250_000 if case.shuffle else 0
        with BatchedDataLoader(reader, case.batch, shuffling_queue_capacity=capacity) as loader:
            for batch in loader:
                yield len(batch["label"]), batch

    return epoch


CONTENDERS = (
    Contender(
        name="petastorm",
        title="Petastorm `BatchedDataLoader`",
        open=batches,
        suites=("loading",),
        modules=("petastorm", "petastorm.pytorch", "torch"),
        delivers="torch, a tensor a column, the files' dtypes",
        shuffles="row groups, and a buffer of 250,000 rows",
        why="Threads read row groups; their rows go through a buffer of tensors, column by column. "
        "No longer maintained.",
        venv="merlin",
    ),
)
