"""One column of 40 M strings with 30 M distinct values, fitted under ``memory_limit="1GB"``.

    python benchmarks/vocabulary.py [--rows 40000000] [--limit 1GB] [--digits 16]

Prints JSON: seconds, size of the vocabulary, peak resident memory of the process that fitted.
The data is generated and the fit runs in processes of their own, so that the peak is the fit's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.hashing import mix

GROUP = 1_000_000


def generate(path: Path, rows: int, digits: int) -> None:
    """Three quarters of the rows are distinct, the rest repeat some of them."""
    distinct = rows * 3 // 4
    schema = pa.schema([("c", pa.string())])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, rows, GROUP):
            ids = np.arange(start, min(start + GROUP, rows), dtype=np.uint64)
            # A fixed scramble of the row number, so that repeats lie far from their first use.
            ids = np.where(ids < distinct, ids, mix(ids) % np.uint64(distinct))
            writer.write_table(pa.table([_hex(mix(ids), digits)], schema=schema))


def _hex(words: np.ndarray, digits: int) -> pa.Array:
    raw = words.astype(">u8").view(np.uint8).reshape(-1, 8)
    nibbles = np.stack([raw >> 4, raw & 15], axis=2).reshape(len(words), 16)[:, :digits]
    text = np.ascontiguousarray(np.frombuffer(b"0123456789abcdef", np.uint8)[nibbles])
    offsets = np.arange(len(words) + 1, dtype=np.int32) * digits
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(words), buffers)


def fit(path: Path, limit: str, results: Any) -> None:
    """Fit, and report time and peak memory."""
    import tabfeed
    from tabfeed import ops

    start = time.perf_counter()
    workflow = tabfeed.Workflow(["c"] >> ops.Categorify())
    workflow.fit(tabfeed.Dataset(path), memory_limit=limit)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cardinality = workflow.output_schema["c"].embedding_size[0]
    results.put({"fit_s": round(seconds, 2), "peak_bytes": peak, "cardinality": cardinality})


def main() -> None:
    """Generate, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=40_000_000)
    parser.add_argument("--limit", default="1GB")
    parser.add_argument("--digits", type=int, default=16)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tabfeed-vocabulary-"))
    context = multiprocessing.get_context("spawn")
    try:
        path = folder / "strings.parquet"
        _run(context.Process(target=generate, args=(path, args.rows, args.digits)))
        results: Any = context.Queue()
        _run(context.Process(target=fit, args=(path, args.limit, results)))
        found = {
            "rows": args.rows,
            "digits": args.digits,
            "memory_limit": args.limit,
            **results.get(),
        }
        found["peak_gb"] = round(found.pop("peak_bytes") / 1e9, 3)
        print(json.dumps(found, indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(process: Any) -> None:
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"{process.name} ended with {process.exitcode}")


if __name__ == "__main__":
    main()
