"""What `keras_fit` measures: the Criteo model, and whatever may feed it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

from tabfeed import Dataset
from tabfeed.budget import cpu_count
from tabfeed.datagen.criteo_shaped import CARDINALITIES
from tabfeed.framework_utils.tensorflow.layers import DenseFeatures
from tabfeed.loader.keras.columns import Embedding, Identity
from tabfeed.loader.tensorflow import KerasSequenceLoader

__all__ = [
    "by_hand",
    "decode_only",
    "in_memory",
    "make_loader",
    "make_model",
    "records",
    "tensor_slices",
    "write_records",
]

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


def in_memory(folder: Path, batch: int, steps: int, different: int) -> tf.data.Dataset:
    """Some batches that are tensors already, again and again; with one, the ceiling of `fit`."""
    loader = make_loader(folder, batch)
    batches = [b for b, _ in zip(loader, range(different), strict=False)]
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


def _units(folder: Path) -> list[tuple[Path, int]]:
    files = sorted(folder.glob("*.parquet"))
    return [(f, group) for f in files for group in range(pq.read_metadata(f).num_row_groups)]


def row_groups(folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """Decoded row groups, in a random order, two ahead in threads."""
    units = _units(folder)
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


def decode_only(folder: Path) -> int:
    """The decoder alone, as many threads as cores."""

    def read(unit: tuple[Path, int]) -> int:
        with pq.ParquetFile(unit[0], pre_buffer=False) as reader:
            group = reader.read_row_group(unit[1], columns=COLUMNS, use_threads=False)
        return int(group.num_rows)

    with ThreadPoolExecutor(cpu_count()) as threads:
        return sum(threads.map(read, _units(folder)))
