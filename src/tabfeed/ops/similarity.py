"""How alike two ids are, by the features of what they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.ops.base import Inputs, Operator
from tabfeed.schema import ColumnSchema, Schema, Tags

__all__ = ["ColumnSimilarity"]

Floats = npt.NDArray[np.float64]
METRICS = ("tfidf", "cosine", "inner")


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
