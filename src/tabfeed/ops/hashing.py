"""Ids by arithmetic alone: hashes into buckets, crosses of columns, intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.arguments import call
from tabfeed.errors import ArgumentError, ColumnNotFoundError, OperatorError
from tabfeed.hashing import combine, hash_array
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.frames import embedding_size, like, map_leaves, require_numeric
from tabfeed.schema import ColumnSchema, Domain, Schema, Tags


class HashBucket(Operator):
    """The hash of each value, modulo the number of buckets. Null is a value like any other.

    Parameters
    ----------
    num_buckets
        How many buckets; or ``{column: number}``, and other columns pass unchanged.

    Examples
    --------
    >>> HashBucket(10)({"x": ["a", "b", "a"]})
    {'x': array([2, 1, 2], dtype=int32)}
    """

    eager = True
    reads_dictionaries = True

    def __init__(self, num_buckets: int | Mapping[str, int]) -> None:
        self.num_buckets = num_buckets
        _check_buckets(num_buckets)

    def _buckets(self, inputs: Inputs) -> dict[str, int]:
        if isinstance(self.num_buckets, int):
            return dict.fromkeys(inputs.names, self.num_buckets)
        for name in self.num_buckets:
            if name not in inputs.names:
                raise ColumnNotFoundError(name, inputs.names, where="HashBucket's columns")
        return dict(self.num_buckets)

    def output_schema(self, inputs: Inputs) -> Schema:
        """int32 ids, tagged categorical."""
        buckets = self._buckets(inputs)
        return Schema(
            _ids(c.name, like(c.dtype, pa.int32()), buckets[c.name], c) if c.name in buckets else c
            for c in inputs.columns
        )

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Hash each value, or each value inside a list."""
        buckets = self._buckets(inputs)
        out = {}
        for name in inputs.names:
            column = frame.column(name)
            if name in buckets:
                column = map_leaves(column, partial(_bucket, buckets=buckets[name]), pa.int32())
            out[name] = column
        return pa.table(out)


class HashedCross(Operator):
    """One id for the values of several columns together, by hash.

    Columns are crossed group by group: ``[["a", "b"], ["b", "c"]] >> HashedCross(100)`` makes
    ``a_X_b`` and ``b_X_c``. Without groups, all columns make one cross.

    Parameters
    ----------
    num_buckets
        How many buckets; or ``{("a", "b"): number, ...}``, which also says what to cross.

    Examples
    --------
    >>> HashedCross(100)({"a": [1, 2], "b": [1, 2]})
    {'a_X_b': array([52, 62], dtype=int32)}
    """

    eager = True
    reads_dictionaries = True

    def __init__(self, num_buckets: int | Mapping[tuple[str, ...], int]) -> None:
        self.num_buckets = num_buckets
        _check_buckets(num_buckets)

    def params(self) -> dict[str, Any]:
        """The buckets; tuples cannot be keys of JSON, so crosses are saved as pairs."""
        if isinstance(self.num_buckets, int):
            return {"num_buckets": self.num_buckets}
        return {"num_buckets": [[list(k), n] for k, n in self.num_buckets.items()]}

    @classmethod
    def from_params(cls, num_buckets: Any) -> HashedCross:
        """Read what `params` gave."""
        if isinstance(num_buckets, int):
            return cls(num_buckets)
        return cls({tuple(k): n for k, n in num_buckets})

    def _crosses(self, inputs: Inputs) -> Iterator[tuple[tuple[str, ...], int]]:
        if not isinstance(self.num_buckets, int):
            for names, n in self.num_buckets.items():
                for name in names:
                    if name not in inputs.names:
                        raise ColumnNotFoundError(name, inputs.names, where="HashedCross's columns")
                yield tuple(names), n
            return
        groups = [g for g in inputs.groups if len(g) > 1]
        for group in groups or [inputs.names]:
            if len(group) < 2:
                raise OperatorError(f"HashedCross needs two columns or more; it got {list(group)}")
            yield group, self.num_buckets

    def output_schema(self, inputs: Inputs) -> Schema:
        """An int32 id for each cross, tagged categorical."""
        for name in inputs.names:
            if inputs.schema[name].is_list:
                raise OperatorError(f"HashedCross cannot cross lists; column {name!r} is one")
        return Schema(_ids("_X_".join(g), pa.int32(), n) for g, n in self._crosses(inputs))

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Combine the hashes, in order: equal values do not cancel."""
        hashes = {n: hash_array(frame.column(n)) for n in inputs.names}
        out = {}
        for group, n in self._crosses(inputs):
            crossed = combine(hashes[name] for name in group)
            out["_X_".join(group)] = pa.array((crossed % np.uint64(n)).astype(np.int32))
        return pa.table(out)


class Bucketize(Operator):
    """Which interval a value lies in: 0 below the first boundary, 1 from there on, and so on.

    Null and NaN stay null.

    Parameters
    ----------
    boundaries
        Ascending boundaries for all columns, ``{column: boundaries}``, or a function from column
        name to boundaries.

    Examples
    --------
    >>> Bucketize([0, 10])({"x": [-1, 0, 5, 10]})
    {'x': array([0, 1, 1, 2], dtype=int32)}
    """

    eager = True

    def __init__(
        self, boundaries: Sequence[float] | Mapping[str, Sequence[float]] | Callable[[str], Any]
    ) -> None:
        self.boundaries = boundaries
        given = boundaries.values() if isinstance(boundaries, Mapping) else [boundaries]
        for bounds in given:
            if callable(bounds):
                continue
            listed = _listed(bounds)
            if any(b != b for b in listed) or listed != sorted(listed):
                raise ArgumentError(f"boundaries must ascend; {listed} do not")

    def _bounds(self, name: str) -> list[float]:
        found: Any = self.boundaries
        if isinstance(found, Mapping):
            if name not in found:
                raise ColumnNotFoundError(name, found, where="the boundaries")
            found = found[name]
        elif callable(found):
            found = call(found, name)
        return _listed(found)

    def output_schema(self, inputs: Inputs) -> Schema:
        """int32 intervals, tagged categorical."""
        require_numeric(self, inputs.columns)
        return Schema(
            _ids(c.name, like(c.dtype, pa.int32()), len(self._bounds(c.name)) + 1, c, nullable=True)
            for c in inputs.columns
        )

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Find each value's interval."""
        return pa.table(
            {
                n: map_leaves(
                    frame.column(n), partial(_interval, bounds=self._bounds(n)), pa.int32()
                )
                for n in inputs.names
            }
        )


