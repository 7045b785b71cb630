"""Public is what the reference documents: every name it ever had stays where it was.

`public_names.txt` has a line for each name that the reference documented before the inner modules
were arranged anew, followed by the members that its page shows. A line leaves the file when the
deprecation of its name ends.
"""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.pages import DOCS, blocks, name_of, pages

LINES = (Path(__file__).parent / "public_names.txt").read_text("utf-8").splitlines()
NAMES = {name: members for name, *members in map(str.split, LINES)}

# Old places: they warn, and give what stands at the new one.
MOVED = {
    "tabfeed.loader.gpu_options": "tabfeed.loader.options",
    "tabfeed.loader.keras_columns": "tabfeed.loader.keras.columns",
    "tabfeed.schema_formats": "tabfeed.schema.merlin",
}

# Second names, which the reference mentions in a sentence.
SECOND = {
    "tabfeed.Distributed",
    "tabfeed.loader.tensorflow.KerasSequenceLoader",
    "tabfeed.loader.tensorflow.KerasSequenceValidater",
    "tabfeed.ops.UDF",
    "tabfeed.set_client",
}

# Modules of which the reference documents a part; the rest serves the loaders.
PARTLY = {"tabfeed.loader.keras.columns", "tabfeed.loader.options"}

FRAMEWORKS = {"fastai", "jax", "keras", "lightning", "tensorflow", "torch"}


def new_place(name: str) -> str:
    """Where `name` stands today."""
    module, _, last = name.rpartition(".")
    return f"{MOVED.get(module, module)}.{last}"


def look_up(name: str) -> Any:
    """What ``from module import name`` gives, without the warning of an old place."""
    for framework in sorted(FRAMEWORKS & set(new_place(name).split("."))):
        pytest.importorskip(framework)
    module, _, last = name.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(module), last)


def documented() -> list[str]:
    """What the reference documents today."""
    pages = sorted((DOCS / "reference").glob("*.md"))
    return [n for p in pages for n in re.findall(r"^::: (\S+)", p.read_text("utf-8"), re.M)]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_and_its_members_are_where_they_were_documented(name: str) -> None:
    found = look_up(name)
    fields = getattr(found, "__dataclass_fields__", {})  # without a default, not on the class
    assert [m for m in NAMES[name] if not hasattr(found, m) and m not in fields] == []


@pytest.mark.parametrize("name", [n for n in NAMES if new_place(n) != n])
def test_an_old_place_warns_and_gives_the_same_object(name: str) -> None:
    new = look_up(new_place(name))
    module, _, last = name.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"has moved to {re.escape(new_place(name))}"):
        assert getattr(importlib.import_module(module), last) is new


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_page_imports_public_names_only(page: Path) -> None:
    public = {*documented(), *SECOND}
    modules = {name.rpartition(".")[0] for name in public}
    code = "\n".join(block.text for block in blocks(page, "python"))
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if str(node.module).split(".")[0] == "tabfeed"]
    used = {f"{node.module}.{alias.name}" for node in ours for alias in node.names}
    assert used <= public | modules


@pytest.mark.parametrize("module", MOVED)
def test_an_old_place_has_no_other_names(module: str) -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module(module).no_such_name  # noqa: B018


def test_the_reference_documents_them_at_their_new_place_and_once() -> None:
    assert len(documented()) == len(set(documented()))
    assert {new_place(name) for name in NAMES if name not in SECOND} <= set(documented())


@pytest.mark.parametrize("module", sorted({name.rpartition(".")[0] for name in documented()}))
def test_a_public_module_lists_what_the_reference_documents(module: str) -> None:
    here = {name for name in documented() if name.rpartition(".")[0] == module}
    for name in sorted(here):
        look_up(name)
    loaded = importlib.import_module(module)
    assert {name.rpartition(".")[2] for name in here} <= set(loaded.__all__)
    if module in PARTLY:
        return
    for name, value in ((name, getattr(loaded, name)) for name in loaded.__all__):
        same = [n for n in documented() if n.endswith(f".{name}") and look_up(n) is value]
        known = same or isinstance(value, ModuleType) or f"{module}.{name}" in SECOND
        assert known, f"document {name} in docs/reference, or leave it out of {module}.__all__"
