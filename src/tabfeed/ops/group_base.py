"""What operators that learn statistics of groups have in common: names, fitting, looking up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.ops.base import Inputs, StatOperator
from tabfeed.ops.graph.node import to_polars
from tabfeed.ops.state.group_stats import GroupStats
from tabfeed.ops.state.memory import SpilledTable, require_room

__all__ = ["KeyedOperator"]

T = TypeVar("T")
_MAKING = threading.Lock()


class KeyedOperator(StatOperator):
    """Learns a table of groups for each group of columns."""

    eager = True
    dependencies_only_for_fit = True
    name_sep: str

    def value_columns(self, inputs: Inputs) -> list[str]:
        """The columns whose statistics are learned."""
        named = {d for d in self.dependencies if isinstance(d, str)}  # they may be keys too
        keys = set(inputs.names) - named
        return [n for n in inputs.schema.column_names if n not in keys]

    def group_name(self, group: tuple[str, ...]) -> str:
        """The name of a group."""
        return self.name_sep.join(group)

    def check_keys(self, inputs: Inputs) -> None:
        """Refuse lists as keys and anything but numbers as values."""
        for name in inputs.names:
            if inputs.schema[name].is_list:
                raise OperatorError(f"{self.label} cannot group by lists; column {name!r} is one")
        for name in self.value_columns(inputs):
            dtype = inputs.schema[name].dtype
            if dtype is None or pa.types.is_boolean(dtype) or pa.types.is_null(dtype):
                continue
            if not (
                pa.types.is_integer(dtype)
                or pa.types.is_floating(dtype)
                or pa.types.is_decimal(dtype)
            ):
                raise OperatorError(
                    f"{self.label}: column {name!r} is {dtype}; it must be a number"
                )

    def extra_keys(self, frame: pa.Table, inputs: Inputs) -> list[pl.Series]:
        """Further keys, behind those of each group."""
        return []

    def partial(self, frame: pa.Table, inputs: Inputs) -> dict[str, Any]:
        """Statistics of each group."""
        whole = to_polars(frame)
        values = [_value(whole[n]) for n in self.value_columns(inputs)]
        extra = self.extra_keys(frame, inputs)
        found: dict[str, Any] = {}
        for group in inputs.groups:
            keys = len(group) + len(extra)
            stats = GroupStats(keys, len(values), inputs.memory, apart=len(extra))
            stats.add([*(whole[n] for n in group), *extra], values)
            found[self.group_name(group)] = stats
        return found

    def large_parts(self, inputs: Inputs) -> list[str]:
        """The statistics of each group."""
        return [self.group_name(g) for g in inputs.groups]

    def learn(self, summary: Mapping[str, Any], inputs: Inputs) -> None:
        """Keep the groups as tables."""
        tables = {n: s.stored() if isinstance(s, GroupStats) else s for n, s in summary.items()}
        self._ready: dict[Any, Any] = {}
        super().learn(tables, inputs)

    def update(self, summary: dict[str, Any], inputs: Inputs) -> None:
        """Merge new groups into the kept tables."""
        old = {}
        for name, new in summary.items():
            old[name] = new.refilled(self.summary_[name], inputs.memory)
        self.learn(self.merge(old, summary), inputs)

    def ready(
        self, name: str, make: Callable[[SpilledTable], T], inputs: Inputs, kind: str = ""
    ) -> T:
        """What look-ups in the table of a group need, made of it at first use and held since."""
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


def _value(series: pl.Series) -> pl.Series:
    """A value column as a number."""
    return series if series.dtype.is_numeric() else series.cast(pl.Float64)
