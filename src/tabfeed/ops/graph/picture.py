"""A picture of a graph: Mermaid text, and SVG where a notebook can show it.

The SVG is drawn here rather than by graphviz, which many machines do not have: nodes in
rows, each just above what takes its columns, and lines that leave room for one another.
"""

from __future__ import annotations

from html import escape
from typing import TypeAlias

from tabfeed.ops.base import StatOperator
from tabfeed.ops.graph.node import Concat, Node, Selection, list_nodes

_HIGH, _GAP, _CHAR = 34, 46, 7.2

_Point: TypeAlias = tuple[float, float]
_Spot: TypeAlias = tuple[Node, Node, int]  # a node twice, or a line's two ends; and the row


class Picture:
    """A graph to look at. ``str(picture)`` is Mermaid; a notebook shows the SVG.

    Examples
    --------
    >>> from tabfeed import ops
    >>> print((["a"] >> ops.FillMissing()).graph)
    flowchart TD
      n0["a"]
      n1["FillMissing"]
      n0 --> n1
    """

    def __init__(self, output: Node) -> None:
        self.nodes = list_nodes(output)
        self.number = {node: i for i, node in enumerate(self.nodes)}

    def _text(self, node: Node) -> str:
        text = node.op.text if isinstance(node.op, Selection) else node.op.label
        text = "+" if isinstance(node.op, Concat) else text
        return text if len(text) <= 40 else text[:37] + "..."

    def to_mermaid(self) -> str:
        """As Mermaid text; dotted lines lead from columns needed beside the selected ones."""
        lines = ["flowchart TD"]
        for node, i in self.number.items():
            shape = ("([", "])") if isinstance(node.op, StatOperator) else ("[", "]")
            label = self._text(node).replace('"', "'")
            lines.append(f'  n{i}{shape[0]}"{label}"{shape[1]}')
        for node, i in self.number.items():
            lines += [f"  n{self.number[p]} --> n{i}" for p in node.parents]
            lines += [f"  n{self.number[d]} -.-> n{i}" for d in node.dependencies]
        return "\n".join(lines)

    def to_svg(self) -> str:
        """As SVG text."""
        row = self._rows()
        paths = {(a, b): _path(a, b, row) for b in self.nodes for a in b.sources}
        spots = {(n, n, row[n]) for n in self.nodes}.union(*paths.values())
        place, width = self._places(spots)
        shapes = [
            _line([place[spot] for spot in path], dashed=a in b.dependencies)
            for (a, b), path in paths.items()
        ]
        shapes += [self._box(n, place[n, n, row[n]]) for n in self.nodes]
        height = (max(row.values()) + 1) * (_HIGH + _GAP) + 10
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'font-family="sans-serif" font-size="12">{"".join(shapes)}</svg>'
        )

    def _rows(self) -> dict[Node, int]:
        """The row of each node, as near to what takes its columns as can be."""
        above: dict[Node, int] = {self.nodes[-1]: 0}
        for node in reversed(self.nodes):
            for source in node.sources:
                above[source] = max(above.get(source, 0), above[node] + 1)
        lowest = max(above.values())
        return {node: lowest - n for node, n in above.items()}

    def _places(self, spots: set[_Spot]) -> tuple[dict[_Spot, _Point], float]:
        """The middle of each spot, rows centred, and the width of it all."""
        rows: dict[int, list[_Spot]] = {}
        for spot in sorted(spots, key=lambda s: (s[2], self.number[s[0]], self.number[s[1]])):
            rows.setdefault(spot[2], []).append(spot)
        used = {y: sum(self._wide(s) + 20 for s in row) for y, row in rows.items()}
        width = max(used.values()) + 20
        place: dict[_Spot, _Point] = {}
        for y, row in rows.items():
            x = (width - used[y]) / 2 + 10
            for spot in row:
                place[spot] = (x + self._wide(spot) / 2, y * (_HIGH + _GAP) + 5 + _HIGH / 2)
                x += self._wide(spot) + 20
        return place, width

    def _wide(self, spot: _Spot) -> float:
        a, b, _ = spot
        return len(self._text(a)) * _CHAR + 24 if a is b else 0

    def _box(self, node: Node, middle: _Point) -> str:
        wide = self._wide((node, node, 0))
        x, y = middle[0] - wide / 2, middle[1] - _HIGH / 2
        fill = "#fde9c9" if isinstance(node.op, StatOperator) else "#e8eef7"
        return (
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{_HIGH}" rx="6" '
            f'fill="{fill}" stroke="#888"/><text x="{middle[0]:.0f}" y="{y + 21:.0f}" '
            f'text-anchor="middle">{escape(self._text(node))}</text>'
        )

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __str__(self) -> str:
        return self.to_mermaid()

    __repr__ = __str__


def _path(a: Node, b: Node, row: dict[Node, int]) -> list[_Spot]:
    """Where a line goes: from node to node, by a free spot in each row between them."""
    between = [(a, b, y) for y in range(row[a] + 1, row[b])]
    return [(a, a, row[a]), *between, (b, b, row[b])]


def _line(points: list[_Point], *, dashed: bool) -> str:
    text = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{text}" fill="none" stroke="#888"{dash}/>'
