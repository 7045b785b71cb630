"""What one phase of a fit learned, cut into merge groups that workers merge at the same time.

The number of rows is the first group. Each `LargeState` part of an operator's summary
(`StatOperator.large_parts`) is a group of its own, and can be split further; a small summary is one
group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tabfeed.errors import OperatorError
from tabfeed.ops.base import Inputs, LargeState, StatOperator
from tabfeed.ops.graph.node import Node
from tabfeed.ops.state.memory import MemoryManager

__all__ = ["MergeGroups", "Summary"]

Summary = list[Any]  # how many rows, and each operator's summary


class MergeGroups:
    """The merge groups of some operators, and their names for people: ``fit/Categorify/C1``.

    Parameters
    ----------
    nodes
        The learning nodes, each with its inputs.
    """

    def __init__(self, nodes: Sequence[tuple[Node, Inputs]]) -> None:
        self._ops: list[StatOperator] = []
        self._parts: list[list[str]] = []
        self._groups: list[tuple[int, str | None]] = []  # number of the operator, name of the part
        self.names = ["fit/rows"]
        for number, (node, inputs) in enumerate(nodes):
            assert isinstance(node.op, StatOperator)
            parts = list(dict.fromkeys(node.op.large_parts(inputs)))
            self._ops.append(node.op)
            self._parts.append(parts)
            self._groups += [(number, part) for part in parts] or [(number, None)]
            columns = inputs.names[0] if len(inputs.names) == 1 else f"{len(inputs.names)}_columns"
            self.names += [f"fit/{node.op.label}/{name}" for name in parts or [columns]]

    def hold(self, number: int, summary: Any, memory: MemoryManager) -> None:
        """Count an operator's summary of one partition against a memory limit."""
        parts = self._parts[number]
        if not parts:
            return
        if not isinstance(summary, dict) or set(summary) != set(parts):
            found = list(summary) if isinstance(summary, dict) else type(summary).__name__
            raise OperatorError(
                f"large_parts() names {parts}, but partial() returned {found}; it must return a "
                "dict with these keys"
            )
        for name in parts:
            if not isinstance(summary[name], LargeState):
                raise OperatorError(
                    f"large_parts() names {name!r}, but partial() returned "
                    f"{type(summary[name]).__name__} there, which is no tabfeed.ops.LargeState"
                )
            memory.hold(summary[name])

    def split(self, result: Summary) -> list[Any]:
        """What each group has of a result; None where there were no rows."""
        rows, summaries = result
        if rows == 0:
            return [0, *[None] * len(self._groups)]
        return [
            rows,
            *(summaries[i] if part is None else summaries[i][part] for i, part in self._groups),
        ]

    def merge(self, group: int, a: Any, b: Any) -> Any:
        """What a group has of two neighbouring results, merged."""
        if group == 0:
            return a + b
        number, part = self._groups[group - 1]
        return self._ops[number].merge(a, b) if part is None else a.join(b)

    def cut(self, group: int, value: Any, count: int) -> list[Any]:
        """A group's value in hash partitions, if it is large; else it is the first of them."""
        if group and self._groups[group - 1][1] is not None:
            return list(value.split(count))
        return [value, *[None] * (count - 1)]

    def assemble(self, values: Iterable[tuple[int, Any]], memory: MemoryManager) -> Summary:
        """One result from the values of all groups, joined as they come, within a memory limit."""
        rows = 0
        found: list[Any] = [{} for _ in self._ops]
        for group, value in values:
            if group == 0:
                rows = value
            elif value is not None:
                number, part = self._groups[group - 1]
                if part is None:
                    found[number] = value
                    continue
                value.memory = memory
                held = found[number].get(part)
                found[number][part] = joined = value if held is None else held.join(value)
                memory.hold(joined)
                memory.settle()
        ordered = [
            {p: summary[p] for p in parts if p in summary} if parts else summary
            for parts, summary in zip(self._parts, found, strict=True)
        ]
        return [rows, ordered]
