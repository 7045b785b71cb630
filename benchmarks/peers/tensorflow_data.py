"""tf.data: tensor slices, a generator, TFRecord files, TFRecord files read side by side.

After its performance guide: parallel calls and `prefetch` with AUTOTUNE, vectorised parsing (batch
first, then parse).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import columns, each, matrices

RECORD_FILES = 4
PARTS = 32
"""Parts of a batch that are read from one file each."""

BUFFER = 10_000
"""Rows a shuffle buffer holds; it is filled before the first batch, so more would cost more."""


def slices(case: Case) -> Epoch:
    """`from_tensor_slices`, a shuffle buffer."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(columns(case))
    if case.shuffle:
        data = data.shuffle(BUFFER)
    return each(data.batch(case.batch).prefetch(tf.data.AUTOTUNE), _rows)


def batched_slices(case: Case) -> Epoch:
    """A permutation of all indices, cut into batches; a batch is one `tf.gather` a column."""
    import tensorflow as tf

    tensors = {name: tf.constant(array) for name, array in columns(case).items()}
    steps = -(-case.rows // case.batch)
    indices = tf.data.Dataset.from_tensors(tf.range(case.rows))
    if case.shuffle:
        indices = indices.map(tf.random.shuffle)
    batches = indices.flat_map(
        lambda order: tf.data.Dataset.range(steps).map(
            lambda i: order[i * case.batch : (i + 1) * case.batch]
        )
    )
    data = batches.map(
        lambda i: {name: tf.gather(c, i) for name, c in tensors.items()},
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return each(data.prefetch(tf.data.AUTOTUNE), _rows)


def generator(case: Case) -> Epoch:
    """`from_generator` over pyarrow's `iter_batches`; shuffled within each row group."""
    import tensorflow as tf

    from benchmarks.peers._row_groups import RowGroups
    from benchmarks.peers.torch_parquet import by_columns

    groups = RowGroups(case, by_columns)

    def numbers() -> Iterator[Any]:
        for _, batch in groups:
            yield {name: tensor.numpy() for name, tensor in batch.items()}

    signature = {
        name: tf.TensorSpec((None,), tf.int32 if name in case.cats else tf.float32)
        for name in case.columns
    }
    data = tf.data.Dataset.from_generator(numbers, output_signature=signature)
    return each(data.prefetch(tf.data.AUTOTUNE), _rows)


def write_records(case: Case) -> None:
    """A `tf.train.Example` a row, with one list of ids and one of numbers."""
    import tensorflow as tf

    cats, conts, labels = matrices(case)
    for number in range(RECORD_FILES):
        with tf.io.TFRecordWriter(f"{case.scratch}/part_{number}.tfrecord") as writer:
            for i in range(number, case.rows, RECORD_FILES):
                writer.write(_example(tf, cats[i], conts[i], labels[i]))


def _example(tf: Any, cats: Any, conts: Any, label: Any) -> Any:
    feature = {
        "cats": tf.train.Feature(int64_list=tf.train.Int64List(value=cats)),
        "conts": tf.train.Feature(float_list=tf.train.FloatList(value=conts)),
        "label": tf.train.Feature(float_list=tf.train.FloatList(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def records(case: Case) -> Epoch:
    """Read, shuffle records in a buffer, batch, parse whole batches."""
    import tensorflow as tf

    data = tf.data.TFRecordDataset(_files(case))
    data = data.shuffle(BUFFER) if case.shuffle else data
    data = data.batch(case.batch, num_parallel_calls=tf.data.AUTOTUNE)
    return each(_parsed(data, case).prefetch(tf.data.AUTOTUNE), _rows)


def interleaved(case: Case) -> Epoch:
    """Files side by side, a buffer each; whole parts of batches travel, not single records."""
    import tensorflow as tf

    def part(file: Any) -> Any:
        data = tf.data.TFRecordDataset(file)
        data = data.shuffle(BUFFER) if case.shuffle else data
        return data.batch(max(1, case.batch // PARTS))

    files = tf.data.Dataset.from_tensor_slices(_files(case))
    files = files.shuffle(RECORD_FILES) if case.shuffle else files
    data = files.interleave(
        part, num_parallel_calls=tf.data.AUTOTUNE, deterministic=not case.shuffle
    )
    return each(_parsed(data, case).rebatch(case.batch).prefetch(tf.data.AUTOTUNE), _rows)


def _files(case: Case) -> list[str]:
    return sorted(str(p) for p in Path(case.scratch).glob("*.tfrecord"))


def _parsed(batches: Any, case: Case) -> Any:
    import tensorflow as tf

    spec = {
        "cats": tf.io.FixedLenFeature([len(case.cats)], tf.int64),
        "conts": tf.io.FixedLenFeature([len(case.conts)], tf.float32),
        "label": tf.io.FixedLenFeature([], tf.float32),
    }
    return batches.map(
        lambda batch: tf.io.parse_example(batch, spec), num_parallel_calls=tf.data.AUTOTUNE
    )


def _rows(batch: Any) -> int:
    return int(batch["label"].shape[0])


_MODULES = ("tensorflow", "numpy", "pyarrow.dataset")
_COLUMNS = "TensorFlow, a tensor a column, the files' dtypes"
_RECORDS = "TensorFlow, int64 and float32 matrices"

CONTENDERS = (
    Contender(
        name="tf-slices",
        title="tf.data `from_tensor_slices`, in memory",
        open=slices,
        suites=("loading",),
        modules=_MODULES,
        delivers=_COLUMNS,
        shuffles="a buffer of 10,000 rows",
        why="Every row is an element of its own, sliced from each column and stacked again.",
        most_rows=16_384,
    ),
    Contender(
        name="tf-gather",
        title="tf.data, shuffled indices and `tf.gather`, in memory",
        open=batched_slices,
        suites=("loading",),
        modules=_MODULES,
        delivers=_COLUMNS,
        shuffles="all rows, in memory",
        why="Nothing is decoded: all rows are in memory before the clock starts. No row is handled "
        "by itself: a batch is one gather a column.",
    ),
    Contender(
        name="tf-generator",
        title="tf.data `from_generator` over Parquet",
        open=generator,
        suites=("loading",),
        modules=("tensorflow", "torch", "numpy", "pyarrow.parquet"),
        delivers=_COLUMNS,
        shuffles="row groups, and rows within each",
        why="pyarrow decodes ahead of the loop, in one thread; each array is copied on its way "
        "through the generator. In order, that copy is all there is to do.",
    ),
    Contender(
        name="tf-record",
        title="tf.data over TFRecord",
        open=records,
        suites=("loading",),
        modules=_MODULES,
        delivers=_RECORDS,
        shuffles="a buffer of 10,000 records",
        why="A row is a protocol buffer: parsing it costs more than decoding columns.",
        convert=write_records,
        most_rows=32_768,
    ),
    Contender(
        name="tf-interleave",
        title="tf.data over TFRecord, parallel interleave",
        open=interleaved,
        suites=("loading",),
        modules=_MODULES,
        delivers=_RECORDS,
        shuffles="files, and a buffer of 10,000 records for each",
        why="The same with files read side by side; parts of a batch are read and parsed whole.",
        convert=write_records,
        most_rows=32_768,
    ),
)
