"""Every block of Python of every page runs, in order, each page in a folder of its own.

All in this process: what takes longest is to import the frameworks. A block that is not run says
why in its first line, ``# Not run in the tests: ...``, where the reader sees it too.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.pages import Block, blocks, name_of, pages

RUNNABLE = [p for p in pages() if any(not b.marked for b in blocks(p, "python"))]
ROWS = 4_000
KINDS = {"python", "sh", "text", ""}
FRAMEWORKS = "accelerate distributed fastai jax keras lightning tensorflow tokenizers torch"
FRAMEWORKS = [*FRAMEWORKS.split(), "transformers"]


def needed(page: Path) -> set[str]:
    """The frameworks that a page imports, itself or through us."""
    code = "\n".join(b.text for b in blocks(page, "python"))
    named = {f for f in FRAMEWORKS if re.search(rf"^\s*(import|from) {f}\b", code, re.M)}
    return named | set(re.findall(r"from tabfeed\.loader\.(torch|jax|keras|tensorflow)\b", code))


def run(block: Block, module: ModuleType) -> None:
    """Execute a block; line numbers in a traceback are those of the page."""
    code = "\n" * (block.line - 1) + block.text
    exec(compile(code, str(block.page), "exec", dont_inherit=True), vars(module))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fewer rows than a page makes, and one thread for torch: the tests share their cores."""
    from tabfeed import datagen

    make = datagen.criteo

    def criteo(out: Any, rows: int = 1000, **options: Any) -> Any:
        return make(out, min(rows, ROWS), **options)

    monkeypatch.setattr(datagen, "criteo", criteo)
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(threads)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some frameworks leave settings in the environment, and Accelerate a state in the process."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.mark.usefixtures("alone", "small")
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
@pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning",  # Keras on NumPy 2
    "ignore::DeprecationWarning:fastai",
    "ignore::DeprecationWarning:torch",
    "ignore:.isinstance.treespec, LeafSpec.:FutureWarning",  # Lightning on this torch
    "ignore::UserWarning:lightning",  # it advises more workers
    "ignore::UserWarning:torch",
)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in sorted(needed(page)):
        pytest.importorskip(framework)
    module = ModuleType(f"page_{page.stem}")  # what it defines can be imported, and so be saved
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    ran = [run(block, module) for block in blocks(page, "python") if not block.marked]
    assert ran


def test_nothing_is_left_out() -> None:
    """Each block is run, checked, or says why not; no language is one we do not know."""
    for page in pages():
        for block in blocks(page):
            where = f"{name_of(page)}, line {block.line}"
            assert block.kind in KINDS, f"{where}: blocks of {block.kind!r} are not looked at"
            looks = re.search(r"^(import|from) \w+|^\$ |^(pip|make|tabfeed) ", block.text, re.M)
            assert block.kind or not looks, f"{where}: code without a language is not run"
        text = page.read_text("utf-8")
        fences = len(re.findall(r"^\s*```", text, re.M))
        assert fences == 2 * len(blocks(page)), f"{name_of(page)}: a block that is not found"


def test_a_mark_needs_a_reason() -> None:
    page = Path("page.md")
    assert Block(page, "python", "# Not run in the tests: it needs a GPU.\nx = 1\n", 1).marked
    assert not Block(page, "python", "# Not run in the tests:\nx = 1\n", 1).marked
    assert not Block(page, "python", "x = 1\n# Not run in the tests: why\n", 1).marked
