"""Whether promises of memory are kept, on data whose rows differ in size. Prints JSON.

Each case runs in a fresh process: the peak of its resident memory (``VmHWM``, reset just before
the call) less what was resident after the imports. "floor" is the same call on a file of a few
rows: what Arrow, Polars, DuckDB and PyTorch take before they hold any data. A call that is refused
with one of tabfeed's errors keeps its promise, and its message is shown.

    python benchmarks/memory_promises.py --scale 0.5 --only extras
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

MB = 10**6
PROMISE = 256 * MB
_FEW = 200  # rows of the file that shows the floor

# -- data ---------------------------------------------------------------------------------------


def flat(rows: int) -> pa.Table:
    """Ten columns of numbers: the control."""
    random = np.random.default_rng(0)
    return pa.table({f"c{i}": random.random(rows) for i in range(10)} | {"y": np.zeros(rows)})


def long_text(rows: int, length: int = 4_000) -> pa.Table:
    """Text of about `length` bytes in each row, no two alike."""
    random = np.random.default_rng(0)
    words = random.integers(97, 123, 1 << 20, np.uint8)
    lengths = random.integers(length // 2, length * 3 // 2, rows)
    starts = random.integers(0, len(words) - 2 * length, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.empty(offsets[-1], np.uint8)
    for i, (start, count) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        values[offsets[i] : offsets[i + 1]] = words[start : start + count]
    text = pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(values))
    return _with_numbers("text", text)


def few_strings(rows: int, length: int = 20_000) -> pa.Table:
    """Forty long strings, over and over: small in the file, large once decoded."""
    random = np.random.default_rng(0)
    values = [bytes(random.integers(97, 123, length, np.uint8)).decode() for _ in range(40)]
    codes = pa.array(random.integers(0, len(values), rows).astype(np.int32))
    return _with_numbers("text", pa.DictionaryArray.from_arrays(codes, values))


def skewed_lists(rows: int, *, together: bool = False) -> pa.Table:
    """One value in nearly each row, and half a million in one of two thousand."""
    huge = max(1, rows // 2_000)
    lengths = np.ones(rows, np.int64)
    where = np.arange(huge) + rows // 2 if together else np.arange(huge) * (rows // huge)
    lengths[where] = 500_000
    return _with_numbers("list", _lists(lengths))


def ordinary_lists(rows: int) -> pa.Table:
    """About fifty values in a row."""
    return _with_numbers("list", _lists(np.random.default_rng(0).integers(0, 100, rows)))


def floats(rows: int) -> pa.Table:
    """One column of numbers, one in ten missing."""
    random = np.random.default_rng(0)
    return pa.table({"x": pa.array(random.random(rows), mask=random.random(rows) < 0.1)})


def distinct_text(rows: int) -> pa.Table:
    """Short texts, no two alike."""
    return pa.table({"text": [f"value {i * 7919 % rows}" for i in range(rows)]})


def lists_of_text(rows: int) -> pa.Table:
    """Ten short texts in each row, and ten thousand in some."""
    lengths = np.full(rows, 10, np.int64)
    lengths[:: max(1, rows // 100)] = 10_000
    words = pa.array([f"word-{i:06d}" * 3 for i in range(5_000)])
    count = int(lengths.sum())
    codes = pa.array(np.random.default_rng(0).integers(0, len(words), count).astype(np.int32))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return _with_numbers("words", pa.ListArray.from_arrays(offsets, words.take(codes)))


def _lists(lengths: Any) -> pa.Array:
    values = np.arange(int(lengths.sum()), dtype=np.int64) & 0xFFFFF
    return pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)), pa.array(values)
    )


def _with_numbers(name: str, column: pa.Array) -> pa.Table:
    rows = len(column)
    keys = np.arange(rows) % max(1, rows // 10)
    return pa.table({"key": keys, "x": np.arange(rows) / 7, name: column, "y": np.zeros(rows)})


def write_ipc(table: pa.Table, path: Path) -> None:
    """One compressed record batch."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table.combine_chunks())


def write_avro(table: pa.Table, path: Path) -> None:
    """One block."""
    import polars

    polars.DataFrame(table).write_avro(path)


