"""How long opening 1,000 Parquet files of 40 columns takes, rows and partitions counted.

Prints one JSON object; exits with 1 if opening took 2 seconds or more. Run with
``.venv/bin/python benchmarks/open_files.py``.
"""

import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.io import Dataset

FILES, COLUMNS, ROWS, RUNS = 1000, 40, 500, 5
LIMIT_S = 2.0


def write(folder: Path) -> None:
    """Numbers and text, as processed click logs have; every file is written, none linked."""
    rng = np.random.default_rng(0)
    numbers = {f"n{i}": rng.integers(0, 1000, ROWS, dtype=np.int32) for i in range(COLUMNS - 10)}
    texts = {f"t{i}": rng.integers(0, 1000, ROWS).astype(str) for i in range(10)}
    table = pa.table({**numbers, **texts})
    for i in range(FILES):
        pq.write_table(table, folder / f"part_{i}.parquet", row_group_size=ROWS // 2)


def timed(folder: Path) -> tuple[float, float, float]:
    """Seconds to open, then to count rows and partitions, then to open and prune by a filter."""
    start = time.perf_counter()
    dataset = Dataset(folder)
    opened = time.perf_counter()
    if (dataset.num_rows, dataset.npartitions) != (FILES * ROWS, FILES):
        raise SystemExit(f"wrong counts: {dataset!r}")
    counted = time.perf_counter()
    if Dataset(folder, filters=[("n0", ">", 5000)]).npartitions:
        raise SystemExit("the statistics were not used")
    return opened - start, counted - opened, time.perf_counter() - counted


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        runs = [timed(Path(name)) for _ in range(RUNS)]
    opening, counting, pruning = (statistics.median(r) for r in zip(*runs, strict=True))
    result = {
        "benchmark": "open_files",
        "files": FILES,
        "columns": COLUMNS,
        "runs": RUNS,
        "open_s": round(opening, 3),
        "slowest_open_s": round(max(r[0] for r in runs), 3),
        "num_rows_and_npartitions_s": round(counting, 3),
        "open_with_filter_s": round(pruning, 3),
        "limit_s": LIMIT_S,
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
    }
    print(json.dumps(result))
    return int(opening >= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
