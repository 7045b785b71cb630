"""Write processed Criteo-shaped rows in a full shuffle within a memory limit; print JSON.

    python benchmarks/full_shuffle.py --rows 10_000_000 --limit 512MB

The writing runs in a process of its own, so that its peak memory is its own. Then the order
of the result is tested against a uniform random permutation: a chi-square test of where
each block of the input went, a runs test up and down, and the correlation of neighbours.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import tabfeed
from tabfeed import datagen


def peak_rss_mb() -> float:
    """The peak of this process alone; getrusage would count the parent that started it too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def write(source: str, target: str, limit: str) -> dict[str, float]:
    """Runs in the child process."""
    base = peak_rss_mb()
    start = time.perf_counter()
    tabfeed.Dataset(source).to_parquet(target, shuffle="FULL", memory_limit=limit, seed=1)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_rss_mb": peak_rss_mb(), "rss_after_import_mb": base}


def numbered(source: str, target: str) -> None:
    """Add each row's number, so that the permutation can be seen."""
    dataset = tabfeed.Dataset(source)
    counter = [0]

    def number(table: pa.Table) -> pa.Table:
        rows = np.arange(counter[0], counter[0] + table.num_rows)
        counter[0] += table.num_rows
        return table.append_column("row", pa.array(rows))

    schema = tabfeed.Schema([*dataset.schema, tabfeed.ColumnSchema("row", "int64", nullable=False)])
    one = tabfeed.execute.LocalExecutor(threads=1)
    dataset.map(number, schema=schema).to_parquet(target, executor=one)


def judge(rows: np.ndarray) -> dict[str, float | bool]:
    """Compare an order of row numbers with what chance would give."""
    n, blocks = len(rows), 100
    is_permutation = bool((np.sort(rows) == np.arange(n)).all())
    table, _, _ = np.histogram2d(rows, np.arange(n), bins=blocks, range=[[0, n], [0, n]])
    expected = n / blocks**2
    chi2 = float(((table - expected) ** 2 / expected).sum())
    freedom = (blocks - 1) ** 2
    steps = np.diff(rows) > 0
    runs = 1 + int((steps[1:] != steps[:-1]).sum())
    mean, spread = (2 * n - 1) / 3, math.sqrt((16 * n - 29) / 90)
    neighbours = float(np.corrcoef(rows[:-1], rows[1:])[0, 1])
    return {
        "is_permutation": is_permutation,
        "chi_square_z": (chi2 - freedom) / math.sqrt(2 * freedom),
        "runs_z": (runs - mean) / spread,
        "neighbour_correlation_z": neighbours * math.sqrt(n),
    }


def main() -> None:
    """Make the data, shuffle it in a child, judge the order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--limit", default="512MB")
    parser.add_argument("--child", nargs=2, metavar=("SOURCE", "TARGET"))
    args = parser.parse_args()
    if args.child:
        print(json.dumps(write(*args.child, args.limit)))
        return
    with tempfile.TemporaryDirectory() as folder:
        raw, plain, mixed = (str(Path(folder) / n) for n in ("raw", "plain", "mixed"))
        datagen.criteo(raw, args.rows)
        numbered(raw, plain)
        command = [sys.executable, __file__, "--limit", args.limit, "--child", plain, mixed]
        child = subprocess.run(command, check=True, capture_output=True, text=True)
        result = json.loads(child.stdout)
        rows = tabfeed.Dataset(mixed, columns=["row"]).to_arrow()["row"].to_numpy()
        size = sum(f.stat().st_size for f in Path(mixed).glob("*.parquet"))
        result |= {"rows": args.rows, "memory_limit": args.limit, "written_mb": size / 2**20}
        result |= {"rows_per_second": args.rows / result["seconds"], **judge(rows)}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
