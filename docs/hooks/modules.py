"""A table of every module and the first line of what it says of itself."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[2] / "src" / "tabfeed"
PAGE, MARK = "modules.md", "<!-- modules -->"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the tables in place of the mark."""
    return markdown.replace(MARK, modules()) if page.file.src_uri == PAGE else markdown


def modules() -> str:
    """A table for each folder."""
    folders = sorted({p.parent for p in SOURCE.rglob("*.py")})
    return "\n\n".join(_table(folder) for folder in folders)


def _table(folder: Path) -> str:
    name = folder.relative_to(SOURCE.parent).as_posix()
    head = _first_line(folder / "__init__.py")
    rows = [
        f"| `{path.name}` | {_first_line(path)} |"
        for path in sorted(folder.glob("*.py"))
        if path.name != "__init__.py"
    ]
    return f"## {name}/\n\n{head}\n\n| file | holds |\n| --- | --- |\n" + "\n".join(rows)


def _first_line(path: Path) -> str:
    told = ast.get_docstring(ast.parse(path.read_text("utf-8"))) if path.exists() else ""
    line = (told or "").split("\n\n")[0].replace("\n", " ")
    return line.replace("``", "`").replace("|", "\\|")
