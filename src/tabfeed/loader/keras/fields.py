"""What a Keras batch is made of, cut from chunks as NumPy arrays; no framework is needed for it.

`Roles` say which columns are ids, numbers and labels: from feature columns, names or tags. A
`Field` is one entry of the dict a batch is: a column, and the form it comes in. `Cutter` gives, for
each batch of a chunk, one flat list of arrays; an adapter makes its tensors from them. Arrays are
views of the chunk wherever the form allows.

Ids are checked here, once a chunk and column: one beyond what a feature column allows would be a
garbage embedding on a GPU; the error here says which column and which id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import ArgumentError, ColumnNotFoundError, LoaderError
from tabfeed.loader.assemble.batch_ops import pad_lists
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.keras.columns import Bucketized, Identity, Numeric, categories_of, read_columns
from tabfeed.loader.read.arrow_columns import Group, Layout, Lists
from tabfeed.schema import ColumnSchema, Schema, Tags

__all__ = [
    "PARTS",
    "Cutter",
    "Field",
    "ListForms",
    "Roles",
    "find_roles",
    "make_entries",
    "make_layout",
    "weights_of",
]


Names = Sequence[str] | str | None


@dataclass(frozen=True)
class Roles:
    """Columns by what they are.

    Attributes
    ----------
    cats, conts, labels
        Names.
    widths
        Numbers in a row of a column, where a feature column says.
    limits
        Ids of a column must be below this.
    """

    cats: tuple[str, ...]
    conts: tuple[str, ...]
    labels: tuple[str, ...]
    widths: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)


def find_roles(
    schema: Schema,
    feature_columns: Iterable[Any] | None,
    cats: Names,
    conts: Names,
    labels: Names,
) -> Roles:
    """Find the columns of a batch, each of which must be in `schema`.

    Where neither feature columns nor names are given, tags decide.

    Examples
    --------
    >>> schema = Schema.from_arrow(__import__("pyarrow").schema({"C": "int64", "I": "float"}))
    >>> find_roles(schema, [Identity("C", 10), Numeric("I")], None, None, None).limits
    {'C': 10}
    """
    if feature_columns is not None:
        if cats is not None or conts is not None:
            raise ArgumentError("give feature_columns, or cat_names and cont_names, not both")
        found = _from_columns(feature_columns, _listed(labels))
    elif cats is None and conts is None:
        found = _from_tags(schema, labels)
    else:
        found = Roles(_listed(cats), _listed(conts), _listed(labels))
    names = [*found.cats, *found.conts, *found.labels]
    for name in names:
        if name not in schema:
            raise ColumnNotFoundError(name, schema.column_names)
        if names.count(name) > 1:
            raise ArgumentError(f"column {name!r} is given twice; it can have only one role")
    if not found.cats and not found.conts:
        raise ArgumentError(
            "a batch would have no inputs: give feature_columns, or cat_names and cont_names, or "
            "tag columns of the schema as categorical or continuous"
        )
    return found


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _from_columns(columns: Iterable[Any], labels: tuple[str, ...]) -> Roles:
    cats: dict[str, None] = {}
    conts: dict[str, None] = {}
    widths: dict[str, int] = {}
    limits: dict[str, int] = {}
    for column in read_columns(columns):
        categories = categories_of(column)
        if isinstance(categories, Identity):
            cats[categories.key] = None
            if categories.default_value is None:
                limits[categories.key] = min(
                    categories.num_buckets, limits.get(categories.key, categories.num_buckets)
                )
            continue
        source = categories.source if isinstance(categories, Bucketized) else column
        assert isinstance(source, Numeric)  # all that is left
        conts[source.key] = None
        widths[source.key] = source.width
    for name in cats:
        if name in conts:
            raise ArgumentError(f"feature columns use {name!r} both as an id and as a number")
    return Roles(tuple(cats), tuple(conts), labels, widths, limits)


def _from_tags(schema: Schema, labels: Names) -> Roles:
    targets = (
        schema.select_by_tag(Tags.TARGET).column_names if labels is None else list(_listed(labels))
    )
    inputs = schema.excluding([name for name in targets if name in schema])
    return Roles(
        tuple(inputs.select_by_tag(Tags.CATEGORICAL).column_names),
        tuple(inputs.select_by_tag(Tags.CONTINUOUS).column_names),
        tuple(targets),
    )


Array = npt.NDArray[Any]

# How many arrays each form takes.
PARTS = {"scalar": 1, "fixed": 1, "dense": 1, "ragged": 2, "pair": 2, "sparse": 3}
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
    widths: Mapping[str, int]
    matrix_form: str

    @classmethod
    def choose(
        cls,
        backend: str,
        form: str | None,
        matrices: Sequence[str] | None,
        widths: Mapping[str, int] | None,
        as_dense: bool,
    ) -> ListForms:
        """The forms that a user asks for; refused if the backend has no such tensors."""
        chosen = form or ("ragged" if backend == "tensorflow" else "pair")
        if chosen not in ("ragged", "pair"):
            raise ArgumentError(f'lists is {form!r}; it must be "ragged" or "pair"')
        if backend != "tensorflow" and (chosen == "ragged" or (matrices and not as_dense)):
            raise ArgumentError(
                f"ragged and sparse tensors are TensorFlow's; on {backend} use "
                'lists="pair", or sparse_names with sparse_as_dense=True'
            )
        for name in matrices or ():
            if name not in (widths or {}):
                raise ArgumentError(
                    f"sparse_names has {name!r}, but sparse_max says nothing of it; give "
                    f'sparse_max={{"{name}": most values in a row}}'
                )
        widths = {name: int((widths or {})[name]) for name in matrices or ()}
        return cls(chosen, widths, "dense" if as_dense else "sparse")

    def field(self, column: ColumnSchema, dtype: np.dtype[Any], width: int | None) -> Field:
        """The entry a column gives."""
        name = column.name
        if not column.is_list:
            return Field(name, dtype)
        if name in self.widths:
            return Field(name, dtype, self.matrix_form, self.widths[name])
        if width is None and not column.is_ragged and column.value_count is not None:
            width = column.value_count[0]
        if width is not None:
            return Field(name, dtype, "fixed", width)
        return Field(name, dtype, self.form)


def make_layout(
    schema: Schema, roles: Roles, forms: ListForms, *, narrow: bool
) -> tuple[Layout, tuple[Field, ...]]:
    """What to read, and the entries of a batch: inputs first, then labels.

    Parameters
    ----------
    schema
        The columns there are.
    roles
        The columns of a batch.
    forms
        How lists come.
    narrow
        Whether ids must be 32 bits wide; else they have 64, unless the data have no more than 32.
    """
    fields = []
    for name in (*roles.cats, *roles.conts, *roles.labels):
        column, kind = schema[name], "float32"
        if name in roles.cats:
            kind = "int32" if narrow or column.leaf_dtype in _SMALL else "int64"
        fields.append(forms.field(column, np.dtype(kind), roles.widths.get(name)))
    for label in fields[len(fields) - len(roles.labels) :]:
        if label.form not in ("scalar", "fixed"):
            raise LoaderError(f"label {label.name!r} holds lists; a label must be a number")
    groups: dict[np.dtype[Any], list[str]] = {}
    for entry in fields:
        if entry.form == "scalar":
            groups.setdefault(entry.dtype, []).append(entry.name)
    layout = Layout(
        groups=tuple(Group(str(d), tuple(names), d) for d, names in groups.items()),
        lists=tuple((f.name, f.dtype) for f in fields if f.form not in ("scalar", "fixed")),
        fixed=tuple((f.name, f.width, f.dtype) for f in fields if f.form == "fixed"),
    )
    return layout, tuple(fields)


def make_entries(
    fields: Sequence[Field],
    tensors: Sequence[Any],
    entry: Callable[[Field, Sequence[Any]], Any],
    ready: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The entries of a batch by name, each made by `entry` from its own tensors, in order.

    Those that are `ready` have no tensors.
    """
    entries, at = {}, 0
    for one in fields:
        if ready and one.name in ready:
            entries[one.name] = ready[one.name]
            continue
        entries[one.name] = entry(one, tensors[at : at + PARTS[one.form]])
        at += PARTS[one.form]
    return entries


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
        """The same for the fields that no group's buffer holds; all ids are still checked."""
        return replace(self, fields=tuple(f for f in self.fields if f.form != "scalar"))

    def _check_ids(self, chunk: Chunk) -> None:
        tops: dict[str, int] = {}
        for group in self.groups:
            if chunk.rows and not self.limits.keys().isdisjoint(group.columns):
                found: Any = chunk.matrices[group.name].max(1)  # may be on a GPU: one transfer
                found = getattr(found, "values", found).tolist()
                tops.update(zip(group.columns, found, strict=True))
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
            longest = int(np.diff(lists.offsets).max(initial=0))
            if longest > entry.width:
                raise LoaderError(
                    f"column {entry.name!r} has a row of {longest} values; sparse_max allows "
                    f"{entry.width}"
                )
        if entry.form == "dense":
            rows = pad_lists(lists, entry.width)
            return ([rows[low:high]] for low, high in pairwise(bounds))
        return (_LIST_FORMS[entry.form](lists, low, high, entry) for low, high in pairwise(bounds))


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
