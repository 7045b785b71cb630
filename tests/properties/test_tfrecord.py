"""What TensorFlow wrote is read back; what nobody should have written is refused, quickly.

Both readers are tried each time, the one that walks many records in step and the one that reads
them one by one: they must agree on every byte.
"""

from __future__ import annotations

import gzip
import math
import random
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.errors import BadFileError, DatasetError, SkippedFileWarning
from tabfeed.io import ReadOptions
from tabfeed.io.formats.tfrecord import walk
from tabfeed.io.formats.tfrecord.file import open_tfrecord
from tabfeed.io.formats.tfrecord.values import KINDS, NotAnExampleError, parse_example
from tests.io.data_files import write
from tests.io.tfrecords import delimited, entry, feature, frames

INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
FLOAT = st.floats(width=32)
TEXT = st.text(max_size=6).map(str.encode)
RAW = st.binary(max_size=6)
VALUES = {1: TEXT, 2: FLOAT, 3: INT64}
NAMES = st.sampled_from(["a", "b", "c2", "c10", "", "ü", "long " * 9, "x" * 130])

Row = dict[str, tuple[int, list[Any]]]


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Records with the same features: of one value or of several, sometimes missing."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    kinds = {n: draw(st.sampled_from([1, 2, 3])) for n in names}
    sizes = {n: draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (0, 3), (0, 30)])) for n in names}
    values = {n: RAW if k == 1 and draw(st.booleans()) else VALUES[k] for n, k in kinds.items()}
    missing = {n: draw(st.booleans()) for n in names}
    rows: list[Row] = []
    for _ in range(draw(st.sampled_from([1, 2, 30, 60]))):
        row: Row = {}
        for n in draw(st.permutations(names)) if draw(st.booleans()) else names:
            if not missing[n] or draw(st.booleans()):
                low, high = sizes[n]
                row[n] = kinds[n], draw(st.lists(values[n], min_size=low, max_size=high))
        rows.append(row)
    return rows


def expected(rows: list[Row]) -> dict[str, list[Any]]:
    """The columns, by the rule the documentation gives."""
    names = {n for row in rows for n in row}
    columns = {}
    for name in names:
        lists = [row[name][1] if name in row else None for row in rows]
        everything = [v for values in lists if values is not None for v in values]
        if all(isinstance(v, bytes) and is_text(v) for v in everything):
            lists = [None if vs is None else [v.decode() for v in vs] for vs in lists]
        single = all(vs is None or len(vs) == 1 for vs in lists)
        columns[name] = [None if vs is None else vs[0] for vs in lists] if single else lists
    return columns


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def comparable(value: Any) -> Any:
    """NaN is not equal to itself, and 0.0 is equal to -0.0."""
    if isinstance(value, list):
        return [comparable(v) for v in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return value


def read(data: bytes, *, few: int, block_size: int = 2**20) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(walk, "FEW", few):
        location = write(Path(folder) / "a.tfrecord", data)
        file = open_tfrecord(location, ReadOptions(block_size=block_size))
        return file.read(range(len(file.unit_rows)), file.schema.names)


def check(data: bytes, rows: list[Row]) -> None:
    columns = expected(rows)
    for few in (1, 10**9):
        if not columns:
            with pytest.raises(BadFileError, match="without features"):
                read(data, few=few)
            continue
        table = read(data, few=few, block_size=1000)
        table.validate(full=True)
        assert set(table.column_names) == set(columns)
        for name in table.column_names:
            assert comparable(table.column(name).to_pylist()) == comparable(columns[name])


# -- TensorFlow -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


def by_tensorflow(tf: Any, row: Row) -> Any:
    lists = {
        1: lambda v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)),
        2: lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v)),
        3: lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
    }
    features = {n: lists[kind](values) for n, (kind, values) in row.items()}
    return tf.train.Example(features=tf.train.Features(feature=features))


@settings(deadline=None, max_examples=40)
@given(rows=tables(), compression=st.sampled_from(["", "GZIP", "ZLIB"]))
def test_what_tensorflow_wrote(tf: Any, rows: list[Row], compression: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tfrecord"
        with tf.io.TFRecordWriter(str(path), compression) as writer:
            for row in rows:
                writer.write(by_tensorflow(tf, row).SerializeToString())
        data = path.read_bytes()
    check(data, rows)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_one_record_means_what_tensorflow_says(tf: Any, data: st.DataObject) -> None:
    """Any bytes: what we accept, TensorFlow accepts, and understands the same."""
    record = data.draw(records())
    try:
        ours = parse_example(record)
    except NotAnExampleError:
        return
    theirs = tf.train.Example.FromString(record).features.feature
    assert set(ours) == set(theirs)
    for name, (kind, values) in ours.items():
        which = theirs[name].WhichOneof("kind")
        assert which == (f"{KINDS[kind]}_list" if kind else None)
        if which:
            assert comparable(list(getattr(theirs[name], which).value)) == comparable(values)


# -- files that nobody should have written ----------------------------------------------


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """An Example in pieces, out of order, unpacked; often with some bytes changed."""
    features = b""
    for _ in range(draw(st.integers(0, 4))):
        value = b"".join(draw(pieces()) for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))))
        name = draw(st.sampled_from(["a", "b", "c2"]))
        features += entry(name, value)
    record = delimited(1, features) if features or draw(st.booleans()) else b""
    if draw(st.integers(0, 3)) == 0:
        record = mutated(record, draw(st.integers(0, 2**32)), draw(st.integers(1, 4)))
    return record


