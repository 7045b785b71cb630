"""How fast ``model.fit`` goes when fed by whom: rows a second of the Criteo model. Prints JSON.

The model is that of the Criteo notebook: 26 embeddings of 16, three dense layers of 128, SGD. The
ceiling is the same model fed by batches that lie in memory already, several in turn so that it
does not keep hitting the same embedding rows. Contenders run in turn, round after round, so that a
noisy machine disturbs all alike; figures are medians. Slow contenders get fewer rows.

    python benchmarks/keras_fit.py --rows 2097152 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

from tabfeed import Dataset, datagen
from tabfeed.budget import cpu_count
from tabfeed.datagen.criteo_shaped import CARDINALITIES
from tabfeed.framework_utils.tensorflow.layers import DenseFeatures
from tabfeed.loader.keras_columns import Embedding, Identity
from tabfeed.loader.tensorflow import KerasSequenceLoader
from tabfeed.loader.tensorflow.tensors import as_tensor

CATS = [f"C{i}" for i in range(1, 27)]
CONTS = [f"I{i}" for i in range(1, 14)]
COLUMNS = [*CATS, *CONTS, "label"]
SPEC = (
    {n: tf.TensorSpec((None, 1), tf.int32) for n in CATS}
    | {n: tf.TensorSpec((None, 1), tf.float32) for n in CONTS},
    tf.TensorSpec((None, 1), tf.float32),
)


def make_model() -> keras.Model:
    """The notebook's model; tables filled with a constant, which is quicker to make."""
    inputs = {n: keras.Input((1,), dtype="int32", name=n) for n in CATS}
    inputs |= {n: keras.Input((1,), name=n) for n in CONTS}
    fill = keras.initializers.Constant(0.01)
    columns = [Embedding(Identity(n, CARDINALITIES[n]), 16, initializer=fill) for n in CATS]
    x = DenseFeatures(columns)(inputs)
    for _ in range(3):
        x = keras.layers.Dense(128, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile("sgd", "binary_crossentropy")
    return model


def make_loader(folder: Path, batch: int, shuffle: bool = True) -> KerasSequenceLoader:
    """Ours."""
    return KerasSequenceLoader(
        Dataset(folder),
        batch,
        label_names=["label"],
        cat_names=CATS,
        cont_names=CONTS,
        shuffle=shuffle,
    )


# -- what feeds the model: each gives something `fit` takes, and how many steps ------------------


def frozen(folder: Path, batch: int, steps: int) -> tf.data.Dataset:
    """Batches that are tensors already."""
    loader = make_loader(folder, batch)
    batches = [b for b, _ in zip(loader, range(8), strict=False)]
    loader.close()
    dataset = tf.data.Dataset.from_tensors(batches[0])
    for other in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(other))
    return untuned(dataset.repeat().take(steps))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Without the tuning thread, for which `fit` at times waits seconds at its end."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def row_groups(folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """Decoded row groups, in a random order, two ahead in threads."""
    units = [
        (file, group)
        for file in sorted(folder.glob("*.parquet"))
        for group in range(pq.read_metadata(file).num_row_groups)
    ]
    np.random.default_rng().shuffle(units)

    def read(unit: tuple[Path, int]) -> dict[str, np.ndarray]:
        with pq.ParquetFile(unit[0]) as reader:
            table = reader.read_row_group(int(unit[1]), columns=COLUMNS, use_threads=False)
        return {n: table.column(n).to_numpy() for n in COLUMNS}

    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(read, u) for u in units[:2]]
        for unit in [*units[2:], None, None]:
            yield waiting.pop(0).result()
            if unit is not None:
                waiting.append(threads.submit(read, unit))


def by_hand(folder: Path, batch: int) -> tf.data.Dataset:
    """`tf.data` over the same Parquet: row groups read ahead, rows shuffled within each."""

    def batches() -> Iterator[Any]:
        rest: dict[str, np.ndarray] | None = None
        for columns in row_groups(folder):
            order = np.random.permutation(len(columns["label"]))
            mixed = {n: a[order] for n, a in columns.items()}
            if rest is not None:
                mixed = {n: np.concatenate([rest[n], a]) for n, a in mixed.items()}
            full = len(order) // batch * batch
            for start in range(0, full, batch):
                yield cut(mixed, start, start + batch)
            rest = {n: a[full:] for n, a in mixed.items()}
        if rest is not None and len(rest["label"]):
            yield cut(rest, 0, len(rest["label"]))

    def cut(columns: dict[str, np.ndarray], start: int, stop: int) -> Any:
        x = {n: columns[n][start:stop, None] for n in (*CATS, *CONTS)}
        return x, columns["label"][start:stop, None].astype(np.float32)

    return untuned(tf.data.Dataset.from_generator(batches, output_signature=SPEC).prefetch(2))


def read_rows(folder: Path, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Some rows in memory."""
    table = Dataset(folder).head(rows).to_arrow()
    x = {n: table.column(n).to_numpy()[:, None] for n in (*CATS, *CONTS)}
    return x, table.column("label").to_numpy()[:, None].astype(np.float32)


