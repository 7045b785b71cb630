"""A dataset as other libraries' frames, whole or a few rows of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tabfeed.errors import ArgumentError, MissingExtraError
from tabfeed.io.partition import first_rows

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from tabfeed.io.dataset import Dataset

__all__ = ["dask_frame", "head", "need", "polars_frame", "sample"]


def head(dataset: Dataset, n: int) -> pl.DataFrame:
    """See `Dataset.head`."""
    _refuse_negative(n)
    tables: list[pa.Table] = []
    rows = 0
    for i in range(dataset.npartitions):
        if rows >= n:
            break
        tables.append(_first_rows(dataset, i, n - rows))
        rows += tables[-1].num_rows
    return polars_frame(dataset, tables)


def _first_rows(dataset: Dataset, index: int, n: int) -> pa.Table:
    """The beginning of a partition, without reading the rest where nothing filters it."""
    part = dataset.partitions[index]
    if dataset._filter is None and part.rows is not None and not dataset._maps:
        part = first_rows(part, n)
    return dataset.read(part).slice(0, n)


def sample(dataset: Dataset, n: int, seed: int) -> pl.DataFrame:
    """See `Dataset.sample`."""
    import polars as pl

    _refuse_negative(n)
    lens = dataset.partition_lens
    total = sum(lens)
    rows = np.sort(np.random.default_rng(seed).choice(total, min(n, total), replace=False))
    ends = np.cumsum(lens)
    which = np.searchsorted(ends, rows, side="right")
    frames = [polars_frame(dataset, [])]
    for i in np.unique(which):
        inside = rows[which == i] - (ends[i] - lens[i])
        frames.append(polars_frame(dataset, [dataset.read(int(i))])[inside])
    return pl.concat(frames)


def _refuse_negative(n: int) -> None:
    if n < 0:
        raise ArgumentError(f"n is {n}; it must be 0 or more")


def polars_frame(dataset: Dataset, tables: Sequence[pa.Table]) -> pl.DataFrame:
    """Tables of a dataset as one Polars frame; its columns even where there are no rows."""
    import polars as pl

    full = [t for t in tables if t.num_rows] or [dataset._empty()]
    frame = pl.from_arrow(pa.concat_tables(full))
    assert isinstance(frame, pl.DataFrame)
    return frame


def dask_frame(dataset: Dataset) -> Any:
    """See `Dataset.to_ddf`."""
    need("dask.dataframe", "dask", "Dask DataFrames")
    import dask.dataframe as dd

    meta = dataset._empty().to_pandas()
    from_map: Callable[..., Any] = dd.from_map
    return from_map(_PandasReader(dataset), list(range(dataset.npartitions)), meta=meta)


@dataclass(frozen=True)
class _PandasReader:
    """Reads a partition as a pandas frame; Dask sends it to its workers."""

    dataset: Dataset

    def __call__(self, index: int) -> pd.DataFrame:
        return self.dataset.read(index).to_pandas()


def need(module: str, extra: str, feature: str) -> None:
    """Say which extra to install if a library is missing."""
    try:
        importlib.import_module(module)
    except ImportError as e:
        raise MissingExtraError(extra, feature) from e
