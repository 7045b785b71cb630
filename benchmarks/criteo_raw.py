"""Raw Criteo-shaped rows for the benchmarks: hex strings, integers with nulls, a label.

Cardinalities are those of the Criteo 1TB columns, values drawn log-uniformly, nulls from
0 to 4 % in the categorical columns and from 0 to 30 % in the continuous ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.hashing import mix

CARDINALITIES = [
    10_000_000, 29_612, 15_050, 7_190, 19_547, 4, 6_492, 1_317, 63, 10_000_000, 707_291, 218_510,
    11, 2_209, 9_798, 72, 4, 954, 15, 10_000_000, 4_553_157, 10_000_000, 291_641, 10_904, 91, 35,
]  # fmt: skip
CATS = [f"C{i}" for i in range(1, 27)]
CONTS = [f"I{i}" for i in range(1, 14)]


def write(folder: Path, rows: int, *, files: int = 4, group: int = 250_000, seed: int = 7) -> None:
    """Write `rows` rows as `files` Parquet files, unless they are there already."""
    done = folder / f"done-{rows}"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        low, high = rows * number // files, rows * (number + 1) // files
        writer: pq.ParquetWriter | None = None
        for start in range(low, high, group):
            table = make(min(group, high - start), seed=seed + start)
            writer = writer or pq.ParquetWriter(folder / f"part_{number}.parquet", table.schema)
            writer.write_table(table, row_group_size=group)
        if writer is not None:
            writer.close()
    done.touch()


def make(rows: int, *, seed: int) -> pa.Table:
    """One table of `rows` rows."""
    rng = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {"label": pa.array((rng.random(rows) < 0.03).astype(np.int32))}
    for i, name in enumerate(CONTS):
        values = np.floor(rng.exponential(50.0, rows)).astype(np.int32) - 2
        columns[name] = pa.array(values, mask=rng.random(rows) < 0.3 * i / 12)
    for i, (name, cardinality) in enumerate(zip(CATS, CARDINALITIES, strict=True)):
        ids = np.exp(rng.random(rows) * np.log(cardinality)).astype(np.uint64)
        columns[name] = _hex(ids + np.uint64(i << 32), rng.random(rows) < 0.04 * i / 25)
    return pa.table(columns)


def _hex(ids: np.ndarray, mask: np.ndarray) -> pa.Array:
    """Eight hex digits of a scramble of each id."""
    word = mix(ids).astype(">u4").view(np.uint8).reshape(-1, 4)
    nibbles = np.stack([word >> 4, word & 15], axis=2).reshape(-1)
    text = np.frombuffer(b"0123456789abcdef", np.uint8)[nibbles]
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * 8
    buffers = [pa.py_buffer(np.packbits(~mask, bitorder="little")), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.string(), len(ids), [*buffers, pa.py_buffer(text)])