def tensor_slices(folder: Path, batch: int, rows: int) -> tf.data.Dataset:
    """`from_tensor_slices`, shuffled and batched row by row, as tutorials have it."""
    data = tf.data.Dataset.from_tensor_slices(read_rows(folder, rows))
    return data.shuffle(rows).batch(batch).prefetch(2)


def write_records(folder: Path, path: Path, rows: int) -> None:
    """Rows as TFRecord examples."""
    x, y = read_rows(folder, rows)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for i in range(len(y)):
            feature = {
                n: tf.train.Feature(int64_list=tf.train.Int64List(value=x[n][i])) for n in CATS
            }
            for n in CONTS:
                feature[n] = tf.train.Feature(float_list=tf.train.FloatList(value=x[n][i]))
            feature["label"] = tf.train.Feature(float_list=tf.train.FloatList(value=y[i]))
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def records(path: Path, batch: int, rows: int) -> tf.data.Dataset:
    """TFRecord, parsed a batch at a time."""
    features = {n: tf.io.FixedLenFeature((1,), tf.int64) for n in CATS}
    features |= {n: tf.io.FixedLenFeature((1,), tf.float32) for n in (*CONTS, "label")}

    def parse(texts: tf.Tensor) -> Any:
        x = tf.io.parse_example(texts, features)
        y = x.pop("label")
        return {n: tf.cast(v, SPEC[0][n].dtype) for n, v in x.items()}, y

    data = tf.data.TFRecordDataset(str(path)).shuffle(min(rows, 65_536)).batch(batch)
    return data.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)


# -- measuring ------------------------------------------------------------------------------------


class Speed(NamedTuple):
    """Rows a second, and what other work on the machine disturbs less."""

    rate: float
    spent: float  # processor seconds a million rows
    steps: list[float]  # seconds, without the first


