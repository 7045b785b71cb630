"""Columns from data beside the dataset: another table (JoinExternal), matrices of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ArgumentError, ColumnNotFoundError, DuplicateColumnError, OperatorError
from tabfeed.io.formats.memory import arrow_from_frame, refuse_bad_text
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.frames import as_list, to_polars
from tabfeed.ops.graph.plan import kind_of
from tabfeed.schema import ColumnSchema, Schema, Tags

Floats = npt.NDArray[np.float64]
METRICS = ("tfidf", "cosine", "inner")


class JoinExternal(Operator):
    """Columns of another table, found by key.

    Parameters
    ----------
    df_ext
        The other table: a frame, a Dataset, or the path of a Parquet file or folder. It is held in
        memory.
    on
        Key columns of the data.
    how
        ``"left"`` keeps every row; ``"inner"`` drops rows without a match.
    on_ext
        Key columns of the other table, where they have other names.
    columns_ext
        Columns to take; all but the keys by default.
    drop_duplicates_ext
        Keep the first row of each key. Without it a key that occurs twice makes two rows.
    kind_ext, cache
        Taken so that existing code runs; they have no effect.

    Examples
    --------
    >>> op = JoinExternal({"id": [1, 2], "price": [10.0, 20.0]}, on="id")
    >>> op({"id": [2, 3]})
    {'id': array([2, 3]), 'price': array([20., nan])}
    """

    def __init__(
        self,
        df_ext: Any,
        on: Sequence[str] | str,
        how: str = "left",
        on_ext: Sequence[str] | str | None = None,
        columns_ext: Sequence[str] | None = None,
        drop_duplicates_ext: bool | None = None,
        kind_ext: Any = None,
        cache: Any = "host",
    ) -> None:
        if how not in ("left", "inner"):
            raise ArgumentError(f"how is {how!r}; it is 'left' or 'inner'")
        self.on, self.how, self.on_ext = as_list(on), how, as_list(on_ext) or as_list(on)
        self.columns_ext, self.drop_duplicates_ext = columns_ext, drop_duplicates_ext
        self.kind_ext, self.cache = kind_ext, cache
        if len(self.on) != len(self.on_ext):
            raise ArgumentError(f"on and on_ext differ in length: {self.on}, {self.on_ext}")
        self.df_ext = self._open(df_ext)
        self._frame = to_polars(self.df_ext)

    def _open(self, given: Any) -> pa.Table:
        if isinstance(given, str | Path | list):
            from tabfeed.io import Dataset

            given = Dataset(given)
        table = given.to_arrow() if hasattr(given, "partitions") else arrow_from_frame(given)
        if table is None:
            raise ArgumentError(
                f"df_ext is {type(given).__name__}; give a frame, a Dataset or a path"
            )
        for name in [*self.on_ext, *(self.columns_ext or [])]:
            if name not in table.column_names:
                raise ColumnNotFoundError(name, table.column_names, where="df_ext")
        taken = self.columns_ext or [c for c in table.column_names if c not in self.on_ext]
        table = table.select(list(dict.fromkeys([*self.on_ext, *taken])))
        refuse_bad_text(table, "df_ext")
        if not self.drop_duplicates_ext:
            return table
        unique = to_polars(table).unique(self.on_ext, keep="first", maintain_order=True)
        return unique.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(
            _plain_schema(table.schema)
        )

    def params(self) -> dict[str, Any]:
        """The arguments; duplicates are gone already."""
        return {**super().params(), "drop_duplicates_ext": None}

    @classmethod
    def from_params(cls, df_ext: pa.Table, **options: Any) -> JoinExternal:
        """Read what `params` gave; a saved table is never a path."""
        if not isinstance(df_ext, pa.Table):
            raise ArgumentError("the saved df_ext is not a table")
        return cls(df_ext, **options)

    @property
    def dependencies(self) -> list[Any]:
        """The keys, where they are not among the selected columns."""
        return [self.on]

    @property
    def changes_rows(self) -> bool:
        """Whether a row may vanish or multiply."""
        return self.how == "inner" or bool(self._frame.select(self.on_ext).is_duplicated().any())

    def _taken(self) -> list[str]:
        return [c for c in self.df_ext.column_names if c not in self.on_ext]

    def output_schema(self, inputs: Inputs) -> Schema:
        """The selected columns, then those of the other table."""
        for ours, theirs in zip(self.on, self.on_ext, strict=True):
            a, b = inputs.schema[ours].dtype, self.df_ext.schema.field(theirs).type
            if (
                a is not None
                and kind_of(a) != kind_of(b)
                and "nothing" not in (kind_of(a), kind_of(b))
            ):
                raise OperatorError(
                    f"JoinExternal: key {ours!r} is {a}, but {theirs!r} of df_ext is {b}"
                )
        extra = Schema.from_arrow(_plain_schema(self.df_ext.schema)).select(self._taken())
        for name in extra.column_names:
            if name in inputs.names:
                raise DuplicateColumnError(
                    f"JoinExternal: {name!r} is in both tables; choose columns_ext, or rename it"
                )
        fresh = [replace(c, nullable=True) for c in extra]
        return Schema([*inputs.columns, *fresh])

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Join, keeping the order of rows. Null keys match null keys."""
        kinds = [self._frame.schema[k] for k in self.on_ext]
        keyed = frame.with_columns(
            pl.col(n).cast(t).alias(f"__on_{i}")
            for i, (n, t) in enumerate(zip(self.on, kinds, strict=True))
        )
        names = [f"__on_{i}" for i in range(len(self.on))]
        right = self._frame.rename(dict(zip(self.on_ext, names, strict=True))).lazy()
        how: Any = self.how
        joined = keyed.join(right, on=names, how=how, nulls_equal=True, maintain_order="left_right")
        return joined.select([*inputs.names, *self._taken()])


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Without dictionaries, which a join decodes."""
    fields = []
    for f in schema:
        kind = f.type.value_type if pa.types.is_dictionary(f.type) else f.type
        fields.append(pa.field(f.name, kind, f.nullable))
    return pa.schema(fields)


class ColumnSimilarity(Operator):
    """Similarity of the rows of two feature matrices that two id columns point to.

    Each group of two columns ``[["a", "b"]]`` gives ``a_b_sim``. An id outside its matrix, or a
    null, gives null.

    Parameters
    ----------
    left_features, right_features
        Matrices with a row for each id: NumPy, anything with ``tocoo()`` (SciPy), or a table of
        ``row, column, value``. The right one is the left one by default.
    metric
        ``"inner"``: the product. ``"cosine"``: of rows of length one. ``"tfidf"``: cosine of rows
        whose features are weighed down where many rows have them.
    on_device
        Taken so that existing code runs; it has no effect.

    Examples
    --------
    >>> features = np.array([[1.0, 0.0], [1.0, 1.0]])
    >>> op = ColumnSimilarity(features, metric="inner")
    >>> op({"a": [0, 1], "b": [1, 1]})
    {'a_b_sim': array([1., 2.])}
    """

    eager = True

    def __init__(
        self,
        left_features: Any,
        right_features: Any = None,
        metric: str = "tfidf",
        on_device: bool = True,
    ) -> None:
        if metric not in METRICS:
            raise ArgumentError(f"metric is {metric!r}; it is one of {METRICS}")
        self.metric, self.on_device = metric, on_device
        self.left_features = _as_table(left_features)
        self.right_features = None if right_features is None else _as_table(right_features)
        self._left = _Sparse(self.left_features, metric)
        same = self.right_features is None
        self._right = self._left if same else _Sparse(self.right_features, metric)

    def _pairs(self, inputs: Inputs) -> list[tuple[str, str]]:
        groups = [g for g in inputs.groups if len(g) > 1] or [inputs.names]
        for group in groups:
            if len(group) != 2:
                raise OperatorError(f"ColumnSimilarity compares two columns; it got {list(group)}")
        return [(g[0], g[1]) for g in groups]

    def output_schema(self, inputs: Inputs) -> Schema:
        """``<a>_<b>_sim``, tagged continuous."""
        for column in inputs.columns:
            if column.dtype is not None and not (
                pa.types.is_integer(column.dtype) or pa.types.is_floating(column.dtype)
            ):
                raise OperatorError(
                    f"ColumnSimilarity needs ids; column {column.name!r} is {column.dtype}"
                )
        names = [f"{a}_{b}_sim" for a, b in self._pairs(inputs)]
        return Schema(ColumnSchema(n, pa.float64(), tags=(Tags.CONTINUOUS,)) for n in names)

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Multiply row by row."""
        out = {}
        for a, b in self._pairs(inputs):
            left, right = _ids(frame.column(a)), _ids(frame.column(b))
            known = (
                (left >= 0) & (left < self._left.rows) & (right >= 0) & (right < self._right.rows)
            )
            result = np.zeros(len(left))
            result[known] = self._left.products(left[known], self._right, right[known])
            out[f"{a}_{b}_sim"] = pa.array(result, mask=~known)
        return pa.table(out)


