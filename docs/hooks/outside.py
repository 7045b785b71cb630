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
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
RESULTS = "benchmarks/results"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and pictures."""
    for source, uri in PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, uri, content=text))
    for path in examples():
        files.append(File.generated(config, f"examples/{path.stem}.md", content=example(path)))
    files.append(File.generated(config, "examples/index.md", content=list_of_examples()))
    for path in results():
        uri = f"results/{path.name}"
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that lead out of docs/ to what stands for it here."""
    uri = page.file.src_uri
    here = "" if uri in PAGES.values() else posixpath.join("docs", posixpath.dirname(uri))

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
    if folder == "examples" and name.endswith((".py", ".ipynb")) and (ROOT / path).exists():
        return f"examples/{posixpath.splitext(name)[0]}.md"
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
    """A script as a page: what it says of itself, then the code."""
    text = path.read_text("utf-8")
    told = ast.get_docstring(ast.parse(text)) or ""
    body = text.split('"""', 2)[2].strip() if told else text
    return f"# {path.name}\n\n{told}\n\n```python\n{body}\n```\n"


def list_of_examples() -> str:
    """One line for each script that can be run; the others are parts of these."""
    lines = []
    for path in examples():
        text = path.read_text("utf-8")
        if "__main__" not in text:
            continue
        told = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
        lines.append(f"| [{path.stem}]({path.stem}.md) | {told.replace('|', '/')} |")
    head = "# Examples\n\nScripts in `examples/`, each able to make its own data or to take yours."
    return head + "\n\n| script | what it shows |\n| --- | --- |\n" + "\n".join(lines) + "\n"