def write_csv(table: pa.Table, path: Path) -> None:
    """With a header line."""
    pyarrow.csv.write_csv(table, path)


def write_jsonl(table: pa.Table, path: Path) -> None:
    """An object a line."""
    import polars

    polars.DataFrame(table).write_ndjson(path)


# Formats other than Parquet, by the end of the name of the data.
WRITERS = {".arrow": write_ipc, ".avro": write_avro, ".csv": write_csv, ".jsonl": write_jsonl}

# A name, how to make so many rows of it, how many, and how to write them.
DATA: dict[str, tuple[Callable[[int], pa.Table], int, dict[str, Any]]] = {
    "flat": (flat, 6_000_000, {"row_group_size": 1_000_000}),
    "long_text": (long_text, 200_000, {"use_dictionary": False}),
    "long_text.arrow": (long_text, 100_000, {}),
    "long_text.avro": (long_text, 100_000, {}),
    "long_text.csv": (long_text, 200_000, {}),
    "longer_text.csv": (partial(long_text, length=40_000), 20_000, {}),
    "long_text.jsonl": (long_text, 200_000, {}),
    "few_strings": (few_strings, 50_000, {"store_schema": False}),
    "skewed_lists": (skewed_lists, 400_000, {}),
    "clustered_lists": (lambda rows: skewed_lists(rows, together=True), 400_000, {}),
    "ordinary_lists": (ordinary_lists, 1_500_000, {}),
    "lists_of_text": (lists_of_text, 600_000, {}),
    "floats": (floats, 60_000_000, {}),
    "distinct_text": (distinct_text, 3_000_000, {"use_dictionary": False}),
}

# -- what is measured: each runs in the child, and returns how much it gave ----------------------


def same(table: pa.Table) -> pa.Table:
    """The rows as they are."""
    return table


def lengths(table: pa.Table) -> pa.Table:
    """Text as its length: smaller rows."""
    at = table.column_names.index("text")
    return table.set_column(at, "text", pc.binary_length(table["text"]))


def more_numbers(table: pa.Table) -> pa.Table:
    """Thirty columns more."""
    for i in range(30):
        table = table.append_column(f"d{i}", pc.multiply(table["c1"], float(i)))
    return table


def with_text(table: pa.Table) -> pa.Table:
    """A text of some 450 bytes more in each row."""
    digits = pc.cast(pc.cast(pc.floor(pc.multiply(table["c0"], 1e9)), pa.int64()), pa.string())
    return table.append_column("text", pc.binary_repeat(digits, 50))


Function = Callable[[pa.Table], pa.Table]


def _dataset(path: str, fn: Function | None = None) -> Any:
    """The data, through a function if one is given."""
    from tabfeed import Dataset

    dataset = Dataset(path)
    return dataset if fn is None else dataset.map(fn)


def _load(path: str, shuffle: bool, fn: Function | None = None, **options: Any) -> int:
    from tabfeed.loader.torch import Loader

    dataset = _dataset(path, fn)
    loader = Loader(
        dataset, 256, shuffle, targets=["y"], device="cpu", host_memory=PROMISE, **options
    )
    return sum(len(target) for _, target in loader)


def load_flat(path: str, shuffle: bool) -> int:
    """Numbers alone."""
    return _load(path, shuffle)


def load_extras(path: str, shuffle: bool, fn: Function | None = None) -> int:
    """The column that is not a number rides along."""
    column = next(c for c in _dataset(path, fn).column_names if c in ("text", "words"))
    return _load(path, shuffle, fn, extras=[column])


def load_mapped(fn: Function, path: str, shuffle: bool) -> int:
    """What a function makes of the rows."""
    return load_extras(path, shuffle, fn) if fn in (same, with_text) else _load(path, shuffle, fn)


def load_mapped_lists(path: str, shuffle: bool) -> int:
    """Ragged lists that come out of a function."""
    return _load(path, shuffle, same)


def load_transformed(fn: Function, path: str, shuffle: bool) -> int:
    """The same function as a transform of the loader."""
    return _load(path, shuffle, transforms=fn)


