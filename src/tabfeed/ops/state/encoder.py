"""From values to ids and back, for one column of a fitted vocabulary.

Text is looked up once for each distinct value of a partition, not once for each row: files
carry dictionaries, and where they do not, making one is cheaper than looking every row up.

Vocabularies that users bring and take: lists, Series, arrays, and files as older tools write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError, BadFileError, SchemaError, SourceNotFoundError
from tabfeed.hashing import combine, hash_array
from tabfeed.ops.state.keys import base_type, normalise
from tabfeed.ops.state.memory import SpilledTable
from tabfeed.ops.state.vocabulary import Vocabulary
from tabfeed.ops.types import map_leaves

__all__ = ["NULL", "OOV", "PAD", "Encoder", "Layout", "plain_array", "read_vocab", "write_vocab"]


def read_vocab(given: Any) -> pa.Array:
    """Distinct values in the order given, nulls dropped.

    Examples
    --------
    >>> read_vocab(["b", None, "a", "b"]).to_pylist()
    ['b', 'a']
    """
    values = _from_file(Path(given)) if isinstance(given, str | Path) else _from_values(given)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    try:
        return normalise(values, base_type(values.type)).drop_null().unique()
    except (SchemaError, pa.ArrowNotImplementedError) as e:
        raise ArgumentError(
            f"a vocabulary holds numbers, texts or times, not values of type {values.type}"
        ) from e


def _from_values(given: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return given
    if isinstance(given, pl.Series):
        return given.to_arrow(compat_level=pl.CompatLevel.oldest())
    try:
        return pa.array(given, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as e:
        raise ArgumentError(f"a vocabulary is a list, Series, array or Parquet path: {e}") from e


def _from_file(path: Path) -> pa.ChunkedArray:
    """The value column of a file; counts (``<name>_size``) and pandas' index are passed over."""
    if not path.exists():
        raise SourceNotFoundError(f"there is no vocabulary file {str(path)!r}")
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as e:
        raise BadFileError(f"{path} is not a Parquet file: {e}", file=str(path)) from e
    names = [n for n in table.column_names if not n.endswith("_size") and not n.startswith("__")]
    if len(names) != 1:
        raise ArgumentError(f"{path} should have one column of values; it has {table.column_names}")
    return table.column(names[0])


def write_vocab(path: Path, vocabulary: SpilledTable, names: list[str]) -> None:
    """A vocabulary as a file of its own, its columns under these names, a piece at a time."""
    schema = vocabulary.schema
    fields = [f.with_name(n) for f, n in zip(schema, names, strict=True)]
    with pq.ParquetWriter(path, pa.schema(fields)) as writer:
        for piece in vocabulary.pieces():
            writer.write_table(piece.rename_columns(names))


PAD, NULL, OOV = 0, 1, 2


