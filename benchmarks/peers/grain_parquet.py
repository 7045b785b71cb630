"""grain: `ParquetIterDataset` batched, and a source of whole arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import columns, each


def rows(case: Case) -> Epoch:
    """Parquet files interleaved, rows shuffled in a window, batched."""
    import grain

    files = grain.MapDataset.source(case.files)
    if case.shuffle:
        files = files.shuffle(seed=0)
    data = grain.experimental.InterleaveIterDataset(
        files.map(grain.experimental.ParquetIterDataset), cycle_length=len(case.files)
    )
    if case.shuffle:
        data = grain.experimental.WindowShuffleIterDataset(data, window_size=10_000, seed=0)
    return each(data.batch(case.batch))


def indexed(case: Case) -> Epoch:
    """A source whose items are whole batches, gathered in memory; read ahead by threads."""
    import grain
    import numpy as np

    arrays = columns(case)
    steps = -(-case.rows // case.batch)
    state = {"epoch": 0}

    def gather(step: int, order: Any) -> dict[str, Any]:
        index = order[step * case.batch : (step + 1) * case.batch]
        return {name: array[index] for name, array in arrays.items()}

    def epoch() -> Iterator[tuple[int, Any]]:
        state["epoch"] += 1
        order: Any = np.arange(case.rows)
        if case.shuffle:
            order = np.random.default_rng(state["epoch"]).permutation(case.rows)
        data = grain.MapDataset.range(steps).map(lambda i: gather(i, order))
        for batch in data.to_iter_dataset():
            yield len(batch["label"]), batch

    return epoch


CONTENDERS = (
    Contender(
        name="grain-parquet",
        title="grain `ParquetIterDataset`",
        open=rows,
        suites=("loading",),
        modules=("grain", "numpy", "pyarrow"),
        delivers="NumPy, an array a column",
        shuffles="files, and a window of 10,000 rows",
        why="Every row becomes a Python dict, and batches are stacked from them.",
        most_rows=4_096,
    ),
    Contender(
        name="grain-batches",
        title="grain, whole batches as items, in memory",
        open=indexed,
        suites=("loading",),
        modules=("grain", "numpy", "pyarrow.dataset"),
        delivers="NumPy, an array a column",
        shuffles="all rows, in memory",
        why="Nothing is decoded: all rows are in memory before the clock starts. One gather a "
        "batch and column, by threads ahead of the loop; in order it reads memory front to back.",
    ),
)