def load_workflow(path: str, shuffle: bool, fn: Function | None = None) -> int:
    """A workflow turns the text into numbers as it is read."""
    from tabfeed import Workflow, ops

    nodes = (["text"] >> ops.HashBucket(1000)) + ["x", "y"]
    few = _dataset(path, fn).select(["x", "y", "text"])
    return _load(path, shuffle, fn, transforms=Workflow(nodes).fit(few))


def load_mapped_workflow(path: str, shuffle: bool) -> int:
    """The same over what a function gives."""
    return load_workflow(path, shuffle, same)


def load_lists(path: str, shuffle: bool) -> int:
    """Lists as ragged tensors."""
    return _load(path, shuffle)


def _written(path: str, shuffle: str | None, fn: Function | None = None) -> int:
    return _write(_dataset(path, fn), path, shuffle)


def _write(dataset: Any, path: str, shuffle: str | None) -> int:
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as folder:
        out = dataset.to_parquet(
            f"{folder}/out", shuffle=shuffle, memory_limit=PROMISE, output_files=4
        )
        return int(out.num_rows)


def write_full(path: str, _: bool) -> int:
    """A full shuffle to Parquet."""
    return _written(path, "FULL")


def write_worker(path: str, _: bool) -> int:
    """A shuffle within each file."""
    return _written(path, "PER_WORKER")


def write_plain(path: str, _: bool) -> int:
    """Written as it is."""
    return _written(path, None)


def write_mapped(fn: Function, shuffle: str | None, path: str, _: bool) -> int:
    """What a function makes of the rows."""
    return _written(path, shuffle, fn)


def by_keys(path: str, _: bool, fn: Function | None = None) -> int:
    """Grouped by key."""
    return int(_dataset(path, fn).shuffle_by_keys("key", memory_limit=PROMISE).num_rows)


def mapped_by_keys(path: str, shuffle: bool) -> int:
    """What a function gives, grouped by key."""
    return by_keys(path, shuffle, same)


def mapped_join(path: str, shuffle: bool) -> int:
    """What a function gives, joined with a small table."""
    return join(path, shuffle, same)


def mapped_fit(path: str, shuffle: bool) -> int:
    """A workflow that learns from what a function gives."""
    return fit(path, shuffle, same)


def transform(path: str, _: bool) -> int:
    """A workflow that changes text, and its result as Parquet."""
    from tabfeed import Workflow, ops

    dataset = _dataset(path)
    nodes = (["text"] >> ops.LambdaOp(lambda c: c.str.to_uppercase())) + ["key"]
    workflow = Workflow(nodes).fit(dataset, memory_limit=PROMISE)
    return _write(workflow.transform(dataset), path, None)


def join(path: str, _: bool, fn: Function | None = None) -> int:
    """Joined with a small table."""
    from tabfeed import Dataset

    left = _dataset(path, fn)
    right = Dataset({"key": np.arange(1000), "z": np.arange(1000) / 3})
    return int(Dataset.merge(left, right, on="key", how="left", memory_limit=PROMISE).num_rows)


def fit(path: str, _: bool, fn: Function | None = None) -> int:
    """A workflow that learns from text made into numbers, and from keys."""
    from tabfeed import Workflow, ops

    length = ["text"] >> ops.LambdaOp(lambda c: c.str.len_bytes().cast(float)) >> ops.Normalize()
    Workflow(length + (["key"] >> ops.Categorify())).fit(_dataset(path, fn), memory_limit=PROMISE)
    return 1


def median(path: str, _: bool) -> int:
    """The exact median of a column."""
    from tabfeed import Dataset, Workflow, ops

    Workflow(["x"] >> ops.FillMedian()).fit(Dataset(path), memory_limit=PROMISE)
    return 1


def ids(limit: int, path: str, _: bool) -> int:
    """Ids of texts, counted within so many bytes."""
    from tabfeed import Dataset, Workflow, ops
    from tabfeed.ops import get_embedding_sizes

    workflow = Workflow(["text"] >> ops.Categorify()).fit(Dataset(path), memory_limit=limit)
    return int(get_embedding_sizes(workflow)["text"][0])


def partitions(path: str, _: bool) -> int:
    """Bytes of the largest partition where 64 MB were asked for."""
    from tabfeed import Dataset

    dataset = Dataset(path, part_size=64 * MB)
    return max(int(dataset.read(i).nbytes) for i in range(dataset.npartitions))


