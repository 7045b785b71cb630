"""Our loader, as the GPU benchmark measures it, and an epoch of its batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from loader import CATS, CONTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.cores import Cores
from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr

__all__ = ["drain", "ours"]


def ours(folder: Path, batch: int, **options: Any) -> TorchAsyncItr:
    """Shuffled batches on the GPU."""
    return TorchAsyncItr(
        Dataset(str(folder)), CATS, CONTS, ["label"], batch_size=batch, shuffle=True,
        device="cuda", **options,
    )  # fmt: skip


def drain(batches: Iterable[Any]) -> dict[str, Any]:
    """Take every batch; rows a second, seconds to the first, cores at work and stolen."""
    torch.cuda.synchronize()
    start, first, rows = time.perf_counter(), 0.0, 0
    with Cores() as cores:
        for batch in batches:
            rows += len(batch[2])
            if not first:
                torch.cuda.synchronize()
                first = time.perf_counter() - start
        torch.cuda.synchronize()
        rate = rows / (time.perf_counter() - start) / 1e6
    return {"rate": rate, "first": first, "rows": rows, **cores.figures}
