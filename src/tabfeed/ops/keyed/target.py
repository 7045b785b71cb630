"""Target encoding: a category by the mean of the target in it, drawn towards the global mean."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.hashing import mix
from tabfeed.ops.base import Inputs
from tabfeed.ops.frames import as_list, float_type, to_polars
from tabfeed.ops.keyed.base import GroupLookup, KeyedOperator
from tabfeed.ops.keyed.group_stats import key_names
from tabfeed.ops.state.checks import check_groups
from tabfeed.ops.state.memory import SpilledTable
from tabfeed.schema import ColumnSchema, Schema, Tags

FOLD = "__fold__"


class TargetEncoding(KeyedOperator):
    """Encode groups of columns by the smoothed mean of a target.

    ``(sum + p_smooth * mean) / (count + p_smooth)``. Within ``fit_transform`` each row is encoded
    by the rows of the other folds, so that its own target does not leak into it; any later
    ``transform`` uses all that was learned. Null is a category; one never seen gets the mean.

    Parameters
    ----------
    target
        Column or columns to average; names or nodes.
    target_mean
        The global mean, if it is known; learned otherwise. A number, or one for each target.
    kfold
        Number of folds; 3 by default, 1 for none.
    fold_seed
        Chooses the folds; None takes the row number modulo `kfold`.
    p_smooth
        Weight of the global mean, in rows.
    out_col
        Names of the output columns; ``TE_<columns>_<target>`` by default.
    out_dtype
        Type of the result; float32 by default.
    name_sep
        Between the names of a group.
    drop_folds
        False also gives the fold of each training row, as ``__fold__``.
    split_out, split_every, cat_cache, out_path, on_host, tree_width
        Taken so that existing code runs; they have no effect.

    Examples
    --------
    >>> from tabfeed import Workflow
    >>> data = {"c": ["a", "a", "b", None], "y": [1, 0, 1, 1]}
    >>> node = ["c"] >> TargetEncoding("y", kfold=1, p_smooth=1, out_dtype="float64")
    >>> Workflow(node).fit(data).transform({"c": ["a", "b", None, "new"]})
    {'TE_c_y': array([0.58333333, 0.875     , 0.875     , 0.75      ])}
    """

    uses_row_numbers = True
    kept = ("targets",)

    def __init__(
        self,
        target: Any,
        target_mean: float | Mapping[str, float] | None = None,
        kfold: int | None = None,
        fold_seed: int | None = 42,
        p_smooth: float = 20,
        out_col: str | list[str] | None = None,
        out_dtype: Any = None,
        split_out: Any = None,
        split_every: Any = None,
        cat_cache: Any = "host",
        out_path: str | None = None,
        on_host: bool = True,
        name_sep: str = "_",
        drop_folds: bool = True,
        tree_width: Any = None,
    ) -> None:
        if kfold is not None and kfold < 1:
            raise ArgumentError(f"kfold is {kfold}; it must be 1 or more")
        if p_smooth < 0:
            raise ArgumentError(f"p_smooth is {p_smooth}; it must be 0 or more")
        self.target, self.target_mean, self.kfold = target, target_mean, kfold
        self.fold_seed, self.p_smooth, self.out_col = fold_seed, p_smooth, out_col
        self.out_dtype, self.name_sep, self.drop_folds = out_dtype, name_sep, drop_folds
        self.split_out, self.split_every, self.cat_cache = split_out, split_every, cat_cache
        self.out_path, self.on_host, self.tree_width = out_path, on_host, tree_width
        self._float = float_type(out_dtype, pa.float32())
        self._folds = 3 if kfold is None else kfold

    @property
    def dependencies(self) -> list[Any]:
        """The targets."""
        return as_list(self.target)

    def params(self) -> dict[str, Any]:
        """The arguments; the target is among the node's dependencies."""
        return {**super().params(), "target": None, "out_path": None}

    def output_schema(self, inputs: Inputs) -> Schema:
        """A float for each group and target, tagged continuous."""
        self.check_keys(inputs)
        names = [name for name, _, _ in self._outputs(inputs)]
        columns = [
            ColumnSchema(n, self._float, tags=(Tags.CONTINUOUS,), nullable=False) for n in names
        ]
        fold = [] if self.drop_folds else [ColumnSchema(FOLD, pa.uint8())]
        return Schema(columns + fold)

    def _outputs(self, inputs: Inputs) -> list[tuple[str, tuple[str, ...], int]]:
        """(output name, group, number of the target)."""
        targets = self.learned_from(inputs)
        made = [
            (f"TE_{self.group_name(g)}_{t}", g, i)
            for g in inputs.groups
            for i, t in enumerate(targets)
        ]
        if self.out_col is None:
            return made
        names = as_list(self.out_col)
        if len(names) != len(made):
            raise OperatorError(
                f"out_col names {len(names)} columns; there are {len(made)}: {made}"
            )
        return [(new, g, i) for new, (_, g, i) in zip(names, made, strict=True)]

    # -- folds --------------------------------------------------------------------

    def _fold(self, rows: int, inputs: Inputs) -> npt.NDArray[np.uint8]:
        """The fold of each row, by its number in the dataset."""
        numbers = np.arange(inputs.offset, inputs.offset + rows, dtype=np.uint64)
        if self.fold_seed is not None:
            with np.errstate(over="ignore"):
                numbers = mix(numbers + mix(np.full(1, self.fold_seed, np.uint64)))
        return (numbers % np.uint64(self._folds)).astype(np.uint8)

    def extra_keys(self, frame: pa.Table, inputs: Inputs) -> list[pl.Series]:
        """Statistics are kept fold by fold."""
        return [pl.Series(self._fold(frame.num_rows, inputs).astype(np.int64))]

    # -- fitting ------------------------------------------------------------------

    def finish(self, summary: dict[str, SpilledTable], inputs: Inputs) -> None:
        """The mean of everything; the tables of groups hold the rest."""
        if not self.is_fitted:
            self.targets_ = self.value_columns(inputs)
        self.groups_ = {self.group_name(g): g for g in inputs.groups}
        self.means_ = self._find_means(next(iter(summary.values())))

    def _find_means(self, stored: SpilledTable) -> dict[str, float]:
        given = self.target_mean
        totals = np.zeros((2, len(self.targets_)))
        for piece in stored.pieces() if stored.num_rows else ():
            for i in range(len(self.targets_)):
                totals[:, i] += [_floats(piece[f"{k}{i}"]).sum() for k in ("sum", "n")]
        for target, total in zip(self.targets_, totals[0], strict=True):
            if not np.isfinite(total):
                raise OperatorError(
                    f"TargetEncoding: the target {target!r} holds infinite values, so it has no "
                    "mean; limit it first, for instance with Clip"
                )
        if isinstance(given, int | float):
            return dict.fromkeys(self.targets_, float(given))
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(totals[1] > 0, totals[0] / totals[1], 0.0).tolist()
        return {**dict(zip(self.targets_, means, strict=True)), **(given or {})}

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse what are no groups and targets."""
        check_groups(state, at, self.key_counts(inputs), "targets", extra=1)

    # -- transforming -------------------------------------------------------------

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Encode each row."""
        self.require_fitted()
        fold = self._fold(frame.num_rows, inputs) if inputs.training else None
        out: dict[str, Any] = {}
        found: dict[tuple[str, ...], Any] = {}
        for name, group, i in self._outputs(inputs):
            if group not in found:
                found[group] = self._look_up(frame, group, fold, inputs)
            sums, counts = (x[i] for x in found[group])
            mean = self.means_[self.targets_[i]]
            with np.errstate(invalid="ignore", divide="ignore"):
                encoded = (sums + self.p_smooth * mean) / (counts + self.p_smooth)
            encoded = np.where(counts + self.p_smooth > 0, encoded, mean)
            out[name] = pa.array(encoded.astype(self._float.to_pandas_dtype()))
        if not self.drop_folds:
            out[FOLD] = pa.nulls(frame.num_rows, pa.uint8()) if fold is None else pa.array(fold)
        return pa.table(out)

    def _look_up(
        self,
        frame: pa.Table,
        group: tuple[str, ...],
        fold: npt.NDArray[np.uint8] | None,
        inputs: Inputs,
    ) -> tuple[list[Any], list[Any]]:
        """Sum and count of each row's category, without its own fold while training."""
        folds = self._folds if fold is not None else 1
        make = partial(_Sums, keys=key_names(group), targets=len(self.targets_), folds=folds)
        kind = "folds" if folds > 1 else ""
        sums = self.ready(self.group_name(group), make, inputs, kind)
        return sums.find([frame.column(n) for n in group], fold)