@st.composite
def pieces(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([1, 2, 3]))
    values = draw(st.lists(VALUES[kind], max_size=3))
    if kind == 3 and draw(st.integers(0, 3)) == 0:
        return delimited(3, b"\x08\x07" + feature((3, values))[2:])
    return feature((kind, values))


def mutated(data: bytes, seed: int, times: int) -> bytes:
    """Bytes changed, taken out, put in, or the end cut off."""
    rng = random.Random(seed)
    out = bytearray(data)
    for _ in range(times):
        at = rng.randrange(len(out) + 1)
        what = rng.randrange(4)
        if what == 0 and at < len(out):
            out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif what == 1:
            del out[at : at + rng.randrange(1, 9)]
        elif what == 2:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif rng.randrange(4) == 0:
            del out[at:]
    return bytes(out)


def outcome(data: bytes, few: int) -> Any:
    """A table, or only that there is none: which of two faults is named first may differ."""
    try:
        table = read(data, few=few)
    except BadFileError as e:
        assert e.file in str(e)
        return "refused"
    table.validate(full=True)
    columns = {n: comparable(table.column(n).to_pylist()) for n in table.column_names}
    return columns, str(table.schema), table.num_rows


@settings(deadline=None, max_examples=150)
@given(st.lists(records(), min_size=1, max_size=8), st.integers(1, 40))
def test_both_readers_agree(some: list[bytes], times: int) -> None:
    data = frames(some * times)
    assert outcome(data, 1) == outcome(data, 10**9)


@settings(deadline=None, max_examples=100)
@given(
    rows=tables(),
    seed=st.integers(0, 2**32),
    times=st.integers(1, 5),
    pack=st.sampled_from([bytes, bytes, gzip.compress, zlib.compress]),
)
def test_damaged_files(rows: list[Row], seed: int, times: int, pack: Any) -> None:
    """Damage is found: what is read from a damaged file is what was written, or nothing."""
    whole = frames(example_of(row) for row in rows)
    sound = outcome(whole, 1)
    found = outcome(mutated(pack(whole), seed, times), 1)
    if found == "refused" or found == sound:
        return
    columns, _, count = found
    assert count < len(rows), "rows that were never written"  # a file cut between two records
    prefix = outcome(frames(example_of(row) for row in rows[:count]), 1) if count else ({}, "", 0)
    assert columns == prefix[0]


def example_of(row: Row) -> bytes:
    return delimited(1, b"".join(entry(n, feature(kind)) for n, kind in row.items()))


@settings(deadline=None, max_examples=40)
@given(
    rows=tables().filter(lambda rows: not any("" in row for row in rows)),  # a column has a name
    seed=st.integers(0, 2**32),
    times=st.integers(0, 5),
    pack=st.sampled_from([bytes, gzip.compress, zlib.compress]),
)
def test_damaged_files_that_are_skipped(rows: list[Row], seed: int, times: int, pack: Any) -> None:
    """Through the front door: rows that are left were written, and what is lost is counted."""
    records = [example_of(row) for row in rows * 9]
    sound = outcome(frames(records), 1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedFileWarning)
        path = Path(folder) / "a.tfrecord"
        path.write_bytes(mutated(pack(frames(records)), seed, times))
        try:
            dataset = Dataset(path, on_bad_file="skip", part_size="1KiB")
            table = pa.concat_tables(dataset.iter_tables())
        except DatasetError:  # nothing is left, not even the types
            assert times or sound == "refused"
            return
    if str(table.schema) != sound[1]:
        assert times, "other types"
        return
    columns = {n: comparable(table.column(n).to_pylist()) for n in table.column_names}
    found = list(zip(*columns.values(), strict=True))
    written = list(zip(*(sound[0][n] for n in columns), strict=True))
    if not dataset.skipped:  # a plain file may be cut between two records, which cannot be seen
        assert found == written[: len(found)] and (times or len(found) == len(records))
    left = iter(written)
    assert all(row in left for row in found), "rows that were never written"


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=400) | st.binary(max_size=60).map(lambda b: b"\x1f\x8b\x08\x00" + b))
def test_random_bytes(data: bytes) -> None:
    found = outcome(data, 1)
    assert found == "refused" or not data


@settings(deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5), st.integers(1, 40))
def test_random_records(some: list[bytes], times: int) -> None:
    data = frames(some * times)
    assert outcome(data, 1) == outcome(data, 10**9)
