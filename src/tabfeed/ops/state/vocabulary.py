"""The vocabulary of a fitted column: values to ids, ids to values, counts, growth, saving.

`Vocabulary` is all that a fit learns of one column, or of columns that share ids. Its helpers:
`tabfeed.ops.state.counting` counts values, `tabfeed.ops.state.ranking` puts them in order,
`tabfeed.ops.state.keys` finds a value's position in it, and `IdLayout` turns positions into ids.

Text is looked up once for each distinct value of a partition, not once for each row: files carry
dictionaries, and where they do not, making one is cheaper than looking every row up. Beyond the
memory limit of the fit that made it, a vocabulary stays a Parquet file until a value is looked up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    OperatorError,
    SchemaError,
    SourceNotFoundError,
)
from tabfeed.hashing import combine, hash_array
from tabfeed.lazy import cached_property
from tabfeed.ops.frames import map_leaves
from tabfeed.ops.state.counting import Counter
from tabfeed.ops.state.keys import (
    Finder,
    KeyTable,
    Positions,
    base_type,
    normalise,
    plain_array,
    unpack,
)
from tabfeed.ops.state.memory import MemoryManager, SpilledTable, require_room
from tabfeed.ops.state.ranking import Cut, Ranked, grow

Ids = npt.NDArray[np.int64]
PAD, NULL, OOV = 0, 1, 2


@dataclass(frozen=True)
class IdLayout:
    """Which ids the values of one vocabulary have.

    Parameters
    ----------
    buckets
        How many ids are for values outside the vocabulary.
    size
        How many values the vocabulary has.
    offset
        Where the column's ids start, in a table that columns share.
    extents
        ``(position, id)`` of values appended since: from that position on, ids go on from there.
        Only columns that share a table need them; alone, a column's ids simply go on.

    Examples
    --------
    >>> layout = IdLayout(buckets=1, size=5, offset=10, extents=((3, 40),))
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
        at, start = self.extents[-1]
        return start + self.size - at

    def ids(self, positions: Positions) -> Ids:
        """The ids of values at these positions."""
        ids = positions + self.first
        for at, start in self.extents:
            ids = np.where(positions >= at, positions + (start - at), ids)
        return ids

    def positions(self, ids: Ids) -> Positions:
        """The positions of ids; -1 for ids that stand for no value."""
        ends = [*(at for at, _ in self.extents), self.size]
        runs = [(0, self.first), *self.extents]
        out = np.full(len(ids), -1, np.int64)
        for (at, start), end in zip(runs, ends, strict=True):
            inside = (ids >= start) & (ids < start + end - at)
            out = np.where(inside, ids - start + at, out)
        return out


