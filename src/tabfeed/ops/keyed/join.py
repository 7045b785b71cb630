"""JoinGroupby: statistics of each row's group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.ops.base import Inputs
from tabfeed.ops.frames import as_list
from tabfeed.ops.keyed.base import GroupLookup, KeyedOperator
from tabfeed.ops.keyed.group_stats import ROWS, SUMS, key_names
from tabfeed.ops.state.checks import check_groups, list_of, one_of
from tabfeed.ops.state.exact import spread_of, spread_of_large, whole_sums
from tabfeed.ops.state.memory import SpilledTable
from tabfeed.schema import ColumnSchema, Schema, Tags

STATS = ("count", "sum", "mean", "std", "var", "min", "max")


class JoinGroupby(KeyedOperator):
    """Statistics of each row's group, learned from the data.

    Makes ``<group>_count`` and ``<group>_<column>_<stat>``. Null is a group of its own; a group
    never seen gives null.

    Parameters
    ----------
    cont_cols
        Columns to compute statistics of; names or nodes. Not needed for ``"count"`` alone.
    stats
        Any of count, sum, mean, std, var, min, max. std and var are those of a sample.
    name_sep
        Between the names of a group, a column and a statistic.
    split_out, split_every, cat_cache, out_path, on_host, tree_width
        Taken so that existing code runs; they have no effect.

    Examples
    --------
    >>> import polars as pl
    >>> from tabfeed import Workflow
    >>> node = ["c"] >> JoinGroupby("x", stats=["count", "mean"])
    >>> out = Workflow(node).fit_transform(pl.DataFrame({"c": ["a", "a", None], "x": [1, 2, 5]}))
    >>> out.rows()
    [(2, 1.5), (2, 1.5), (1, 5.0)]
    """

    kept = ("values", "kinds")

    def __init__(
        self,
        cont_cols: Any = None,
        stats: Sequence[str] | str = ("count",),
        split_out: Any = None,
        split_every: Any = None,
        cat_cache: Any = "host",
        out_path: str | None = None,
        on_host: bool = True,
        name_sep: str = "_",
        tree_width: Any = None,
    ) -> None:
        self.cont_cols, self.stats, self.name_sep = cont_cols, as_list(stats), name_sep
        self.split_out, self.split_every, self.cat_cache = split_out, split_every, cat_cache
        self.out_path, self.on_host, self.tree_width = out_path, on_host, tree_width
        for stat in self.stats:
            if stat not in STATS:
                raise ArgumentError(f"{stat!r} is not a statistic JoinGroupby knows: {STATS}")

    @property
    def dependencies(self) -> list[Any]:
        """The columns to compute statistics of."""
        return as_list(self.cont_cols)

    def params(self) -> dict[str, Any]:
        """The arguments; the columns are among the node's dependencies."""
        return {**super().params(), "cont_cols": None, "out_path": None}

    def output_schema(self, inputs: Inputs) -> Schema:
        """A column for each group, column and statistic."""
        self.check_keys(inputs)
        columns = []
        dtypes = self._dtypes(inputs)
        for group in inputs.groups:
            for name, stat, i in self._outputs(group, inputs):
                source = dtypes[i] if i >= 0 else pa.int32()
                dtype = _stat_type(stat, source)
                columns.append(ColumnSchema(name, dtype, tags=(Tags.CONTINUOUS,)))
        return Schema(columns)

    def _dtypes(self, inputs: Inputs) -> list[pa.DataType]:
        if self.is_fitted:
            return [_KINDS[t] for t in self.kinds_]
        kinds = [inputs.schema[n].dtype for n in self.learned_from(inputs)]
        return [_wide(k) for k in kinds]

    def _outputs(self, group: tuple[str, ...], inputs: Inputs) -> list[tuple[str, str, int]]:
        """(output name, statistic, number of the value column, -1 for the row count)."""
        name, sep = self.group_name(group), self.name_sep
        out = [(f"{name}{sep}count", "count", -1)] if "count" in self.stats else []
        for i, value in enumerate(self.learned_from(inputs)):
            out += [(f"{name}{sep}{value}{sep}{s}", s, i) for s in self.stats if s != "count"]
        return out

    def finish(self, summary: dict[str, pa.Table], inputs: Inputs) -> None:
        """Make the groups ready to be looked up."""
        if not self.is_fitted:
            self.values_ = self.value_columns(inputs)
            names = {t: name for name, t in _KINDS.items()}
            self.kinds_ = [names[t] for t in self._dtypes(inputs)]
        self.groups_ = {self.group_name(g): g for g in inputs.groups}

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse what are no groups, value columns and kinds."""
        check_groups(state, at, self.key_counts(inputs), "values", extra=0)
        kinds = list_of(one_of(*_KINDS), len(state["values"]))
        kinds(state.get("kinds"), f"{at}.kinds")

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Look each row's group up."""
        self.require_fitted()
        out: dict[str, Any] = {}
        for group in inputs.groups:
            made = self._outputs(group, inputs)
            dtypes = self._dtypes(inputs)
            make = partial(_Statistics, keys=key_names(group), made=made, dtypes=dtypes)
            found = self.ready(self.group_name(group), make, inputs)
            out.update(found.look_up([frame.column(n) for n in group]))
        return pa.table(out)


