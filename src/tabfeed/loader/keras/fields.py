"""What a Keras batch is made of, cut from chunks as NumPy arrays; no framework is needed for it.

A `Field` is one entry of the dict a batch is: a column, and the form it comes in. `Cutter` gives,
for each batch of a chunk, one flat list of arrays; an adapter makes its tensors from them. Arrays
are views of the chunk wherever the form allows.

Ids are checked here, once a chunk and column: one beyond what a feature column allows would be a
garbage embedding on a GPU, and says which column and which id here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.loader.assemble.batch_ops import pad_lists
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.keras.roles import Roles
from tabfeed.loader.read.arrow_columns import Group, Layout, Lists
from tabfeed.schema import ColumnSchema, Schema

__all__ = ["PARTS", "Cutter", "Field", "ListForms", "make_layout", "weights_of"]

Array = npt.NDArray[Any]

# How many arrays each form takes.
PARTS = {"scalar": 1, "fixed": 1, "dense": 1, "ragged": 2, "pair": 2, "sparse": 3}
_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)
_FLOAT32 = np.dtype(np.float32)
_SMALL = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())


@dataclass(frozen=True)
class Field:
    """An entry of a batch.

    Attributes
    ----------
    name
        The column.
    dtype
        Of its values.
    form
        ``"scalar"``: ``(N, 1)``. ``"fixed"``: ``(N, width)``, lists of one length. ``"dense"``:
        ``(N, width)``, shorter lists filled with 0. ``"ragged"``: values ``(V,)`` and row splits
        ``(N + 1,)``. ``"pair"``: values ``(V, 1)`` and how many each row has, ``(N, 1)``.
        ``"sparse"``: indices ``(V, 2)``, values ``(V,)`` and the shape.
    width
        Values in a row, where that is fixed.
    """

    name: str
    dtype: np.dtype[Any]
    form: str = "scalar"
    width: int = 1


@dataclass(frozen=True)
class ListForms:
    """How columns of lists come: one form for all, but for those that are to be matrices."""

    form: str
    matrices: tuple[str, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)
    matrix_form: str = "sparse"

    def __post_init__(self) -> None:
        for name in self.matrices:
            if name not in self.widths:
                raise ArgumentError(
                    f"sparse_names has {name!r}, but sparse_max says nothing of it; give "
                    f'sparse_max={{"{name}": most values in a row}}'
                )

    def field(self, column: ColumnSchema, dtype: np.dtype[Any], width: int | None) -> Field:
        """The entry a column gives."""
        name = column.name
        if not column.is_list:
            return Field(name, dtype)
        if name in self.matrices:
            return Field(name, dtype, self.matrix_form, int(self.widths[name]))
        if width is None and not column.is_ragged and column.value_count is not None:
            width = column.value_count[0]
        if width is not None:
            return Field(name, dtype, "fixed", width)
        return Field(name, dtype, self.form)


def id_dtype(column: ColumnSchema, *, narrow: bool) -> np.dtype[Any]:
    """The dtype of ids: 32 bits where the data have no more, 64 otherwise."""
    leaf = column.leaf_dtype
    small = leaf is not None and leaf in _SMALL
    return _INT32 if narrow or small else _INT64


def make_layout(
    schema: Schema, roles: Roles, forms: ListForms, *, narrow: bool
) -> tuple[Layout, tuple[Field, ...]]:
    """What to read, and the entries of a batch: inputs first, then labels.

    Parameters
    ----------
    schema
        The columns there are.
    roles
        The columns asked for.
    forms
        How lists come.
    narrow
        Whether ids must be 32 bits wide.
    """
    fields = []
    for name in (*roles.cats, *roles.conts, *roles.labels):
        is_id = name in roles.cats
        dtype = id_dtype(schema[name], narrow=narrow) if is_id else _FLOAT32
        fields.append(forms.field(schema[name], dtype, roles.widths.get(name)))
    for label in fields[len(fields) - len(roles.labels) :]:
        if label.form not in ("scalar", "fixed"):
            raise LoaderError(f"label {label.name!r} holds lists; a label must be a number")
    return _layout(fields), tuple(fields)


def _layout(fields: Sequence[Field]) -> Layout:
    groups: dict[np.dtype[Any], list[str]] = {}
    for entry in fields:
        if entry.form == "scalar":
            groups.setdefault(entry.dtype, []).append(entry.name)
    return Layout(
        groups=tuple(Group(str(d), tuple(names), d) for d, names in groups.items()),
        lists=tuple((f.name, f.dtype) for f in fields if f.form not in ("scalar", "fixed")),
        fixed=tuple((f.name, f.width, f.dtype) for f in fields if f.form == "fixed"),
    )


@dataclass(frozen=True)
class Cutter:
    """Chunks to batches, each a flat list of arrays, field after field.

    Parameters
    ----------
    fields
        The entries of a batch.
    limits
        Ids of a column must be below this.
    groups
        The columns of each buffer, where a chunk has whole buffers.
    """

    fields: tuple[Field, ...]
    limits: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()

    def __call__(self, chunk: Chunk) -> list[list[Array]]:
        """The batches of a chunk."""
        self._check_ids(chunk)
        if any(entry.form == "scalar" for entry in self.fields):
            for group in self.groups:
                chunk.columns.update(zip(group.columns, chunk.matrices[group.name], strict=True))
        columns = [list(self._column(entry, chunk)) for entry in self.fields]
        if not columns:
            return [[] for _ in range(chunk.steps)]
        return [[a for parts in row for a in parts] for row in zip(*columns, strict=True)]

    def without_buffers(self) -> Cutter:
        """The same for those fields alone that lie in no buffer of a group; all ids are checked."""
        return replace(self, fields=tuple(f for f in self.fields if f.form != "scalar"))

    def _check_ids(self, chunk: Chunk) -> None:
        tops: dict[str, int] = {}
        for group in self.groups:
            if chunk.rows and not self.limits.keys().isdisjoint(group.columns):
                tops.update(zip(group.columns, _row_tops(chunk.matrices[group.name]), strict=True))
        for name, limit in self.limits.items():
            if name not in tops:
                ids = chunk.lists[name].values if name in chunk.lists else chunk.columns[name]
                tops[name] = int(ids.max()) if ids.size else -1
            if tops[name] >= limit:
                raise LoaderError(
                    f"column {name!r} has the id {tops[name]}; its feature column has "
                    f"num_buckets={limit}, ids from 0 to {limit - 1}: give it more buckets, or "
                    "write the data with the workflow that the model was sized by"
                )

    def _column(self, entry: Field, chunk: Chunk) -> Iterator[list[Array]]:
        bounds = chunk.bounds.tolist()
        if entry.form in ("scalar", "fixed"):
            rows = chunk.columns[entry.name].reshape(-1, entry.width)
            return ([rows[low:high]] for low, high in pairwise(bounds))
        lists = chunk.lists[entry.name]
        if entry.form in ("dense", "sparse"):
            _check_lengths(lists, entry)
        if entry.form == "dense":
            rows = pad_lists(lists, entry.width)
            return ([rows[low:high]] for low, high in pairwise(bounds))
        return (_LIST_FORMS[entry.form](lists, low, high, entry) for low, high in pairwise(bounds))


def _row_tops(matrix: Any) -> list[int]:
    """The largest id of each row; the matrix may lie on a GPU, which is asked once."""
    found = matrix.max(1)
    tops: list[int] = getattr(found, "values", found).tolist()
    return tops


def _check_lengths(lists: Lists, entry: Field) -> None:
    longest = int(np.diff(lists.offsets).max(initial=0))
    if longest > entry.width:
        raise LoaderError(
            f"column {entry.name!r} has a row of {longest} values; sparse_max allows {entry.width}"
        )


def _slice(lists: Lists, low: int, high: int) -> tuple[Array, Array]:
    offsets = lists.offsets[low : high + 1]
    return lists.values[offsets[0] : offsets[-1]], offsets - offsets[0]


def _ragged(lists: Lists, low: int, high: int, entry: Field) -> list[Array]:
    return list(_slice(lists, low, high))


def _pair(lists: Lists, low: int, high: int, entry: Field) -> list[Array]:
    values, offsets = _slice(lists, low, high)
    return [values.reshape(-1, 1), np.diff(offsets).astype(np.int32).reshape(-1, 1)]


def _sparse(lists: Lists, low: int, high: int, entry: Field) -> list[Array]:
    values, offsets = _slice(lists, low, high)
    rows = np.repeat(np.arange(high - low), np.diff(offsets))
    places = np.arange(len(values)) - offsets[:-1][rows]
    return [np.stack([rows, places], axis=1), values, np.array([high - low, entry.width])]


_LIST_FORMS = {"ragged": _ragged, "pair": _pair, "sparse": _sparse}


def weights_of(labels: Array, weights: Mapping[int, float]) -> Array:
    """The weight of each row by its label; a label without one weighs 1."""
    out = np.ones(len(labels), np.float32)
    for label, weight in weights.items():
        out[labels[:, 0] == label] = weight
    return out
