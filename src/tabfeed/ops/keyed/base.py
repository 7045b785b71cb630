"""The base of operators that learn statistics by key, and finding a key's row in a table.

`KeyedOperator` gathers `GroupStats` for each group of columns, within the memory limit of a fit,
and saves, restores and updates their tables. What is left to an operator: which columns it learns
from (its `dependencies`), which columns it makes, and how it makes them of the table, of which
`ready` keeps what look-ups need. `JoinGroupby` is a short one.

`GroupStats` has row counts, and sums and ranges of numbers. An operator that learns something else
by key, such as the latest value, is a `StatOperator` with a `LargeState` of its own, and finds its
keys with `GroupLookup`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.ops.base import Inputs, StatOperator
from tabfeed.ops.frames import require_numeric, to_polars
from tabfeed.ops.keyed.group_stats import GroupStats
from tabfeed.ops.state.keys import CombinationFinder, Finder, Positions, base_type, plain_array
from tabfeed.ops.state.memory import SpilledTable, require_room

T = TypeVar("T")
_MAKING = threading.Lock()


class KeyedOperator(StatOperator):
    """Learns a table of groups for each group of columns."""

    eager = True
    dependencies_only_for_fit = True
    name_sep: str
    # What is saved beside the tables, as attributes with _ behind; first the columns learned from.
    kept: ClassVar[tuple[str, ...]]

    def value_columns(self, inputs: Inputs) -> list[str]:
        """The columns whose statistics are learned."""
        named = {d for d in self.dependencies if isinstance(d, str)}  # they may be keys too
        keys = set(inputs.names) - named
        return [n for n in inputs.schema.column_names if n not in keys]

    def learned_from(self, inputs: Inputs) -> list[str]:
        """The same once fitted, when the data may no longer have them."""
        known = getattr(self, f"{self.kept[0]}_") if self.is_fitted else self.value_columns(inputs)
        return list(known)

    def group_name(self, group: tuple[str, ...]) -> str:
        """The name of a group."""
        return self.name_sep.join(group)

    def key_counts(self, inputs: Inputs) -> dict[str, int]:
        """How many keys each group has, by its name."""
        return {self.group_name(g): len(g) for g in inputs.groups}

    def check_keys(self, inputs: Inputs) -> None:
        """Refuse lists as keys and anything but numbers as values."""
        for name in inputs.names:
            if inputs.schema[name].is_list:
                raise OperatorError(f"{self.label} cannot group by lists; column {name!r} is one")
        values = [inputs.schema[n] for n in self.value_columns(inputs)]
        require_numeric(self, values, lists=False)

    def extra_keys(self, frame: pa.Table, inputs: Inputs) -> list[pl.Series]:
        """Further keys, behind those of each group."""
        return []

    def partial(self, frame: pa.Table, inputs: Inputs) -> dict[str, Any]:
        """Statistics of each group."""
        whole = to_polars(frame)
        found = [whole[n] for n in self.value_columns(inputs)]
        values = [v if v.dtype.is_numeric() else v.cast(pl.Float64) for v in found]
        extra = self.extra_keys(frame, inputs)
        summary: dict[str, Any] = {}
        for group in inputs.groups:
            keys = len(group) + len(extra)
            stats = GroupStats(keys, len(values), inputs.memory, apart=len(extra))
            stats.add([*(whole[n] for n in group), *extra], values)
            summary[self.group_name(group)] = stats
        return summary

    def large_parts(self, inputs: Inputs) -> list[str]:
        """The statistics of each group."""
        return [self.group_name(g) for g in inputs.groups]

    def learn(self, summary: Mapping[str, Any], inputs: Inputs) -> None:
        """Keep the groups as tables."""
        tables = {n: s.stored() if isinstance(s, GroupStats) else s for n, s in summary.items()}
        self._ready: dict[Any, Any] = {}
        super().learn(tables, inputs)

    def state(self) -> dict[str, Any]:
        """The tables of groups, and what they are of."""
        return {**super().state(), **{k: getattr(self, f"{k}_") for k in self.kept}}

    def restore(self, state: Mapping[str, Any], inputs: Inputs) -> None:
        """Take the tables back."""
        for name in self.kept:
            setattr(self, f"{name}_", list(state[name]))
        self.summary_ = state["summary"]
        self.learn(state["summary"], inputs)

    def update(self, summary: dict[str, Any], inputs: Inputs) -> None:
        """Merge new groups into the kept tables."""
        old = {}
        for name, new in summary.items():
            old[name] = new.refilled(self.summary_[name], inputs.memory)
        merged = self.merge(old, summary)
        inputs.memory.settle()
        self.learn(merged, inputs)

    def ready(
        self, name: str, make: Callable[[SpilledTable], T], inputs: Inputs, kind: str = ""
    ) -> T:
        """What look-ups in the table of a group need; made at first use, then kept."""
        if (name, kind) not in self._ready:
            with _MAKING:
                if (name, kind) not in self._ready:
                    stored = self.summary_[name]
                    what = f"{self.label}: the table of {name!r} ({stored.num_rows:,} rows)"
                    if stored.on_disk:
                        require_room(stored.nbytes, inputs.memory, what)
                    self._ready[name, kind] = make(stored)
        made: T = self._ready[name, kind]
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ready": {}}


class GroupLookup:
    """Finds the row of a table that belongs to a combination of keys."""

    def __init__(self, keys: list[pa.Array]) -> None:
        self._types = [k.type for k in keys]
        self._null = -1
        if len(keys) == 1 and not pa.types.is_null(keys[0].type):
            nulls = np.flatnonzero(keys[0].is_null().to_numpy(zero_copy_only=False))
            self._null = int(nulls[0]) if len(nulls) else -1
            self._rows = np.flatnonzero(keys[0].is_valid().to_numpy(zero_copy_only=False))
            self._finder = Finder.of([keys[0].drop_null()])
        else:
            self._finder = CombinationFinder(keys)

    def find(self, columns: list[pa.ChunkedArray]) -> Positions:
        """Row of each combination, -1 where it is unknown."""
        keys = [_key(c, t) for c, t in zip(columns, self._types, strict=True)]
        if isinstance(self._finder, CombinationFinder):
            return self._finder.find(keys)
        found = self._finder.find([keys[0].drop_null()])
        if self._null >= 0:
            found = np.where(found >= 0, np.take(self._rows, found, mode="clip"), -1)
        if not keys[0].null_count:
            return found
        out = np.full(len(keys[0]), self._null, np.int64)
        out[keys[0].is_valid().to_numpy(zero_copy_only=False)] = found
        return out


def _key(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.Array:
    if not pa.types.is_null(dtype):
        return plain_array(column, dtype)
    array = plain_array(column, base_type(column.type))  # only nulls were seen, and are known
    return pa.nulls(len(array)) if array.null_count == len(array) else array
