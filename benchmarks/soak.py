"""Many epochs of a small dataset: memory and threads must stay flat. Prints JSON.

python benchmarks/soak.py --batches 200000
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tabfeed.loader.torch import Loader, TorchAsyncItr
from tabfeed.testing.loader import write_rows

_CHUNK = 100_000  # bytes: small chunks, so that threads are at work all the time


def resident() -> float:
    """Resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def soak(loader: Any, batches: int, samples: int) -> list[dict[str, float]]:
    """Go round until so many batches have come; look at memory and threads now and then."""
    out, seen, every = [], 0, batches // samples
    start = time.perf_counter()
    while seen < batches:
        for _ in loader:
            seen += 1
            if seen % every == 0:
                gc.collect()
                out.append(
                    {
                        "batches": seen,
                        "seconds": round(time.perf_counter() - start, 2),
                        "resident MB": round(resident(), 1),
                        "threads": threading.active_count(),
                        "epoch": loader.epoch,
                    }
                )
            if seen % 777 == 0:
                break  # leave an epoch early now and then
            if seen == batches:
                break
    return out


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200_000)
    parser.add_argument("--samples", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_rows(Path(folder), (3000, 1700, 2300, 4100, 0, 900), row_group=1000)
        doors = {
            "TorchAsyncItr": TorchAsyncItr(
                dataset,
                ["key", "check", "words"],
                ["x"],
                ["y"],
                batch_size=16,
                shuffle=True,
                buffer_size=_CHUNK,
            ),
            "Loader": Loader(dataset, 16, shuffle=True, targets=["y"], buffer_size=_CHUNK),
        }
        half = args.batches // 2
        result = {name: soak(loader, half, args.samples) for name, loader in doors.items()}
        time.sleep(1)
    rest = [s["resident MB"] for s in result["Loader"][len(result["Loader"]) // 4 :]]
    summary = {
        "batches": 2 * half,
        "resident MB after the first quarter of the last door": [min(rest), max(rest)],
        "threads at the end": threading.active_count(),
    }
    print(json.dumps({"summary": summary, "samples": result}, indent=2))


if __name__ == "__main__":
    main()