@dataclass(frozen=True)
class Layout:
    """Where the ids of one column lie.

    Parameters
    ----------
    buckets
        How many ids are for values outside the vocabulary.
    size
        How many values the vocabulary has.
    offset
        Where the column's ids start, in a table that columns share.
    extents
        ``(place, id)`` of values appended since: from that place on, ids go on from there. Only
        columns that share a table need them; alone, a column's ids simply go on.

    Examples
    --------
    >>> layout = Layout(buckets=1, size=5, offset=10, extents=((3, 40),))
    >>> layout.ids(np.array([0, 2, 3, 4])).tolist(), layout.cardinality
    ([13, 15, 40, 41], 42)
    """

    buckets: int
    size: int
    offset: int = 0
    extents: tuple[tuple[int, int], ...] = ()

    @property
    def first(self) -> int:
        """Id of the most frequent value."""
        return self.offset + OOV + self.buckets

    @property
    def end(self) -> int:
        """The id behind those given out when fitted."""
        return self.first + (self.extents[0][0] if self.extents else self.size)

    @property
    def cardinality(self) -> int:
        """Largest id plus one."""
        if not self.extents:
            return self.first + self.size
        place, start = self.extents[-1]
        return start + self.size - place

    def ids(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The ids of values at these places."""
        ids = places + self.first
        for place, start in self.extents:
            ids = np.where(places >= place, places + (start - place), ids)
        return ids

    def places(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The places of ids; -1 for ids that stand for no value."""
        ends = [*(place for place, _ in self.extents), self.size]
        runs = [(0, self.first), *self.extents]
        out = np.full(len(ids), -1, np.int64)
        for (place, start), end in zip(runs, ends, strict=True):
            inside = (ids >= start) & (ids < start + end - place)
            out = np.where(inside, ids - start + place, out)
        return out


@dataclass(frozen=True)
class Encoder:
    """A vocabulary, where its ids lie, and the type they have."""

    vocabulary: Vocabulary
    layout: Layout
    dtype: pa.DataType

    def encode(self, column: pa.ChunkedArray) -> Any:
        """Ids of a column's values, or of the values inside its lists."""
        return map_leaves(column, self._encode_leaves, self.dtype)

    def _encode_leaves(self, array: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(array.type) and len(array.dictionary) > 2 * len(array):
            array = array.cast(array.type.value_type)  # a slice that uses little of its dictionary
        text = base_type(array.type) in (pa.string(), pa.binary())
        if text and not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        if not pa.types.is_dictionary(array.type):
            return self._encode_values(array)
        found = self._encode_values(array.dictionary).take(array.indices)
        null = pa.scalar(self.layout.offset + NULL, self.dtype)
        return pc.fill_null(found, null) if found.null_count else found

    def _encode_values(self, values: pa.Array) -> pa.Array:
        """Ids of plain values, nulls among them."""
        values = normalise(values, self.vocabulary.dtypes[0])
        valid = values.drop_null() if values.null_count else values
        encoded = self._ids(self.vocabulary.find([valid]), lambda: hash_array(valid))
        if not values.null_count:
            return pa.array(encoded.astype(self.dtype.to_pandas_dtype(), copy=False))
        ids = np.full(len(values), self.layout.offset + NULL, self.dtype.to_pandas_dtype())
        ids[pc.is_valid(values).to_numpy(zero_copy_only=False)] = encoded
        return pa.array(ids)

    def encode_combination(self, columns: list[pa.ChunkedArray]) -> pa.Array:
        """Ids of the values of several columns together; all null is null."""
        dtypes = self.vocabulary.dtypes
        plain = [plain_array(c, t) for c, t in zip(columns, dtypes, strict=True)]
        found = self.vocabulary.find(plain)
        ids = self._ids(found, lambda: combine(hash_array(p) for p in plain))
        nothing = np.logical_and.reduce([p.is_null().to_numpy(zero_copy_only=False) for p in plain])
        ids[nothing] = self.layout.offset + NULL
        return pa.array(ids.astype(self.dtype.to_pandas_dtype(), copy=False))

    def _ids(
        self, found: npt.NDArray[np.int64], hashes: Callable[[], npt.NDArray[np.uint64]]
    ) -> npt.NDArray[np.int64]:
        """Ids of looked-up places; unknown values share the ids meant for them by their hash."""
        ids = self.layout.ids(found)
        unknown = found < 0
        if unknown.any():
            ids[unknown] = self.layout.offset + OOV
            if self.layout.buckets > 1:
                shares = hashes()[unknown] % np.uint64(self.layout.buckets)
                ids[unknown] += shares.astype(np.int64)
        return ids

    def encode_one(self, value: Any) -> int:
        """Id of one Python value, without making an array of it where that can be avoided."""
        layout = self.layout
        if value is None or value != value:
            return layout.offset + NULL
        fitted = self.vocabulary.dtypes[0]
        exact = (fitted == pa.string() and type(value) is str) or (
            fitted == pa.int64() and type(value) is int
        )
        at = self.vocabulary.finder.find_one(value) if exact else None
        if at is None or (at < 0 and layout.buckets > 1):
            large = type(value) is int and value >= 2**63  # which Arrow takes for no integer
            one = pa.array([value], pa.uint64() if large else None)
            return int(self._encode_values(one)[0].as_py())
        if layout.extents and at >= 0:
            return int(layout.ids(np.array([at]))[0])
        return layout.first + at if at >= 0 else layout.offset + OOV

    def decode(self, ids: pa.Array | pa.ChunkedArray, names: list[str]) -> pa.Array:
        """The values of ids; of a combination, as structs with fields `names`."""
        values = self.vocabulary.values
        single = len(values) == 1
        words = values[0] if single else pa.StructArray.from_arrays(values, names=names)

        def look_up(leaves: pa.Array) -> pa.Array:
            ids = pc.fill_null(leaves.cast(pa.int64()), PAD).to_numpy(zero_copy_only=False)
            at = self.layout.places(ids)
            return words.take(pa.array(at, mask=at < 0))

        decoded = map_leaves(ids, look_up, words.type)
        return decoded.combine_chunks() if isinstance(decoded, pa.ChunkedArray) else decoded


def plain_array(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.Array:
    """A column as one array of a base type, dictionaries decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return normalise(array, dtype)
