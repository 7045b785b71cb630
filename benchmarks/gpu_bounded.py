"""A process that may not hold the data in its memory, and one that may, loading turn by turn."""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import sys
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gpu_ours import drain, ours

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.medians import medians
from benchmarks.harness.usage import Watch, own_memory

__all__ = ["bounded_section"]

_loader: Any = None  # of a process


def bounded_section(folder: Path, limit_gb: float, rounds: int) -> dict[str, Any]:
    """What each loads, in rows a second; and the most memory it has with those that decode for it.

    Parameters
    ----------
    folder
        The data.
    limit_gb
        Memory of its own that one of them may have; less than the data need.
    rounds
        Epochs of each.
    """
    out: dict[str, Any] = {"limit, GB": limit_gb}
    with _process(limit_gb) as bounded, _process(None) as free:
        for reader in ("arrow", "cudf"):
            processes = {reader: bounded, f"{reader}, no limit": free}
            for process in processes.values():
                out["decoded data, GB"] = process.submit(_begin, folder, reader).result()
            runs: dict[str, list[Any]] = {name: [] for name in processes}
            for _ in range(rounds):
                for name, process in processes.items():
                    runs[name].append(process.submit(_epoch).result())
            rates = ([run["rate"] for run in got] for got in runs.values())
            shares = [within / without for within, without in zip(*rates, strict=True)]
            out[f"{reader}, share of the rate without a limit"] = statistics.median(shares)
            for name, process in processes.items():
                memory = {"GB of all processes": process.submit(_memory).result()}
                told = {"reader": process.submit(_reader).result()}
                out[name] = medians(runs[name]) | memory | told
    return out


def _process(limit_gb: float | None) -> Executor:
    return ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=_limit, initargs=(limit_gb,)
    )


def _limit(gigabytes: float | None) -> None:
    """What the GPU's own library takes is not the loader's."""
    torch.cuda.init()
    if gigabytes is not None:
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 1e9), most))


def _begin(folder: Path, reader: str) -> float:
    """Make a loader and let it come up; GB of the data, decoded."""
    global _loader
    if _loader is not None:
        _loader.close()
    _loader = ours(folder, 65_536, reader=reader, device_memory="1GB")
    drain(_loader)
    return float(_loader.pipeline.plan.rows * 160 / 1e9)


def _epoch() -> dict[str, Any]:
    return drain(_loader)


def _reader() -> str:
    return str(_loader.reader_choice)


def _memory() -> float:
    """The most GB in two epochs; apart from the others, since looking takes time."""
    with Watch(os.getpid(), own_memory) as watch:
        for _ in range(2):
            drain(_loader)
    return watch.most / 1e9
