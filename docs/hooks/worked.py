"""Tables of what goes into an operator and what comes out, made by running the page's own code.

A block of operators.md sets ``data`` and ``graph``, and ``new`` where other rows are transformed
than those learned from. It is run when the site is built, and the tables are put below it.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from tabfeed import Dataset, Schema, Workflow
from tabfeed.schema.dtypes import format_type

PAGE = "operators.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put tables below each block of the page."""
    return with_tables(markdown) if page.file.src_uri == PAGE else markdown


def with_tables(markdown: str) -> str:
    """The page with what its blocks make; the first block holds the imports of all."""
    imports: dict[str, Any] = {}

    def run(match: re.Match[str]) -> str:
        names = {k: v for k, v in imports.items() if k not in ("data", "new", "graph")}
        exec(compile(match[1], PAGE, "exec"), names)
        if not imports:
            imports.update(names)
        return match[0] + (tables(names) if "graph" in names else "")

    return BLOCK.sub(run, markdown)


def tables(names: dict[str, Any]) -> str:
    """What goes in and what comes out, side by side."""
    workflow = Workflow(names["graph"])
    out = workflow.fit_transform(Dataset(names["data"])).to_arrow()
    shown = {"goes in": Dataset(names["data"])}
    if "new" in names:
        shown = {"learned from": shown["goes in"], "goes in": Dataset(names["new"])}
        out = workflow.transform(shown["goes in"]).to_arrow()
    parts = [_table(title, d.to_arrow().to_pylist(), d.schema) for title, d in shown.items()]
    parts.append(_table("comes out", out.to_pylist(), workflow.output_schema))
    return '\n<div class="worked">\n' + "\n".join(parts) + "\n</div>\n"


def _table(title: str, rows: list[dict[str, Any]], schema: Schema) -> str:
    head = "".join(f"<th>{escape(c.name)}<br><small>{_kind(c)}</small></th>" for c in schema)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_show(row[c.name]))}</td>" for c in schema) + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div><p>{title}</p>{table}</div>"


def _kind(column: Any) -> str:
    tags = ", ".join(sorted(str(getattr(t, "value", t)) for t in column.tags))
    return escape(format_type(column.dtype)) + (f"<br>{escape(tags)}" if tags else "")


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_show, value)) + "]"
    return "null" if value is None else str(value)