class _Sparse:
    """A matrix by row: the columns and values of row r are at ``starts[r] : starts[r + 1]``."""

    def __init__(self, table: pa.Table, metric: str) -> None:
        _check_entries(table)
        rows, columns = table.column("row").to_numpy(), table.column("column").to_numpy()
        order = np.lexsort((columns, rows))
        self.row, self.column = rows[order], columns[order]
        self.value: Floats = table.column("value").to_numpy()[order].astype(np.float64)
        meta = table.schema.metadata or {}
        self.rows = int(meta.get(b"rows", int(rows.max(initial=-1)) + 1))
        self.columns = int(meta.get(b"columns", int(columns.max(initial=-1)) + 1))
        self.starts = np.searchsorted(self.row, np.arange(self.rows + 1))
        self._weigh(metric)

    def _weigh(self, metric: str) -> None:
        """Turn the values into those that a metric multiplies."""
        if metric == "tfidf":
            seen = np.bincount(self.column[self.value != 0], minlength=self.columns)
            idf = np.log((1 + self.rows) / (1 + seen)) + 1
            self.value = self.value * idf[self.column]
        if metric in ("tfidf", "cosine"):
            norm = np.sqrt(np.bincount(self.row, self.value**2, minlength=self.rows))
            self.value = self.value / np.where(norm == 0, 1, norm)[self.row]

    def products(self, mine: Any, other: _Sparse, theirs: Any) -> Floats:
        """The product of row ``mine[i]`` here with row ``theirs[i]`` there."""
        counts = self.starts[mine + 1] - self.starts[mine]
        pair = np.repeat(np.arange(len(mine)), counts)
        ends = np.cumsum(counts)
        at = np.arange(len(pair)) + np.repeat(self.starts[mine] - (ends - counts), counts)
        width = max(self.columns, other.columns, 1)
        wanted = theirs[pair] * width + self.column[at]
        keys = other.row * width + other.column
        found = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        if not len(keys):
            return np.zeros(len(mine))
        value = np.where(keys[found] == wanted, other.value[found], 0.0)
        products = np.bincount(pair, self.value[at] * value, minlength=len(mine))
        return np.asarray(products, np.float64)


