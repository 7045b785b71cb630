"""pyarrow alone: how fast the files can be decoded at all. Nothing is delivered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import arrow_files, arrow_s3


def decode_only(case: Case) -> Epoch:
    """As many threads as cores, a row group each, each footer read once."""
    import pyarrow.parquet as pq

    server = arrow_s3(case)
    footers = {f: pq.read_metadata(f, filesystem=server) for f in arrow_files(case)}
    units = [(f, m, g) for f, m in footers.items() for g in range(m.num_row_groups)]

    def read(unit: tuple[str, Any, int]) -> int:
        # A reader of its own for each unit: readers must not be shared between threads.
        file, footer, group = unit
        remote = {"filesystem": server, "pre_buffer": server is not None}
        with pq.ParquetFile(file, metadata=footer, **remote) as reader:
            table = reader.read_row_group(group, columns=case.columns, use_threads=False)
            return int(table.num_rows)

    def epoch() -> Iterator[tuple[int, Any]]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            for rows in threads.map(read, units):
                yield rows, None

    return epoch


CONTENDERS = (
    Contender(
        name="decode-only",
        title="pyarrow, decoding only",
        open=decode_only,
        suites=("loading", "rows", "codec", "lists"),
        modules=("pyarrow", "pyarrow.parquet"),
        delivers="nothing",
        shuffles="no",
        why="Row groups are decoded on every core and thrown away: a yardstick, not a loader.",
        limit=True,
    ),
)
