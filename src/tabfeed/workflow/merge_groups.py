"""What a pass of a fit learned, in slots that many workers can merge at the same time.

Counts and statistics of groups, which may be large, have a slot for each column or group of
columns; whatever else an operator learned has one slot. A slot that is too large for a worker is
dealt into shares by hash of the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tabfeed.ops.base import Inputs, StatOperator
from tabfeed.ops.categorify import Categorify
from tabfeed.ops.graph.node import Node
from tabfeed.ops.group_base import KeyedOperator
from tabfeed.ops.median import FillMedian
from tabfeed.ops.state.counting import Counter
from tabfeed.ops.state.group_stats import GroupStats
from tabfeed.ops.state.memory import MemoryManager

__all__ = ["Slots"]

_LARGE = (Counter, GroupStats)
_LEARNS_LARGE = (Categorify, FillMedian, KeyedOperator)
Pass = list[Any]  # how many rows, and each operator's summary


class Slots:
    """Where each part of a pass goes: rows first, then for each node its columns and its rest.

    Parameters
    ----------
    nodes
        The learning nodes, each with its inputs.
    """

    def __init__(self, nodes: Sequence[tuple[Node, Inputs]]) -> None:
        self._nodes = [node for node, _ in nodes]
        self._places: list[tuple[int, str | None]] = []
        self.names = ["fit/rows"]
        for i, (node, inputs) in enumerate(nodes):
            named = [getattr(node.op, "name_sep", "_").join(g) for g in inputs.groups]
            columns = named if isinstance(node.op, _LEARNS_LARGE) else []
            self._places += [(i, None), *((i, c) for c in columns)]
            rest = named[0] if len(named) == 1 else f"{len(named)}_columns"
            self.names += [f"fit/{node.op.label}/{c}" for c in (rest, *columns)]

    def split(self, result: Pass) -> list[Any]:
        """A pass by slots; nothing but the rows where there are none."""
        rows, found = result
        if rows == 0:
            return [0, *[None] * len(self._places)]
        return [rows, *(self._part(found[i], i, column) for i, column in self._places)]

    def _part(self, summary: Any, index: int, column: str | None) -> Any:
        """A column's counts; for no column, all that no other slot has."""
        if not _by_column(summary):
            return summary if column is None else None
        if column is not None:
            return summary.get(column)
        own = {c for i, c in self._places if i == index}
        return {c: counts for c, counts in summary.items() if c not in own} or None

    def merge(self, slot: int, a: Any, b: Any) -> Any:
        """Two neighbouring parts of a slot."""
        if slot == 0:
            return a + b
        index, column = self._places[slot - 1]
        if column is not None:
            return a.join(b)
        op = self._nodes[index].op
        assert isinstance(op, StatOperator)
        return op.merge(a, b)

    def cut(self, slot: int, part: Any, shares: int) -> list[Any]:
        """A part in shares, where it can be cut."""
        if isinstance(part, _LARGE):
            return list(part.shares(shares))
        return [part, *[None] * (shares - 1)]

    def assemble(self, parts: Iterable[tuple[int, Any]], memory: MemoryManager) -> Pass:
        """A pass again, within a limit of memory; what is large is joined as it comes."""
        rows = 0
        found: list[Any] = [None] * len(self._nodes)
        for slot, part in parts:
            if slot == 0:
                rows = part
            elif part is not None:
                index, column = self._places[slot - 1]
                if column is None:
                    found[index] = {**part, **found[index]} if found[index] else part
                else:
                    found[index] = found[index] or {}
                    held = found[index].get(column)
                    mine = part.held_by(memory)
                    found[index][column] = mine if held is None else held.join(mine)
        return [rows, [self._in_order(i, summary) for i, summary in enumerate(found)]]

    def _in_order(self, index: int, summary: Any) -> Any:
        """A node's columns in their own order, whichever came first."""
        if summary is None:
            return {}
        if not _by_column(summary):
            return summary
        own = [c for i, c in self._places if i == index and c in summary]
        return {c: summary[c] for c in [*(c for c in summary if c not in own), *own]}


def _by_column(summary: Any) -> bool:
    """Whether a summary is large things by column, which can be joined each on its own."""
    if not isinstance(summary, dict) or not summary:
        return False
    return all(isinstance(value, _LARGE) for value in summary.values())