def _check_entries(table: pa.Table) -> None:
    """Refuse a table that is no matrix."""
    for name, kind in (("row", "integer"), ("column", "integer"), ("value", "number")):
        if table.column_names.count(name) != 1:
            raise ArgumentError(
                f"features as a table have the columns row, column and value, each once; these "
                f"have {table.column_names}"
            )
        column = table.column(name)
        fits = pa.types.is_integer(column.type) or (
            kind == "number" and pa.types.is_floating(column.type)
        )
        if not fits or column.null_count:
            raise ArgumentError(
                f"column {name!r} of the features is {column.type} with {column.null_count} nulls; "
                f"each value must be a{'n' if kind == 'integer' else ''} {kind}"
            )
    meta = table.schema.metadata or {}
    for name, size in (("row", meta.get(b"rows")), ("column", meta.get(b"columns"))):
        range_ = pc.min_max(table.column(name)).as_py()
        low, high = range_["min"] or 0, -1 if range_["max"] is None else range_["max"]
        most = high if size is None else int(size) - 1 if size.isdigit() else -2
        if low < 0 or high > most or most >= 2**31:
            raise ArgumentError(
                f"the features name {name}s {low} to {high}; the matrix has {most + 1}"
            )


def _ids(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    filled = pc.fill_null(column.cast(pa.float64(), safe=False), -1.0).to_numpy()
    return np.where(np.isfinite(filled), filled, -1).astype(np.int64)


def _as_table(features: Any) -> pa.Table:
    """A matrix as a table of its entries, its shape in the metadata."""
    if isinstance(features, pa.Table):
        return features
    if hasattr(features, "tocoo"):
        coo = features.tocoo()
        rows, columns, values, shape = coo.row, coo.col, coo.data, coo.shape
    else:
        dense = np.asarray(features, np.float64)
        if dense.ndim != 2:
            raise ArgumentError(f"features form a matrix; these have {dense.ndim} dimensions")
        rows, columns = np.nonzero(dense)
        values, shape = dense[rows, columns], dense.shape
    entries = {
        "row": np.asarray(rows, np.int64), "column": np.asarray(columns, np.int64),
        "value": np.asarray(values, np.float64),
    }  # fmt: skip
    table = pa.table(entries)
    return table.replace_schema_metadata({"rows": str(shape[0]), "columns": str(shape[1])})