class Vocabulary:
    """Distinct values in the order of their ids, with their counts.

    Parameters
    ----------
    ranked
        The values and counts, and those left out.
    layout
        Which ids they have; those of one column alone by default.
    dtype
        Type of the ids.
    memory
        The limit of the fit that made it, which owns the file that the values may be in.
    knows_rest
        Whether the values left out are known, which an update needs.

    Examples
    --------
    >>> table = pa.table({"v0": ["b", "a"], "count": [2, 1]})
    >>> vocabulary = Vocabulary(Ranked(2, table=table))
    >>> vocabulary.encode(pa.chunked_array([["a", None, "c", "b"]])).to_pylist()
    [4, 1, 2, 3]
    >>> vocabulary.decode(pa.array([3, 4, 1]), ["c"]).to_pylist()
    ['b', 'a', None]
    """

    def __init__(
        self,
        ranked: Ranked,
        layout: IdLayout | None = None,
        dtype: pa.DataType | None = None,
        *,
        memory: MemoryManager | None = None,
        knows_rest: bool = True,
    ) -> None:
        self.size = ranked.rows
        self.layout = layout or IdLayout(1, ranked.rows)
        self.dtype = dtype or pa.int64()
        self.rest, self.knows_rest = ranked.rest, knows_rest
        self._ranked = ranked
        self._memory = None if ranked.path is None else memory  # keeps the file's folder alive
        self._finder: Finder | None = None
        self._lock = threading.Lock()

    # -- values and counts ----------------------------------------------------------

    @cached_property
    def table(self) -> pa.Table:
        """Values (``v0``; ``v0, v1, ...`` for combinations) and ``count``, read if on disk."""
        ranked = self._ranked
        if ranked.table is not None:
            return ranked.table
        if ranked.path is not None:
            return pq.read_table(ranked.path)
        assert ranked.keys is not None and ranked.dtype is not None
        values = unpack(ranked.keys, ranked.dtype)
        return pa.table({"v0": values, "count": pa.array(ranked.counts)})

    @property
    def path(self) -> Path | None:
        """Its file, until it is needed in memory."""
        return None if "table" in vars(self) else self._ranked.path

    @cached_property
    def dtypes(self) -> list[pa.DataType]:
        """Type of each column of a value."""
        if self._ranked.dtype is not None:
            return [self._ranked.dtype]
        path = self.path
        schema = self.table.schema if path is None else pq.read_schema(path)
        return [f.type for f in schema if f.name != "count"]

    @property
    def values(self) -> list[pa.Array]:
        """The columns of the values."""
        columns = [self.table.column(n) for n in self.table.column_names if n != "count"]
        return [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in columns]

    def find(self, values: list[pa.Array]) -> Positions:
        """Position of each value (no nulls, unless it is a combination), -1 where unknown."""
        plain = [normalise(v, t) for v, t in zip(values, self.dtypes, strict=True)]
        return self._look_up().find(plain)

    def _look_up(self) -> Finder:
        """The look-up table, built at first use."""
        if self._finder is None:
            with self._lock:
                if self._finder is None:
                    keys = self._ranked.keys
                    if keys is None:
                        self._finder = Finder.of(self.values)
                    else:
                        self._finder = Finder(KeyTable(keys), None)
        return self._finder

    def require_room(self, memory: MemoryManager, name: str) -> None:
        """Refuse a look-up for which the vocabulary, on disk until now, is too large."""
        path = self.path
        if path is not None:
            slots = 8 * self.size  # the table from key to position
            nbytes = SpilledTable(path).nbytes + slots
            require_room(nbytes, memory, f"the vocabulary of {name!r} ({self.size:,} values)")

    # -- values to ids ----------------------------------------------------------------

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
        values = normalise(values, self.dtypes[0])
        valid = values.drop_null() if values.null_count else values
        encoded = self._ids(self._look_up().find([valid]), lambda: hash_array(valid))
        if not values.null_count:
            return pa.array(encoded.astype(self.dtype.to_pandas_dtype(), copy=False))
        ids = np.full(len(values), self.layout.offset + NULL, self.dtype.to_pandas_dtype())
        ids[pc.is_valid(values).to_numpy(zero_copy_only=False)] = encoded
        return pa.array(ids)

    def encode_combination(self, columns: list[pa.ChunkedArray]) -> pa.Array:
        """Ids of the values of several columns together; all null is null."""
        plain = [plain_array(c, t) for c, t in zip(columns, self.dtypes, strict=True)]
        found = self._look_up().find(plain)
        ids = self._ids(found, lambda: combine(hash_array(p) for p in plain))
        nothing = np.logical_and.reduce([p.is_null().to_numpy(zero_copy_only=False) for p in plain])
        ids[nothing] = self.layout.offset + NULL
        return pa.array(ids.astype(self.dtype.to_pandas_dtype(), copy=False))

    def _ids(self, found: Positions, hashes: Callable[[], npt.NDArray[np.uint64]]) -> Ids:
        """Ids of positions; unknown values get one of their ids by their hash."""
        ids = self.layout.ids(found)
        unknown = found < 0
        if unknown.any():
            ids[unknown] = self.layout.offset + OOV
            if self.layout.buckets > 1:
                buckets = hashes()[unknown] % np.uint64(self.layout.buckets)
                ids[unknown] += buckets.astype(np.int64)
        return ids

    def encode_one(self, value: Any) -> int:
        """Id of one Python value, without making an array of it where that can be avoided."""
        layout = self.layout
        if value is None or value != value:
            return layout.offset + NULL
        fitted = self.dtypes[0]
        exact = (fitted == pa.string() and type(value) is str) or (
            fitted == pa.int64() and type(value) is int
        )
        at = self._look_up().find_one(value) if exact else None
        if at is None or (at < 0 and layout.buckets > 1):
            large = type(value) is int and value >= 2**63  # which Arrow takes for no integer
            one = pa.array([value], pa.uint64() if large else None)
            return int(self._encode_values(one)[0].as_py())
        if layout.extents and at >= 0:
            return int(layout.ids(np.array([at]))[0])
        return layout.first + at if at >= 0 else layout.offset + OOV

    # -- ids to values ----------------------------------------------------------------

    def decode(self, ids: pa.Array | pa.ChunkedArray, names: list[str]) -> pa.Array:
        """The values of ids; of a combination, as structs with fields `names`."""
        columns = self.values
        single = len(columns) == 1
        values = columns[0] if single else pa.StructArray.from_arrays(columns, names=names)

        def look_up(leaves: pa.Array) -> pa.Array:
            ids = pc.fill_null(leaves.cast(pa.int64()), PAD).to_numpy(zero_copy_only=False)
            at = self.layout.positions(ids)
            return values.take(pa.array(at, mask=at < 0))

        decoded = map_leaves(ids, look_up, values.type)
        return decoded.combine_chunks() if isinstance(decoded, pa.ChunkedArray) else decoded

    # -- growing and saving -------------------------------------------------------------

    def grown(self, counter: Counter, cut: Cut, name: str, start: int | None) -> Vocabulary:
        """With more counts: its values keep their ids, new ones come behind.

        Parameters
        ----------
        counter
            The counts of new data.
        cut
            Which values get an id.
        name
            The column, for an error.
        start
            The first id for new values, where others follow this column's; else they go on.
        """
        if not self.knows_rest and cut != Cut():
            raise OperatorError(
                f"Categorify: the counts of the values left out of {name!r} were not "
                "saved, and an update needs them; save with updatable=True, or fit again"
            )
        ranked = grow(self, counter, cut)
        extents = self.layout.extents
        if start is not None and ranked.rows > self.size:
            extents = (*extents, (self.size, start))
        layout = replace(self.layout, size=ranked.rows, extents=extents)
        return Vocabulary(ranked, layout, self.dtype, memory=counter.memory)

    def stored(self) -> SpilledTable:
        """Values and counts, to be read piece by piece."""
        return SpilledTable(self.path or self.table)

    def write(self, path: Path, names: Iterable[str]) -> None:
        """A Parquet file of its own, its columns under these names, a piece at a time.

        A file that was there stays until the new one is whole.
        """
        names, stored = list(names), self.stored()
        fields = [f.with_name(n) for f, n in zip(stored.schema, names, strict=True)]
        unfinished = path.with_name(f"_{path.name}")
        try:
            with pq.ParquetWriter(unfinished, pa.schema(fields)) as writer:
                for piece in stored.pieces():
                    writer.write_table(piece.rename_columns(names))
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        """What transforming needs: keys not yet made a table stay keys, counts left out stay."""
        ranked = self._ranked
        if ranked.keys is None:
            ranked = Ranked(self.size, table=self.table)
        return {"ranked": replace(ranked, rest=None), "layout": self.layout, "dtype": self.dtype}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state, knows_rest=False)  # type: ignore[misc]


def read_vocabulary(given: Any) -> pa.Array:
    """The distinct values of a vocabulary that a user brings, in the order given, nulls dropped.

    A list, Series or array, or a Parquet file with one column of values.

    Examples
    --------
    >>> read_vocabulary(["b", None, "a", "b"]).to_pylist()
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
