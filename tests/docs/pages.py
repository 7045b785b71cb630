"""The pages of the documentation, cut into blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOT_RUN = re.compile(r"# Not run in the tests: \S.*")
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<kind>[^\n`]*)\n(?P<text>.*?)^(?P=fence)$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what is in it, and the line it starts at."""

    page: Path
    kind: str
    text: str
    line: int

    @property
    def marked(self) -> bool:
        """Whether its first line says, for the reader too, why it is not run."""
        return bool(NOT_RUN.fullmatch(self.text.split("\n", 1)[0]))

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, continued ones joined."""
        whole = self.text.replace("\\\n", " ")
        return [line for line in map(str.strip, whole.splitlines()) if line and line[0] != "#"]


def pages() -> list[Path]:
    """Every page, and what a reader meets first in the repository."""
    beside = ("README.md", "CONTRIBUTING.md", "examples/README.md")
    return [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in beside)]


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, kind: str | None = None) -> list[Block]:
    """The page's blocks, of one language if asked."""
    text = page.read_text("utf-8")
    found = [
        Block(page, m["kind"].strip(), m["text"], text.count("\n", 0, m.start()) + 2)
        for m in FENCE.finditer(text)
    ]
    return [b for b in found if kind is None or b.kind == kind]
