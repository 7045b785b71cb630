"""What docs/architecture.md says of the packages is so in the code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, blocks
from tests.test_house import LAYERS

SOURCE = ROOT / "src" / "tabfeed"
PAGE = DOCS / "architecture.md"
TEXT = PAGE.read_text("utf-8")
STARTS_THREADS = re.compile(r"\bThread\(|\(threading\.Thread\)|ThreadPoolExecutor\(|\bPopen\(")


def rows_under(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, cell by cell."""
    table = re.search(r"^\|.*\n\|[ |-]+\n((?:\|.*\n)+)", TEXT.split(f"## {heading}\n")[1], re.M)
    assert table
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()]


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def inside(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_every_package_has_its_line_in_the_tree() -> None:
    listed = [name for row in rows_under("The tree") for name in in_code(row[0])]
    there = {f"{inside(p.parent)}/" for p in SOURCE.rglob("__init__.py")} - {"./"}
    assert set(listed) - {"tabfeed/"} == there
    assert len(listed) == len(set(listed))


def test_the_types_are_classes_where_it_says() -> None:
    for types, places, _ in rows_under("Data flow"):
        names = [n for n in in_code(types) if "." not in n]
        files = [f for place in in_code(places) for f in (SOURCE / place).rglob("*.py")]
        code = "\n".join(f.read_text("utf-8") for f in files)
        for name in names:
            assert re.search(rf"^class {name}\b", code, re.M), f"{name} is not in {places}"


def test_the_order_of_imports_is_that_of_the_rules() -> None:
    assert [b.text.splitlines() for b in blocks(PAGE, "text")] == [LAYERS]


def test_threads_and_processes_are_started_where_it_says() -> None:
    listed = [name for row in rows_under("Threads and processes") for name in in_code(row[0])]
    code = {inside(p): p.read_text("utf-8") for p in SOURCE.rglob("*.py")}
    found = [name for name, text in code.items() if STARTS_THREADS.search(text)]
    assert {n for n in found if not n.startswith(tuple(listed))} == set()
    assert {p for p in listed if not any(n.startswith(p) for n in found)} == set()


def test_its_folders_and_pictures_exist() -> None:
    folders = {name for name in re.findall(r"`([a-z_/]+/)`", TEXT)}
    assert not [f for f in folders if not ((SOURCE / f).is_dir() or (ROOT / f).is_dir())
                and f != "tabfeed/"]  # fmt: skip
    drawing = (DOCS / "img" / "data_flow.svg").read_text("utf-8")
    paths = [p for line in re.findall(r'class="path"[^>]*>([^<]+)<', drawing)
             for p in re.findall(r"\b\w+/\w+", line)]  # fmt: skip
    assert len(paths) > 8
    assert not [p for p in paths if not list(SOURCE.glob(f"{p}*"))]


def test_polars_and_duckdb_are_used_where_it_says() -> None:
    code = {inside(p): p.read_text("utf-8") for p in SOURCE.rglob("*.py")}

    def importing(library: str) -> list[str]:
        return [n for n in code if re.search(rf"^\s*(import|from) {library}\b", code[n], re.M)]

    in_loader = [name for name in importing("polars") if name.startswith("loader/")]
    assert len(in_loader) == 1 and in_loader[0].startswith("loader/read/")
    assert not [n for n in importing("duckdb") if not n.startswith(("io/shuffle/", "ops/state/"))]
