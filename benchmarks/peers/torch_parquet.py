"""torch's DataLoader over an IterableDataset that reads Parquet: what one writes by hand.

Row groups are dealt to the workers. In order, `iter_batches` cuts the batches. Shuffled, row groups
come in a new order and the rows of each are permuted. Columns are handed over as they are, or put
side by side as int64 and float32 matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch

Arrays = dict[str, Any]


def by_columns(arrays: Arrays, case: Case) -> Any:
    """A tensor a column."""
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def by_matrices(arrays: Arrays, case: Case) -> Any:
    """int64 categories, float32 numbers, labels."""
    import numpy as np
    import torch

    cats = np.stack([arrays[c] for c in case.cats], axis=1, dtype=np.int64)
    conts = np.stack([arrays[c] for c in case.conts], axis=1)
    return torch.from_numpy(cats), torch.from_numpy(conts), torch.from_numpy(arrays["label"])


def parquet(case: Case, finish: Callable[[Arrays, Case], Any], workers: int = 0) -> Epoch:
    """The dataset in a DataLoader."""
    from torch.utils.data import DataLoader

    count = case.workers or workers
    more = {"multiprocessing_context": "forkserver", "persistent_workers": True} if count else {}
    loader = DataLoader(_dataset(case, finish), batch_size=None, num_workers=count, **more)

    def epoch() -> Iterator[tuple[int, Any]]:
        yield from loader

    return epoch


def _dataset(case: Case, finish: Callable[[Arrays, Case], Any]) -> Any:
    from benchmarks.peers._row_groups import RowGroups

    return RowGroups(case, finish)


_GROUPS = "row groups, and rows within each"
_COLUMNS = "torch, a tensor a column, the files' dtypes"
_MATRICES = "torch, int64 and float32 matrices"
_MODULES = ("torch", "numpy", "pyarrow.parquet")

CONTENDERS = (
    Contender(
        name="torch-parquet",
        title="torch `IterableDataset` over Parquet, matrices",
        open=partial(parquet, finish=by_matrices),
        suites=("loading", "rows", "epochs"),
        modules=_MODULES,
        delivers=_MATRICES,
        shuffles=_GROUPS,
        why="Decoding, gathering and stacking follow each other in the training loop's thread.",
    ),
    Contender(
        name="torch-parquet-columns",
        title="torch `IterableDataset` over Parquet, columns",
        open=partial(parquet, finish=by_columns),
        suites=("loading", "batch", "columns", "lists", "workers", "codec", "remote"),
        modules=_MODULES,
        delivers=_COLUMNS,
        shuffles=_GROUPS,
        why="In order, decoded columns become tensors without a copy, and may not be written to: "
        "little more than decoding. Shuffled, each column is gathered into fresh memory. Columns "
        "stay apart and lists int32, where tabfeed's matrices are int64: the more columns and "
        "lists, the more that matters.",
    ),
    Contender(
        name="torch-parquet-2",
        title="torch `IterableDataset` over Parquet, columns, 2 workers",
        open=partial(parquet, finish=by_columns, workers=2),
        suites=("loading",),
        modules=_MODULES,
        delivers=_COLUMNS,
        shuffles=_GROUPS,
        why="Processes decode side by side, but each tensor travels through shared memory.",
    ),
)
