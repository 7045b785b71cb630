"""Rows a second from TFRecord files: tf.data, tabfeed directly, tabfeed once converted; JSON.

    python benchmarks/tfrecord.py --rows 200_000 --rounds 5

Two shapes: a label, 32 more integers and 7 floats, one value each, as in click logs; and lists of
several lengths and text. The ways take turns within each round, another one first each time, on
warm files, and the medians are given; how many times tf.data's rate a way has is the median of what
each round gave. tf.data reads as its guide advises: files in parallel, batches parsed by
`parse_example` in parallel, prefetched. A round of tabfeed opens the dataset anew, so that finding
the records counts. TensorFlow (tensorflow-cpu) is needed. CPU time is that of all threads: on a
machine that others use it is steadier than the rates.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from tabfeed import Dataset
from tabfeed.budget import cpu_count

BATCH = 4096
FILES = 4

# -- data -------------------------------------------------------------------------------


def ints(values: Any) -> Any:
    """A feature of integers."""
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(values: Any) -> Any:
    """A feature of floats."""
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def texts(values: Any) -> Any:
    """A feature of bytes."""
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def clicks(rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """A label, 26 categories, 6 counts, 7 numbers."""
    rng = np.random.default_rng(seed)
    cats = (rng.random((rows, 26)) ** 3 * 2_000_000).astype(np.int64).tolist()
    counts = rng.geometric(0.01, (rows, 6)).tolist()
    numbers = rng.random((rows, 7)).tolist()
    for i in range(rows):
        row = {"label": ints([i % 2])}
        row |= {f"C{k + 1}": ints([v]) for k, v in enumerate(cats[i])}
        row |= {f"I{k + 1}": ints([v]) for k, v in enumerate(counts[i])}
        row |= {f"I{k + 7}": floats([v]) for k, v in enumerate(numbers[i])}
        yield row


def sessions(rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """A user, a country, an embedding, the items seen and their tags."""
    rng = np.random.default_rng(seed)
    for i in range(rows):
        count = int(rng.integers(0, 20))
        yield {
            "user": ints([i]),
            "country": texts([(b"DE", b"FR", b"Portugal")[i % 3]]),
            "embedding": floats(rng.random(16)),
            "items": ints(rng.integers(0, 100_000, count)),
            "tags": texts([b"tag%d" % k for k in range(count % 4)]),
        }


SHAPES: dict[str, tuple[Callable[[int, int], Iterator[dict[str, Any]]], dict[str, Any]]] = {
    "clicks": (
        clicks,
        {
            n: tf.io.FixedLenFeature([], tf.int64)
            for n in ["label", *(f"C{k}" for k in range(1, 27))]
        }
        | {f"I{k}": tf.io.FixedLenFeature([], tf.int64) for k in range(1, 7)}
        | {f"I{k}": tf.io.FixedLenFeature([], tf.float32) for k in range(7, 14)},
    ),
    "sessions": (
        sessions,
        {
            "user": tf.io.FixedLenFeature([], tf.int64),
            "country": tf.io.FixedLenFeature([], tf.string),
            "embedding": tf.io.FixedLenFeature([16], tf.float32),
            "items": tf.io.RaggedFeature(tf.int64),
            "tags": tf.io.RaggedFeature(tf.string),
        },
    ),
}


def write(folder: Path, shape: str, rows: int) -> list[str]:
    """Write the records with TensorFlow."""
    make, _ = SHAPES[shape]
    paths = []
    for number in range(FILES):
        paths.append(str(folder / f"{number}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for row in make(rows // FILES, number):
                example = tf.train.Example(features=tf.train.Features(feature=row))
                writer.write(example.SerializeToString())
    return paths


# -- ways -------------------------------------------------------------------------------


def by_tf_data(paths: list[str], shape: str) -> int:
    """tf.data, every batch parsed at once."""
    _, spec = SHAPES[shape]
    name = next(iter(spec))
    auto = tf.data.AUTOTUNE
    dataset = tf.data.TFRecordDataset(paths, num_parallel_reads=auto).batch(BATCH)
    dataset = dataset.map(lambda b: tf.io.parse_example(b, spec), num_parallel_calls=auto)
    return sum(int(batch[name].shape[0]) for batch in dataset.prefetch(auto))


def by_tabfeed(source: str | list[str]) -> int:
    """All columns, as Arrow tables."""
    return sum(table.num_rows for table in Dataset(source).iter_tables())


def rotated(ways: list[str], turn: int) -> list[str]:
    """The ways, beginning with another one each turn."""
    first = turn % len(ways)
    return ways[first:] + ways[:first]


def measure(shape: str, rows: int, rounds: int) -> dict[str, Any]:
    """The medians of some rounds, in rows a second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write(folder, shape, rows)
        rows = FILES * (rows // FILES)
        start = time.perf_counter()
        Dataset(paths).to_parquet(folder / "parquet")
        converting = time.perf_counter() - start
        ways = {
            "tf_data_parse_example": lambda: by_tf_data(paths, shape),
            "tabfeed_direct": lambda: by_tabfeed(paths),
            "tabfeed_converted": lambda: by_tabfeed(str(folder / "parquet")),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        work: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(rounds + 1):  # the first warms up
            for way in rotated(list(ways), turn):
                start, cpu = time.perf_counter(), time.process_time()
                assert ways[way]() == rows
                if turn:
                    seconds[way].append(time.perf_counter() - start)
                    work[way].append(time.process_time() - cpu)
        size = sum(os.path.getsize(p) for p in paths)
    rates = {way: rows / statistics.median(s) for way, s in seconds.items()}
    base = seconds["tf_data_parse_example"]
    return {
        "shape": shape,
        "rows": rows,
        "bytes_per_row": round(size / rows, 1),
        "rows_per_second": {way: round(rate) for way, rate in rates.items()},
        "fastest_rows_per_second": {way: round(rows / min(s)) for way, s in seconds.items()},
        "cpu_microseconds_per_row": {
            way: round(statistics.median(c) / rows * 1e6, 2) for way, c in work.items()
        },
        "times_tf_data": {
            way: round(statistics.median(b / a for a, b in zip(s, base, strict=True)), 2)
            for way, s in seconds.items()
        },
        "converting_rows_per_second": round(rows / converting),
    }


def main() -> None:
    """Measure both shapes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    options = parser.parse_args()
    results = [measure(shape, options.rows, options.rounds) for shape in options.shapes]
    about: dict[str, Any] = {"threads": cpu_count(), "batch": BATCH, "rounds": options.rounds}
    about["versions"] = {"python": platform.python_version()} | {
        name: version(name) for name in ("tabfeed", "pyarrow", "numpy")
    }
    about["versions"]["tensorflow"] = tf.__version__
    print(json.dumps({"benchmark": "tfrecord", **about, "results": results}, indent=2))


if __name__ == "__main__":
    main()