class _Statistics:
    """The statistics of every group, and where each group's are."""

    def __init__(
        self,
        stored: SpilledTable,
        *,
        keys: list[str],
        made: list[tuple[str, str, int]],
        dtypes: list[pa.DataType],
    ) -> None:
        wanted = {*keys, *_needed(made)}
        table = stored.read([n for n in stored.schema.names if n in wanted])
        self.lookup = GroupLookup([table.column(k).combine_chunks() for k in keys])
        self.columns = {n: _statistic(table, stored, n, s, i, dtypes) for n, s, i in made}

    def look_up(self, keys: list[pa.ChunkedArray]) -> dict[str, pa.Array]:
        """The statistics of each row's group; null where it was never seen."""
        at = self.lookup.find(keys)
        places = pa.array(np.maximum(at, 0), mask=at < 0)
        return {name: values.take(places) for name, values in self.columns.items()}


def _needed(made: list[tuple[str, str, int]]) -> set[str]:
    """Columns of the table of groups that statistics are computed from."""
    names = {ROWS}
    for _, stat, i in made:
        columns: tuple[str, ...] = (stat,)
        if stat in ("std", "var", "mean", "sum"):
            columns = SUMS if stat in ("std", "var") else ("sum", "low")
        names |= {f"n{i}", *(f"{c}{i}" for c in columns)} if i >= 0 else set()
    return names


_KINDS = {"int": pa.int64(), "uint": pa.uint64(), "float": pa.float64()}


def _wide(dtype: pa.DataType | None) -> pa.DataType:
    if dtype is not None and pa.types.is_uint64(dtype):
        return pa.uint64()
    whole = dtype is not None and (pa.types.is_integer(dtype) or pa.types.is_boolean(dtype))
    return pa.int64() if whole else pa.float64()


def _stat_type(stat: str, source: pa.DataType) -> pa.DataType:
    if stat == "count":
        return pa.int32()
    return pa.float32() if stat in ("mean", "std", "var") else source


def _statistic(
    table: pa.Table, stored: SpilledTable, made: str, stat: str, i: int, dtypes: list[pa.DataType]
) -> pa.Array:
    """One statistic of every group, null where the group had no values."""
    if stat == "count":
        return table.column(ROWS).combine_chunks().cast(pa.int32())
    n = table.column(f"n{i}").to_numpy().astype(np.float64)
    target = _stat_type(stat, dtypes[i])
    if stat in ("var", "std"):
        total, low, *squares = (table.column(f"{k}{i}").to_numpy() for k in SUMS)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = spread_of(n, (total, low), tuple(squares)) / (n - 1)
            if pa.types.is_integer(dtypes[i]):
                values = spread_of_large(values, n, (total, low), tuple(squares))
            values = np.sqrt(values) if stat == "std" else values
        return _floats(values, n > 1, made, stat, target, stored, i)
    column = table.column(f"{'sum' if stat == 'mean' else stat}{i}").combine_chunks()
    if stat == "mean" or (stat == "sum" and not pa.types.is_integer(target)):
        values = column.to_numpy(zero_copy_only=False)
        values = values / np.maximum(1.0, n) if stat == "mean" else values
        return _floats(values, n > 0, made, stat, target, stored, i)
    if stat == "sum":
        exact = _whole(column.to_numpy(), table.column(f"low{i}").to_numpy(), target, made)
    else:
        exact = column.cast(target, safe=False)
    return pa.compute.if_else(pa.array(n > 0), exact, pa.scalar(None, target))


def _floats(
    values: Any, known: Any, made: str, stat: str, target: pa.DataType, stored: SpilledTable, i: int
) -> pa.Array:
    """Statistics as floats; it is an error if finite values have one that is not finite."""
    with np.errstate(over="ignore"):
        out = values.astype(target.to_pandas_dtype())
    beyond = known & ~np.isfinite(out)
    if beyond.any():
        ranges = stored.read([f"min{i}", f"max{i}"]).columns
        low, high = (c.cast(pa.float64(), safe=False).to_numpy() for c in ranges)
        beyond &= np.isfinite(low) & np.isfinite(high)
        if stat in ("std", "var"):  # the squares of equal values may overflow
            out[beyond & (low == high)] = 0.0
            beyond &= low != high
        if beyond.any():
            raise OperatorError(
                f"JoinGroupby: {made!r} of a group is beyond what {target} can hold: its values "
                f"reach from {low[beyond].min():.3g} to {high[beyond].max():.3g}; scale the column "
                "down first, for instance with LambdaOp"
            )
    return pa.array(out, mask=~known)


def _whole(high: Any, low: Any, target: pa.DataType, made: str) -> pa.Array:
    """Sums of whole numbers, which are kept as two floats."""
    if np.abs(high).max(initial=0.0) < 2.0**53:
        return pa.array(high.astype(np.int64)).cast(target)
    sums = whole_sums(high, low)
    try:
        return pa.array(sums, target)
    except OverflowError as e:
        raise OperatorError(
            f"JoinGroupby: {made!r} of a group is {max(sums, key=abs):,}, which {target} cannot "
            "hold; convert the column to float64 first, for instance with LambdaOp"
        ) from e
