"""Polars by hand: read a file, shuffle it, hand its columns to torch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import KEY, REGION, by_hand


def frames(case: Case, matrices: bool) -> Epoch:
    """Batches cut from one shuffled file after another."""
    import polars as pl
    import torch

    server = _server(case) if case.endpoint else None

    def epoch() -> Iterator[tuple[int, Any]]:
        for file in case.files:
            frame = pl.read_parquet(file, columns=case.columns, storage_options=server)
            if case.shuffle:
                frame = frame.sample(fraction=1.0, shuffle=True)
            parts = _matrices(frame) if matrices else [c.to_torch() for c in frame.get_columns()]
            for batch in zip(*(t.split(case.batch) for t in parts), strict=True):
                yield len(batch[-1]), batch

    def _matrices(frame: Any) -> list[Any]:
        cats = frame.select(case.cats).to_torch().to(torch.int64)
        return [cats, frame.select(case.conts).to_torch(), frame["label"].to_torch()]

    return epoch


def _server(case: Case) -> dict[str, str]:
    return {
        "aws_endpoint_url": case.endpoint,
        "aws_access_key_id": KEY,
        "aws_secret_access_key": KEY,
        "aws_region": REGION,
        "aws_allow_http": "true",
    }


CONTENDERS = (
    Contender(
        name="polars",
        title="Polars by hand, matrices",
        open=partial(frames, matrices=True),
        suites=("loading", "rows", "codec", "epochs"),
        modules=("polars", "torch", "numpy"),
        delivers="torch, int64 and float32 matrices",
        shuffles="rows within a file",
        why="Polars decodes on all cores, then the whole file is gathered, transposed and widened.",
    ),
    Contender(
        name="polars-columns",
        title="Polars by hand, columns",
        open=partial(frames, matrices=False),
        suites=("loading", "columns", "remote"),
        modules=("polars", "torch", "numpy"),
        delivers="torch, a tensor a column, the files' dtypes",
        shuffles="rows within a file",
        why="Polars decodes on all cores; in order its columns become tensors without a copy. A "
        "whole file is held at once, and the loop waits while the next is read.",
    ),
    Contender(
        name="polars-features",
        title="Polars by hand, streaming",
        open=by_hand("polars"),
        suites=("features",),
        modules=("polars",),
        why="One lazy query for all columns; strings are joined row by row.",
    ),
)
