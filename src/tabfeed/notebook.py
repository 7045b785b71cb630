"""HTML for notebooks: a headline and tables.

Colours are the notebook's own, so dark and light both work; lines are grey. Styles are inline,
since the page belongs to the notebook. All text is escaped here, and only here: column names come
from users' files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["box", "facts", "table"]

_MOST = 200
_CELL = 'style="text-align:left;padding:2px 14px 2px 0"'


def box(kind: str, facts: Iterable[str], *parts: str) -> str:
    """A headline of a kind and facts, above other HTML.

    Examples
    --------
    >>> box("Thing", ["2 rows", "<b>"], "<hr>")
    '<div style="font-size:13px"><div><b>Thing</b> · 2 rows · &lt;b&gt;</div><hr></div>'
    """
    line = " · ".join([f"<b>{escape(kind)}</b>", *map(escape, facts)])
    return f'<div style="font-size:13px"><div>{line}</div>{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, most: int = _MOST) -> str:
    """A table that scrolls; after `most` rows it is cut."""
    heads = "".join(f"<th {_CELL}>{escape(h)}</th>" for h in head)
    lines = [_row(row) for row in rows[:most]]
    if len(rows) > most:
        lines.append(_row([f"... and {len(rows) - most:,} more"]))
    return _scroll(
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>",
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values as a table without a head."""
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
