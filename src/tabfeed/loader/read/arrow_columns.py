"""From Arrow columns to NumPy views, refusing what a tensor cannot hold.

A partition is turned into a `Part` when it is read: plain arrays, for a block to gather from. Here
is also where nulls, text and numbers out of range are found: an error names the column and says
what to do about it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import LoaderError
from tabfeed.lazy import cached_property
from tabfeed.schema.dtypes import format_type, is_list_type

Array = npt.NDArray[Any]
_LENGTH = 8  # values in a ragged row, where nothing is known
_EXTRA = 32  # bytes of a column of extras, likewise


class Lists(NamedTuple):
    """Ragged rows: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: Array
    offsets: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Columns that share one ``(columns, rows)`` buffer of one dtype."""

    name: str
    columns: tuple[str, ...]
    dtype: np.dtype[Any]

    def only(self, names: Set[str]) -> Group:
        """The same with some of its columns."""
        return Group(self.name, tuple(c for c in self.columns if c in names), self.dtype)


@dataclass(frozen=True)
class Layout:
    """What a batch is made of.

    Attributes
    ----------
    groups
        Scalar columns, by buffer.
    lists
        Ragged columns and the dtype of their values.
    fixed
        List columns of one length, with that length and the dtype of their values.
    extras
        Columns that pass through as Arrow arrays.
    matrices
        Whether the groups themselves are delivered, rather than single columns.
    lengths
        About how many values a row of a ragged column has, and how many bytes one of `extras`,
        where files tell.
    """

    groups: tuple[Group, ...] = ()
    lists: tuple[tuple[str, np.dtype[Any]], ...] = ()
    fixed: tuple[tuple[str, int, np.dtype[Any]], ...] = ()
    extras: tuple[str, ...] = ()
    matrices: bool = False
    lengths: tuple[tuple[str, int], ...] = field(default=(), repr=False)  # no key depends on it

    @cached_property
    def columns(self) -> list[str]:
        """Every column it needs, once."""
        names = [c for g in self.groups for c in g.columns]
        names += [n for n, _ in self.lists] + [f[0] for f in self.fixed]
        return list(dict.fromkeys([*names, *self.extras]))

    def only(self, names: Sequence[str]) -> Layout:
        """What it says about some columns."""
        kept = set(names)
        return Layout(
            tuple(g.only(kept) for g in self.groups if kept.intersection(g.columns)),
            tuple(entry for entry in self.lists if entry[0] in kept),
            tuple(entry for entry in self.fixed if entry[0] in kept),
            tuple(name for name in self.extras if name in kept),
            self.matrices,
            self.lengths,
        )

    @property
    def rest(self) -> Layout:
        """What it says about columns that lie in no buffer of a group."""
        return Layout((), self.lists, self.fixed, self.extras, lengths=self.lengths)

    def length(self, name: str) -> int:
        """About how many values a row of a ragged column has."""
        return dict(self.lengths).get(name, _LENGTH)

    @property
    def row_bytes(self) -> int:
        """About what a row takes in a chunk."""
        scalars = sum(len(g.columns) * g.dtype.itemsize for g in self.groups)
        lists = sum(8 + self.length(name) * d.itemsize for name, d in self.lists)
        extras = sum(dict(self.lengths).get(name, _EXTRA) for name in self.extras)
        return scalars + lists + sum(n * d.itemsize for _, n, d in self.fixed) + extras


@dataclass(frozen=True)
class Part:
    """One partition, decoded: plain arrays, views of Arrow's memory where that is possible."""

    rows: int
    scalars: dict[str, Array] = field(default_factory=dict)
    lists: dict[str, Lists] = field(default_factory=dict)
    extras: dict[str, pa.Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Memory it holds."""
        flat = sum(a.nbytes for a in self.scalars.values())
        ragged = sum(v.values.nbytes + v.offsets.nbytes for v in self.lists.values())
        return int(flat + ragged + sum(a.nbytes for a in self.extras.values()))


def make_part(table: pa.Table, layout: Layout, nulls: dict[str, int] | None = None) -> Part:
    """Turn a table into arrays; in `nulls` count, by column, those that become NaN."""
    columns = {name: _one_chunk(table.column(name)) for name in layout.columns}
    part = Part(table.num_rows)
    for group in layout.groups:
        for name in group.columns:
            part.scalars[name] = scalar_array(columns[name], name, group.dtype, nulls)
    for name, dtype in layout.lists:
        part.lists[name] = list_arrays(columns[name], name, dtype, nulls)
    for name, width, dtype in layout.fixed:
        lists = list_arrays(columns[name], name, dtype, nulls)
        part.scalars[name] = _as_matrix(lists, name, width)
    for name in layout.extras:
        part.extras[name] = columns[name]
    return part


def numpy_dtype(arrow: pa.DataType, name: str) -> np.dtype[Any]:
    """The dtype a tensor of this column has.

    Examples
    --------
    >>> numpy_dtype(pa.int32(), "C1"), numpy_dtype(pa.decimal128(9, 2), "price")
    (dtype('int32'), dtype('float64'))
    """
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if pa.types.is_decimal(arrow):
        return np.dtype(np.float64)
    if pa.types.is_boolean(arrow):
        return np.dtype(np.bool_)
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
        dtype: np.dtype[Any] = np.dtype(arrow.to_pandas_dtype())
        return dtype
    raise LoaderError(
        f"column {name!r} is {format_type(arrow)}, which can't be converted to a tensor; turn it "
        "into numbers (Categorify for text), leave it out, or pass it through with extras="
    )


def is_plain(arrow: pa.DataType | None, wanted: np.dtype[Any]) -> bool:
    """Whether values without nulls are numbers that the cast to `wanted` cannot spoil.

    Examples
    --------
    >>> int32, float32 = np.dtype(np.int32), np.dtype(np.float32)
    >>> is_plain(pa.int16(), int32), is_plain(pa.int64(), int32), is_plain(pa.int64(), float32)
    (True, False, True)
    """
    if arrow is None or not (pa.types.is_integer(arrow) or pa.types.is_floating(arrow)):
        return False
    return casts(np.dtype(arrow.to_pandas_dtype()), wanted)


def casts(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether numbers of a dtype may be cast to another, whatever they are.

    Examples
    --------
    >>> casts(np.dtype(np.int64), np.dtype(np.float32)), casts(np.dtype("M8[s]"), np.dtype("f4"))
    (True, False)
    """
    return dtype.kind in "iufb" and (wanted.kind == "f" or bool(np.can_cast(dtype, wanted)))


def fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype of integers can hold all of some numbers.

    Examples
    --------
    >>> fits(np.array([-128, 127]), np.dtype(np.int8)), fits(np.array([128]), np.dtype(np.int8))
    (True, False)
    """
    if not array.size:
        return True
    limits = np.iinfo(dtype)  # compared as Python's numbers: NumPy rounds 2**63 - 1 to a fraction
    return bool(limits.min <= array.min().item() and array.max().item() <= limits.max)


def plain_array(column: pa.ChunkedArray, name: str, wanted: np.dtype[Any]) -> Array:
    """A column that `is_plain` as an array; nulls are NaN or an error."""
    array = _one_chunk(column)
    if array.null_count:
        return scalar_array(array, name, wanted)
    return as_view(array)


def as_view(array: pa.Array) -> Array:
    """Numbers without nulls as NumPy sees them, without a copy; truth values are copied.

    Arrow's `to_numpy` imports pandas where that is installed, 0.15 s of the first epoch.

    Examples
    --------
    >>> as_view(pa.array([1, 2, 3], pa.int8())[1:]).tolist(), as_view(pa.array([True, False])).dtype
    ([2, 3], dtype('bool'))
    """
    if pa.types.is_boolean(array.type):
        return as_view(array.cast(pa.uint8())).view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):  # its buffer may be missing
        return np.empty(0, dtype)
    start = array.offset * dtype.itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array), start)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def scalar_array(
    column: pa.Array, name: str, wanted: np.dtype[Any], nulls: dict[str, int] | None = None
) -> Array:
    """A column as an array that can be cast to `wanted` without losing what it says."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    numpy_dtype(column.type, name)  # refuses what is not a number
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if column.null_count:
        if nulls is not None:
            nulls[name] = column.null_count
        column = _with_nan(column, name, wanted)
    array = as_view(column)
    _check_range(array, name, wanted)
    return array


def _with_nan(column: pa.Array, name: str, wanted: np.dtype[Any]) -> pa.Array:
    if wanted.kind != "f":
        raise LoaderError(
            f"column {name!r} has {column.null_count} nulls, and a tensor of {wanted} has no null; "
            "fill them first (FillMissing for numbers, Categorify for categories)"
        )
    if not pa.types.is_floating(column.type):
        column = column.cast(pa.float64() if wanted.itemsize > 4 else pa.float32(), safe=False)
    return pc.fill_null(column, float("nan"))


def _check_range(array: Array, name: str, wanted: np.dtype[Any]) -> None:
    """Refuse what the cast to integers would turn into something else."""
    if wanted.kind not in "iu" or array.size == 0 or array.dtype == wanted:
        return
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise LoaderError(
                f"column {name!r} has NaN or infinite values, and a tensor of {wanted} cannot hold "
                "them; fill or categorify them first"
            )
        fractions = array != np.trunc(array)
        if fractions.any():
            raise LoaderError(
                f"column {name!r} has {array[fractions][0]}, and a tensor of {wanted} holds whole "
                "numbers alone; load it as a number (conts=), or give it ids first (Categorify, "
                "Bucketize)"
            )
    elif np.can_cast(array.dtype, wanted):
        return
    if not fits(array, wanted):
        limits = np.iinfo(wanted)
        raise LoaderError(
            f"column {name!r} goes from {array.min()} to {array.max()}, and a tensor of {wanted} "
            f"holds {limits.min} to {limits.max}"
        )


def list_arrays(
    column: pa.Array, name: str, wanted: np.dtype[Any], nulls: dict[str, int] | None = None
) -> Lists:
    """A list column as values and offsets from 0; a null row is an empty one."""
    if not is_list_type(column.type):
        raise LoaderError(f"column {name!r} is {format_type(column.type)}, not a list")
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    if column.null_count:
        column = pc.fill_null(column, pa.scalar([], type=column.type))
    offsets = as_view(column.offsets).astype(np.int64)
    values = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if is_list_type(values.type):
        raise LoaderError(
            f"column {name!r} is {format_type(column.type)}; lists of lists have no tensor form "
            "here: flatten them first"
        )
    return Lists(scalar_array(values, name, wanted, nulls), offsets - offsets[0])


def _as_matrix(lists: Lists, name: str, width: int) -> Array:
    lengths = np.diff(lists.offsets)
    if (lengths != width).any():
        row = int(np.argmax(lengths != width))
        raise LoaderError(
            f"column {name!r} should have {width} values in each row, as its schema says; row "
            f"{row} of this partition has {lengths[row]}"
        )
    return lists.values.reshape(-1, width)
