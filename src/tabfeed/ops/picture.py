"""A picture of a graph: Mermaid text, and SVG where a notebook can show it.

The SVG is drawn here rather than by graphviz, which many machines do not have: nodes in
rows by depth, straight lines between them.
"""

from __future__ import annotations

from html import escape

from tabfeed.ops.base import StatOperator
from tabfeed.ops.node import Concat, Node, Selection, iter_nodes

__all__ = ["Picture"]

_HIGH, _GAP, _CHAR = 34, 46, 7.2


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
        self.nodes = list(iter_nodes(output))
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
        depth: dict[Node, int] = {}
        for node in self.nodes:
            depth[node] = max((depth[s] + 1 for s in node.sources), default=0)
        ranks: list[list[Node]] = [[] for _ in range(max(depth.values()) + 1)]
        for node in self.nodes:
            ranks[depth[node]].append(node)
        wide = {n: len(self._text(n)) * _CHAR + 24 for n in self.nodes}
        rows = [sum(wide[n] + 20 for n in rank) for rank in ranks]
        width, height = max(rows) + 20, len(ranks) * (_HIGH + _GAP) + 10
        place: dict[Node, tuple[float, float]] = {}
        for y, (rank, row) in enumerate(zip(ranks, rows, strict=True)):
            x = (width - row) / 2 + 10
            for node in rank:
                place[node] = (x, y * (_HIGH + _GAP) + 5)
                x += wide[node] + 20
        shapes = [self._line(s, n, place, wide) for n in self.nodes for s in n.sources]
        shapes += [self._box(n, place[n], wide[n]) for n in self.nodes]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'font-family="sans-serif" font-size="12">{"".join(shapes)}</svg>'
        )

    def _line(
        self, a: Node, b: Node, place: dict[Node, tuple[float, float]], wide: dict[Node, float]
    ) -> str:
        (xa, ya), (xb, yb) = place[a], place[b]
        dash = ' stroke-dasharray="4 3"' if a in b.dependencies else ""
        return (
            f'<line x1="{xa + wide[a] / 2:.0f}" y1="{ya + _HIGH:.0f}" x2="{xb + wide[b] / 2:.0f}" '
            f'y2="{yb:.0f}" stroke="#888"{dash}/>'
        )

    def _box(self, node: Node, at: tuple[float, float], wide: float) -> str:
        x, y = at
        fill = "#fde9c9" if isinstance(node.op, StatOperator) else "#e8eef7"
        return (
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{_HIGH}" rx="6" '
            f'fill="{fill}" stroke="#888"/><text x="{x + wide / 2:.0f}" y="{y + 21:.0f}" '
            f'text-anchor="middle">{escape(self._text(node))}</text>'
        )

    def _repr_svg_(self) -> str:
        return self.to_svg()

    def __str__(self) -> str:
        return self.to_mermaid()

    __repr__ = __str__
