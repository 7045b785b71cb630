"""How long one row takes: a fitted workflow of 40 columns on a dict. Prints JSON.

    python benchmarks/serve.py [--rows 2000]

The values must be those that the batch path gives.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import criteo_raw
from criteo_raw import CATS, CONTS

import tabfeed as nvt
from tabfeed import ops


def main() -> None:
    """Fit on 250,000 rows, then time single rows of other data."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=2000)
    args = parser.parse_args()
    cats = CATS >> ops.Categorify(max_size=10_000_000)
    conts = CONTS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    workflow = nvt.Workflow(cats + conts + ["label"])
    workflow.fit(criteo_raw.make(250_000, seed=1))
    table = criteo_raw.make(args.rows, seed=2)
    rows = table.to_pylist()
    for row in rows[:100]:
        workflow.transform(row)
    times, results = [], []
    for row in rows:
        start = time.perf_counter()
        results.append(workflow.transform(row))
        times.append(time.perf_counter() - start)
    times.sort()
    found = {
        "columns": table.num_columns,
        "rows": len(rows),
        "median_ms": round(statistics.median(times) * 1e3, 4),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 4),
        "same_as_batch": results == workflow.transform(table).to_pylist(),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
