"""How fast synthetic data is made and written, and how much memory that takes, as JSON.

    python benchmarks/datagen.py --rows 4_000_000

Each kind is made in a process of its own, so that one's memory is not counted as another's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabfeed import datagen
from tabfeed.budget import cpu_count

KINDS = {
    "criteo": lambda path, rows: datagen.criteo(path, rows),
    "criteo_raw": lambda path, rows: datagen.criteo(path, rows, raw=True),
    "movielens": lambda path, rows: datagen.movielens(path, rows),
    "outbrain": lambda path, rows: datagen.outbrain(path, rows // 5),
    "reviews": lambda path, rows: datagen.reviews(path, max(1, rows // 10)),
}


def measure(kind: str, rows: int) -> dict[str, object]:
    """Make one kind once."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        made = KINDS[kind](folder, rows)
        seconds = time.perf_counter() - start
        datasets = made if isinstance(made, tuple) else (made,)
        count = sum(dataset.num_rows for dataset in datasets)
        size = sum(f.stat().st_size for f in Path(folder).rglob("*.parquet"))
    return {
        "kind": kind,
        "rows": count,
        "seconds": round(seconds, 3),
        "rows_per_second": round(count / seconds),
        "bytes_per_row": round(size / count, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000),
        "threads": cpu_count(),
    }


def main() -> None:
    """Measure what is asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.kinds[0], options.rows)))
        return
    results = []
    for kind in options.kinds:
        command = [sys.executable, __file__, "--here", "--kinds", kind, "--rows", str(options.rows)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(done.stdout))
    print(json.dumps({"benchmark": "datagen", "results": results}, indent=2))


if __name__ == "__main__":
    main()