# A case's name, its data, what is done with it, and the bytes promised; both orders for loaders.
CASES: list[tuple[str, str, Callable[[str, bool], int], int]] = [
    ("loader: numbers", "flat", load_flat, PROMISE),
    ("loader: long text as extras", "long_text", load_extras, PROMISE),
    ("loader: workflow over long text", "long_text", load_workflow, PROMISE),
    ("loader: one compressed record batch", "long_text.arrow", load_extras, PROMISE),
    ("loader: one block of Avro", "long_text.avro", load_extras, PROMISE),
    ("full shuffle: one compressed record batch", "long_text.arrow", write_full, PROMISE),
    ("full shuffle: one block of Avro", "long_text.avro", write_full, PROMISE),
    ("loader: few long strings", "few_strings", load_extras, PROMISE),
    ("loader: skewed lists", "skewed_lists", load_lists, PROMISE),
    ("loader: skewed lists, clustered", "clustered_lists", load_lists, PROMISE),
    ("loader: ordinary lists", "ordinary_lists", load_lists, PROMISE),
    ("loader: lists of text as extras", "lists_of_text", load_extras, PROMISE),
    ("full shuffle: numbers", "flat", write_full, PROMISE),
    ("full shuffle: long text", "long_text", write_full, PROMISE),
    ("full shuffle: few long strings", "few_strings", write_full, PROMISE),
    ("full shuffle: skewed lists", "skewed_lists", write_full, PROMISE),
    ("full shuffle: skewed lists, clustered", "clustered_lists", write_full, PROMISE),
    ("per-worker shuffle: long text", "long_text", write_worker, PROMISE),
    ("to_parquet: long text", "long_text", write_plain, PROMISE),
    ("to_parquet: skewed lists, clustered", "clustered_lists", write_plain, PROMISE),
    ("shuffle_by_keys: long text", "long_text", by_keys, PROMISE),
    ("shuffle_by_keys: skewed lists", "skewed_lists", by_keys, PROMISE),
    ("join: long text", "long_text", join, PROMISE),
    ("fit: long text", "long_text", fit, PROMISE),
    ("fit: few long strings", "few_strings", fit, PROMISE),
    ("loader: map that gives the same long text", "long_text", partial(load_mapped, same), PROMISE),
    ("loader: map to lengths", "long_text", partial(load_mapped, lengths), PROMISE),
    ("loader: map to more numbers", "flat", partial(load_mapped, more_numbers), PROMISE),
    ("loader: map to text", "flat", partial(load_mapped, with_text), PROMISE),
    ("loader: map to skewed lists", "skewed_lists", load_mapped_lists, PROMISE),
    ("loader: more numbers", "flat", partial(load_transformed, more_numbers), PROMISE),
    ("loader: workflow over map of long text", "long_text", load_mapped_workflow, PROMISE),
    ("loader: long text in CSV", "long_text.csv", load_extras, PROMISE),
    ("loader: longer text in CSV", "longer_text.csv", load_extras, PROMISE),
    ("loader: workflow over long text in CSV", "long_text.csv", load_workflow, PROMISE),
    ("loader: long text in JSON lines", "long_text.jsonl", load_extras, PROMISE),
    ("full shuffle: map of long text", "long_text", partial(write_mapped, same, "FULL"), PROMISE),
    ("full shuffle: map to text", "flat", partial(write_mapped, with_text, "FULL"), PROMISE),
    ("to_parquet: map of long text", "long_text", partial(write_mapped, same, None), PROMISE),
    ("to_parquet: map to text", "flat", partial(write_mapped, with_text, None), PROMISE),
    ("to_parquet: workflow over long text", "long_text", transform, PROMISE),
    ("shuffle_by_keys: map of long text", "long_text", mapped_by_keys, PROMISE),
    ("join: map of long text", "long_text", mapped_join, PROMISE),
    ("fit: map of long text", "long_text", mapped_fit, PROMISE),
    *(
        (f"{name}: long text in {kind}", f"long_text.{end}", run, PROMISE)
        for kind, end in (("CSV", "csv"), ("JSON lines", "jsonl"))
        for name, run in (
            ("full shuffle", write_full),
            ("per-worker shuffle", write_worker),
            ("to_parquet", write_plain),
            ("shuffle_by_keys", by_keys),
            ("join", join),
            ("fit", fit),
        )
    ),
    ("full shuffle: longer text in CSV", "longer_text.csv", write_full, PROMISE),
    ("fit: one compressed record batch", "long_text.arrow", fit, PROMISE),
    ("fit: one block of Avro", "long_text.avro", fit, PROMISE),
    ("part_size: long text", "long_text", partitions, 64 * MB),
    ("part_size: few long strings", "few_strings", partitions, 64 * MB),
    ("part_size: skewed lists", "skewed_lists", partitions, 64 * MB),
    ("part_size: skewed lists, clustered", "clustered_lists", partitions, 64 * MB),
    ("fit: FillMedian", "floats", median, PROMISE),
    *(
        (f"fit: Categorify within {mb} MB", "distinct_text", partial(ids, mb * MB), mb * MB)
        for mb in (16, 64, 128, 256)
    ),
]

