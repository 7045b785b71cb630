"""What adapters have in common: data in memory, a server for remote files, going over batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Case, Epoch, Features

__all__ = ["KEY", "REGION", "arrow_files", "arrow_s3", "by_hand", "columns", "each", "matrices"]

KEY, REGION = "anyone", "us-east-1"
"""What the server of the benchmark takes for credentials."""


def each(batches: Iterable[Any], rows_of: Callable[[Any], int] | None = None) -> Epoch:
    """Go over something that can be gone over again; the label tells how many rows came."""

    def epoch() -> Iterator[tuple[int, Any]]:
        for batch in batches:
            yield len(batch["label"]) if rows_of is None else rows_of(batch), batch

    return epoch


def columns(case: Case) -> dict[str, Any]:
    """The first rows of the files in memory, an array a column."""
    import pyarrow.dataset as ds

    table = ds.dataset(case.files).head(case.rows, columns=case.columns).combine_chunks()
    return {name: table.column(name).to_numpy() for name in case.columns}


def matrices(case: Case) -> tuple[Any, Any, Any]:
    """The first rows of the files in memory: int64 categories, float32 numbers, labels."""
    import numpy as np

    arrays = columns(case)

    def matrix(names: tuple[str, ...], dtype: Any) -> Any:
        out = np.empty((case.rows, len(names)), dtype)
        for i, name in enumerate(names):
            out[:, i] = arrays.pop(name)
        return out

    return matrix(case.cats, np.int64), matrix(case.conts, np.float32), arrays["label"].copy()


def arrow_s3(case: Case) -> Any:
    """Arrow's client for the files' server; None where they are on disk."""
    if not case.endpoint:
        return None
    from pyarrow.fs import S3FileSystem

    patience = {"connect_timeout": 30, "request_timeout": 30}
    where = {"region": REGION, "endpoint_override": case.endpoint}
    return S3FileSystem(access_key=KEY, secret_key=KEY, **where, **patience)


def arrow_files(case: Case) -> list[str]:
    """The files as Arrow calls them: without the scheme."""
    return [file.removeprefix("s3://") for file in case.files]


def by_hand(name: str) -> Callable[[Case], Features]:
    """The README's workflow as one of the ways of `benchmarks/etl.py`."""

    def opened(case: Case) -> Features:
        from benchmarks.etl import CONTENDERS

        out = Path(case.scratch) / "out"

        def run() -> dict[str, float]:
            shutil.rmtree(out, ignore_errors=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            return CONTENDERS[name](Path(case.folder), out, threshold=2)

        return run

    return opened