def _listed(bounds: Any) -> list[float]:
    """Boundaries as a list; a saved workflow holds NumPy's as an Arrow array."""
    found = bounds.to_pylist() if isinstance(bounds, pa.Array) else bounds
    return [b.item() if isinstance(b, np.generic) else b for b in found]


def _bucket(array: pa.Array, buckets: int) -> pa.Array:
    return pa.array((hash_array(array) % np.uint64(buckets)).astype(np.int32))


def _interval(array: pa.Array, bounds: list[float]) -> pa.Array:
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.int32())
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    found = _search(pc.fill_null(array, 0).to_numpy(zero_copy_only=False), bounds)
    mask = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(found.astype(np.int32), mask=mask)


def _search(values: npt.NDArray[Any], bounds: list[float]) -> npt.NDArray[np.int64]:
    """How many bounds each value has reached; whole numbers are not compared as floats."""
    if values.dtype.kind not in "iu" or not all(isinstance(b, int) for b in bounds):
        return np.searchsorted(np.asarray(bounds, np.float64), values, "right")
    limits = np.iinfo(values.dtype)
    below = sum(b < limits.min for b in bounds)
    inside = [b for b in bounds if limits.min <= b <= limits.max]
    return below + np.searchsorted(np.array(inside, values.dtype), values, "right")


def _ids(
    name: str,
    dtype: pa.DataType,
    buckets: int,
    source: ColumnSchema | None = None,
    *,
    nullable: bool = False,
) -> ColumnSchema:
    tags = [] if source is None else [t for t in source.tags if t != Tags.CONTINUOUS]
    return ColumnSchema(
        name, dtype, tags=(*tags, Tags.CATEGORICAL), properties={"num_buckets": buckets},
        nullable=nullable or (source is not None and source.is_list and source.nullable),
        value_count=None if source is None else source.value_count,
        domain=Domain(0, buckets - 1), embedding_size=embedding_size(buckets),
    )  # fmt: skip


def _check_buckets(given: Any) -> None:
    for n in given.values() if isinstance(given, Mapping) else [given]:
        if not isinstance(n, int) or n < 1 or n > 2**31 - 1:
            raise ArgumentError(
                f"num_buckets is {n!r}; it must be a whole number from 1 to 2**31 - 1"
            )
