"""Pieces of HTML for notebooks: a line that says what a thing is, and a table.

Colours are the notebook's own, so that dark and light both work; lines are grey, which does on
either. Styles are inline, since a notebook's page belongs to somebody else. Every text is escaped
here, and nowhere else: column names come from users' files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["box", "facts", "table"]

_MOST = 200
_CELL = 'style="text-align:left;padding:2px 14px 2px 0"'


def box(kind: str, said: Iterable[str], *parts: str) -> str:
    """What a thing is, in one line, above some HTML.

    Examples
    --------
    >>> box("Thing", ["2 rows", "<b>"], "<hr>")
    '<div style="font-size:13px"><div><b>Thing</b> · 2 rows · &lt;b&gt;</div><hr></div>'
    """
    line = " · ".join([f"<b>{escape(kind)}</b>", *map(escape, said)])
    return f'<div style="font-size:13px"><div>{line}</div>{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, most: int = _MOST) -> str:
    """A table that scrolls when it is long, and ends when it is very long."""
    heads = "".join(f"<th {_CELL}>{escape(h)}</th>" for h in head)
    lines = [_row(row) for row in rows[:most]]
    if len(rows) > most:
        lines.append(_row([f"... and {len(rows) - most:,} more"]))
    return _scroll(
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>",
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for, as a table without a head."""
    lines = "".join(
        f'<tr><td {_CELL}><span style="opacity:.65">{escape(name)}</span></td>'
        f"<td {_CELL}>{escape(value)}</td></tr>"
        for name, value in rows
    )
    return f"<table><tbody>{lines}</tbody></table>"


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td {_CELL}>{escape(c)}</td>' for c in cells)}</tr>"


def _scroll(body: str) -> str:
    return (
        '<div style="max-height:26em;overflow:auto;margin-top:6px;'
        f'border-top:1px solid rgba(128,128,128,.4)">{body}</div>'
    )