# -- one case, in a process of its own -----------------------------------------------------------


def resident(key: str) -> int:
    """A figure of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


def child(name: str, path: str, shuffle: bool) -> dict[str, Any]:
    """Run a case here; its growth, its time and what came of it."""
    import duckdb  # noqa: F401 - what the libraries take is no part of the growth
    import polars  # noqa: F401

    import tabfeed.loader.torch  # noqa: F401
    from tabfeed.errors import TabfeedError

    run = next(case for case in CASES if case[0] == name)[2]
    Path("/proc/self/clear_refs").write_text("5")
    before, start = resident("VmRSS"), time.perf_counter()
    try:
        outcome: Any = run(path, shuffle)
    except TabfeedError as e:
        outcome = f"refused: {e}"
    seconds = time.perf_counter() - start
    return {"growth": resident("VmHWM") - before, "seconds": seconds, "outcome": outcome}


def in_child(name: str, path: Path, shuffle: bool) -> dict[str, Any]:
    """The same in a fresh process."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", name, str(path)]
    done = subprocess.run([*command, str(int(shuffle))], capture_output=True, text=True)
    if done.returncode:
        return {"growth": 0, "seconds": 0.0, "outcome": f"failed: {done.stderr[-500:]}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(case: tuple[str, str, Any, int], shuffle: bool, files: dict[str, Path]) -> Any:
    """A case's figures, in MB."""
    name, data, run, promise = case
    found = in_child(name, files[data], shuffle)
    floor = in_child(name, files[f"{data}.few"], shuffle)
    entry = {
        "case": name,
        "order": "shuffled" if shuffle else "in order",
        "promise_mb": round(promise / MB),
        "growth_mb": round(found["growth"] / MB),
        # Of partitions the size is promised, not what reading them takes.
        "ratio": round(found["outcome" if run is partitions else "growth"] / promise, 2),
        "floor_mb": round(floor["growth"] / MB),
        "seconds": round(found["seconds"], 1),
        "outcome": found["outcome"],
    }
    print(json.dumps(entry), file=sys.stderr, flush=True)
    return entry


def main() -> None:
    """Make the data, run the cases, print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the data's rows")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--folder", type=Path, help="where data may lie; kept if it exists")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, path, shuffle = args.child
        print(json.dumps(child(name, path, bool(int(shuffle)))))
        return
    chosen = [case for case in CASES if args.only in case[0]]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = []
        for data in dict.fromkeys(case[1] for case in chosen):
            make, rows, options = DATA[data]
            end = Path(data).suffix or ".parquet"
            files = {name: folder / f"{name}{end}" for name in (data, f"{data}.few")}
            for file, count in zip(files.values(), (int(rows * args.scale), _FEW), strict=True):
                if not file.exists():
                    WRITERS.get(end, pq.write_table)(make(count), file, **options)
            for case in chosen:
                if case[1] == data:
                    orders = (True, False) if case[0].startswith("loader") else (False,)
                    found += [measure(case, shuffle, files) for shuffle in orders]
            if args.folder is None:
                for file in files.values():
                    file.unlink()
    print(json.dumps({"scale": args.scale, "cases": found}, indent=1))


if __name__ == "__main__":
    main()