class StepTimes(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """How long each step took, waiting for its batch included."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


def fit_rate(model: keras.Model, data: Any, rows: int) -> Speed:
    """One epoch, start-up included."""
    times = StepTimes()
    start, processor = time.perf_counter(), time.process_time()
    model.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[times])
    spent = time.process_time() - processor
    steps = [end - begin for begin, end in pairwise(times.ends)]
    return Speed(rows / (time.perf_counter() - start), spent / max(1, rows) * 1e6, steps)


def fits(folder: Path, batch: int, rows: int, small: int, rounds: int) -> dict[str, Any]:
    """Rates of `fit` by feeder."""
    model, steps = make_model(), -(-rows // batch)
    few = min(small, rows)
    path = folder.parent / "rows.tfrecord"
    write_records(folder, path, few)
    loader = make_loader(folder, batch)
    still = frozen(folder, batch, steps)
    hand = by_hand(folder, batch)
    work: dict[str, Callable[[], Speed]] = {
        "frozen batches": lambda: fit_rate(model, still, steps * batch),
        "KerasSequenceLoader": lambda: fit_rate(model, loader, rows),
        "tf.data over Parquet, by hand": lambda: fit_rate(model, hand, rows),
    }
    slow: dict[str, Callable[[], Speed]] = {
        "tf.data from_tensor_slices": lambda: fit_rate(
            model, tensor_slices(folder, batch, few), few
        ),
        "tf.data over TFRecord": lambda: fit_rate(model, records(path, batch, few), few),
    }
    fit_rate(model, still.take(2), 0)  # tracing
    fit_rate(model, hand.take(1), 0)
    found: dict[str, list[Speed]] = {}
    for _ in range(rounds):
        for name, function in work.items():
            found.setdefault(name, []).append(function())
    for name, function in slow.items():
        found[name] = [function()]
    return {"batch": batch, **_summary(found)}


def _summary(found: dict[str, list[Speed]]) -> dict[str, Any]:
    rates = {name: [speed.rate for speed in speeds] for name, speeds in found.items()}
    ceiling = statistics.median(rates["frozen batches"])
    pairs = zip(rates["KerasSequenceLoader"], rates["frozen batches"], strict=True)
    return {
        "rows a second": {n: round(statistics.median(r)) for n, r in rates.items()},
        "share of the ceiling": {
            n: round(statistics.median(r) / ceiling, 3) for n, r in rates.items()
        },
        "ours over the ceiling, round by round (at least 0.95)": [
            round(ours / still, 3) for ours, still in pairs
        ],
        "processor seconds a million rows": _medians(
            {name: [speed.spent for speed in speeds] for name, speeds in found.items()}
        ),
        "seconds a step, start-up apart": _medians(
            {n: [x for s in speeds for x in s.steps] or [0] for n, speeds in found.items()}
        ),
        "all rounds": {n: [round(x) for x in r] for n, r in rates.items()},
    }


def decode_only(folder: Path) -> int:
    """The decoder alone, as many threads as cores."""
    units = [
        (file, group)
        for file in sorted(folder.glob("*.parquet"))
        for group in range(pq.read_metadata(file).num_row_groups)
    ]

    def read(unit: tuple[Path, int]) -> int:
        with pq.ParquetFile(unit[0], pre_buffer=False) as reader:
            group = reader.read_row_group(unit[1], columns=COLUMNS, use_threads=False)
        return int(group.num_rows)

    with ThreadPoolExecutor(cpu_count()) as threads:
        return sum(threads.map(read, units))


def drain(batches: Any) -> int:
    """Take every batch."""
    return sum(int(batch[1].shape[0]) for batch in batches)


def alone(folder: Path, batch: int, rounds: int) -> dict[str, Any]:
    """The loader without a model."""
    shuffled, ordered = make_loader(folder, batch), make_loader(folder, batch, False)
    as_data = make_loader(folder, batch).as_tf_dataset()
    work: dict[str, Callable[[], int]] = {
        "pyarrow, decode only": lambda: decode_only(folder),
        "KerasSequenceLoader, shuffled": lambda: drain(shuffled),
        "KerasSequenceLoader, in order": lambda: drain(ordered),
        "as_tf_dataset, shuffled": lambda: drain(as_data),
    }
    rates: dict[str, list[float]] = {name: [] for name in work}
    spent: dict[str, list[float]] = {name: [] for name in work}
    for number in range(-1, rounds):  # the first round only warms up
        for name, function in work.items():
            start, processor = time.perf_counter(), time.process_time()
            rows = function()
            if number >= 0:
                rates[name].append(rows / (time.perf_counter() - start) / 1e6)
                spent[name].append((time.process_time() - processor) / rows * 1e6)
    decode = rates["pyarrow, decode only"]
    return {
        "million rows a second": _medians(rates),
        "processor seconds a million rows": _medians(spent),
        "share of decode only, round by round (at least 0.6)": {
            name: [round(x / d, 2) for x, d in zip(r, decode, strict=True)]
            for name, r in rates.items()
            if name != "pyarrow, decode only"
        },
    }


def _medians(values: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(found), 3) for name, found in values.items()}


def conversion(batch: int) -> dict[str, float]:
    """Microseconds to make tensors of a batch of 40 columns: sharing memory, and copying."""
    flat = np.zeros(40 * batch + 16, np.int32)
    start = (-flat.ctypes.data % 64) // 4
    columns = flat[start : start + 40 * batch].reshape(40, batch, 1)
    out: dict[str, float] = {}
    for name, convert in (("shared", as_tensor), ("copied", tf.convert_to_tensor)):
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            kept = [convert(column) for column in columns]
            times.append(time.perf_counter() - begin)
            del kept
        out[name] = round(statistics.median(times) * 1e6)
    return out


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2**21)
    parser.add_argument("--alone-rows", type=int, default=4_000_000)
    parser.add_argument("--small", type=int, default=2**17, help="rows for slow contenders")
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["fit", "alone", "conversion"])
    args = parser.parse_args()
    result: dict[str, Any] = {"rows": args.rows, "cores": cpu_count(), "load": os.getloadavg()}
    with tempfile.TemporaryDirectory() as temporary:
        if args.only in (None, "alone"):
            many = Path(temporary) / "many"
            datagen.criteo(many, args.alone_rows)
            result["loader alone"] = alone(many, args.batch, max(3, args.rounds))
        if args.only in (None, "conversion"):
            result["conversion, microseconds a batch"] = conversion(args.batch)
        if args.only in (None, "fit"):
            folder = Path(temporary) / "rows"
            datagen.criteo(folder, args.rows)
            result["fit"] = fits(folder, args.batch, args.rows, args.small, args.rounds)
    result["load after"] = os.getloadavg()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
