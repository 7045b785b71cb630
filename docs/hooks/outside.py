"""Pages for what lies outside docs/: examples, benchmark results, changelog, contributing.

A page links to such a file as it lies in the repository (``../examples/demo.py``), so that the link
works where the source is read too. Here the file becomes a page or a file of the site, and the link
is turned to it. A picture that has not been made yet is left out.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples/index.md",
}
NOTEBOOKS, RESULTS = "examples/notebooks", "benchmarks/results"
CELL = re.compile(r"^# %%", re.MULTILINE)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures."""
    for source, uri in PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, uri, content=text))
    for path in examples():
        files.append(File.generated(config, f"examples/{path.stem}.md", content=example(path)))
    for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        files.append(File.generated(config, f"{NOTEBOOKS}/{path.name}", abs_src_path=str(path)))
    for path in results():
        uri = f"results/{path.name}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that lead out of docs/ to what stands for it here."""
    uri = page.file.src_uri
    sources = {page: source for source, page in PAGES.items()}
    here = posixpath.dirname(sources.get(uri, f"docs/{uri}"))

    def turn(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        found = site_uri(posixpath.normpath(posixpath.join(here, target)))
        if found is None:
            return match[0]
        if found == "":
            return "" if mark else text
        link = posixpath.relpath(found, posixpath.dirname(uri) or ".")
        return f"{mark}[{text}]({link}{anchor or ''})"

    return LINK.sub(turn, markdown)


def site_uri(path: str) -> str | None:
    """Where a file of the repository is in the site: "" for nowhere yet, None if it is in docs/."""
    if path in PAGES:
        return PAGES[path]
    folder, name = posixpath.split(path)
    if folder == "examples" and name.endswith(".py") and (ROOT / path).exists():
        return f"examples/{posixpath.splitext(name)[0]}.md"
    if folder == NOTEBOOKS and (ROOT / path).exists():
        return path
    if folder == RESULTS:
        return f"results/{name}" if (ROOT / path).exists() else ""
    if folder == "docs" or folder.startswith("docs/"):
        return posixpath.relpath(path, "docs")
    return None


def examples() -> list[Path]:
    """The scripts of examples/."""
    return sorted((ROOT / "examples").glob("*.py"))


def results() -> list[Path]:
    """Pictures and figures of benchmarks."""
    folder = ROOT / RESULTS
    return sorted(p for p in folder.glob("*") if p.suffix in (".svg", ".png", ".json"))


def example(path: Path) -> str:
    """A script as a page: what it says of itself, then its cells, or all of the code at once."""
    text = path.read_text("utf-8")
    told = ast.get_docstring(ast.parse(text)) or ""
    body = text.split('"""', 2)[2].strip() if told else text
    made = ROOT / NOTEBOOKS / f"{path.stem}.ipynb"
    also = f"The same [as a notebook](notebooks/{made.name})." if made.exists() else ""
    parts = [f"# {path.name}", told, also, *map(_cell, CELL.split(body))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(cell: str) -> str:
    """Prose as prose, code as code."""
    kind, _, text = cell.partition("\n")
    if kind.strip() == "[markdown]":
        return re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE)
    code = (text if not kind.strip() else cell).strip("\n")
    return f"```python\n{code}\n```" if code else ""