class _Sums:
    """Sum and count of each target, by key and by fold.

    The table has a row for each key and fold, those of a key next to each other. Folds that a key
    does not have count nothing.
    """

    def __init__(self, stored: SpilledTable, *, keys: list[str], targets: int, folds: int) -> None:
        names = [f"{kind}{i}" for kind in ("sum", "n") for i in range(targets)]
        fold = f"k{len(keys)}"
        table = stored.read([n for n in stored.schema.names if n in {*keys, fold, *names}])
        first = _starts(table, keys)
        self.lookup = GroupLookup([table.column(k).combine_chunks().filter(first) for k in keys])
        place = np.cumsum(first) - 1
        at = table.column(fold).to_numpy() if folds > 1 else np.zeros(len(place), np.int64)
        self.targets = targets
        self.by_fold = [np.zeros((folds, int(first.sum()))) for _ in names if len(place)]
        for values, name in zip(self.by_fold, names, strict=False):
            np.add.at(values, (at, place), _floats(table.column(name)))
        self.totals = [values.sum(axis=0) for values in self.by_fold]

    def find(
        self, columns: list[pa.ChunkedArray], fold: npt.NDArray[np.uint8] | None
    ) -> tuple[list[Any], list[Any]]:
        """Sum and count of each row's key but for `fold`; 0 and 0 for one never seen."""
        at = self.lookup.find(columns)
        known, at = at >= 0, np.maximum(at, 0)
        found = []
        for values, totals in zip(self.by_fold, self.totals, strict=True):
            row = totals[at]
            if fold is not None and len(values) > 1:
                row = row - values[fold, at]
            found.append(np.where(known, row, 0.0))
        found = found or [np.zeros(len(at))] * 2 * self.targets
        return found[: self.targets], found[self.targets :]


def _starts(table: pa.Table, keys: list[str]) -> npt.NDArray[np.bool_]:
    """Which rows have another key than the row before."""
    frame = to_polars(table.select(keys))
    new = frame.select(pl.any_horizontal(pl.all().ne_missing(pl.all().shift(1))))
    first = new.to_series().to_numpy().copy()
    first[:1] = True
    return np.asarray(first, bool)


def _floats(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(), np.float64)
