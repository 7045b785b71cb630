"""A process that may not hold the data in its memory, and one that may, loading turn by turn.

Run by itself it is such a process, which loads when its input says so.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from gpu_ours import drain, ours

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.medians import medians
from benchmarks.harness.usage import Watch, own_memory

__all__ = ["bounded_section"]


class Child:
    """The same loaders in another process; it has so many GB of its own memory at most, 0 for any.

    Parameters
    ----------
    folder
        The data.
    limit_gb
        Less than the data have.
    """

    def __init__(self, folder: Path, limit_gb: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(limit_gb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, reader: str, what: str) -> Any:
        """What `load_when_told` answers."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None
        print(reader, what, file=to, flush=True)
        line = back.readline()
        if not line:
            raise RuntimeError(f"the process that loads within a limit ended: {reader}, {what}")
        return json.loads(line)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # which ends what it reads


def load_when_told(folder: Path, limit_gb: float) -> None:
    """Load when told to, an epoch at a time, within the limit."""
    torch.cuda.init()
    if limit_gb:
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit_gb * 1e9), most))
    now, loader = "", None
    for line in sys.stdin:
        reader, what = line.split()
        if loader is None or reader != now:
            if loader is not None:
                loader.close()
            now, loader = reader, ours(folder, 65_536, reader=reader, device_memory="1GB")
            drain(loader)
        found: Any = loader.feed.plan.rows * 160 / 1e9
        if what == "epoch":
            found = drain(loader)
        elif what == "memory":  # which takes time to look at
            with Watch(os.getpid(), own_memory) as watch:
                drain(loader)
                drain(loader)
            found = watch.most / 1e9
        print(json.dumps(found), flush=True)


def bounded_section(folder: Path, limit_gb: float, rounds: int) -> dict[str, Any]:
    """A process that may not hold the data, and one that may, turn by turn."""
    out: dict[str, Any] = {"limit, GB": limit_gb}
    with Child(folder, limit_gb) as bounded, Child(folder, 0) as free:
        for reader in ("arrow", "cudf"):
            children = {reader: bounded, f"{reader}, no limit": free}
            for child in children.values():
                out["decoded data, GB"] = child.ask(reader, "size")
            runs: dict[str, list[Any]] = {name: [] for name in children}
            for _ in range(rounds):
                for name, child in children.items():
                    runs[name].append(child.ask(reader, "epoch"))
            rates = ([run["rate"] for run in got] for got in runs.values())
            shares = [within / without for within, without in zip(*rates, strict=True)]
            out[f"{reader}, share of the rate without a limit"] = statistics.median(shares)
            for name, child in children.items():
                memory = {"GB of all processes": child.ask(reader, "memory")}
                out[name] = medians(runs[name]) | memory
    return out


if __name__ == "__main__":
    load_when_told(Path(sys.argv[1]), float(sys.argv[2]))
