"""What pages say of names, messages and operators is so in the code."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tabfeed import errors, ops
from tests.docs.pages import DOCS, ROOT, blocks, name_of, pages

SOURCE = ROOT / "src" / "tabfeed"
OF_A_USER = {"train.py"}  # files on pages that are no files of ours
MESSAGES = [b.text.rstrip("\n") for b in blocks(DOCS / "troubleshooting.md", "text")]


# -- names ---------------------------------------------------------------------------


def resolve(path: str) -> Any:
    """What a dotted name stands for."""
    words = path.split(".")
    count = max(n for n in range(1, len(words) + 1) if _is_module(words[:n]))
    found: Any = importlib.import_module(".".join(words[:count]))
    for word in words[count:]:
        found = getattr(found, word)
    return found


def _is_module(words: list[str]) -> bool:
    place = ROOT / "src" / Path(*words)
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def frameworks_of(path: str) -> list[str]:
    """What must be installed to import it."""
    tensorflow = ["tensorflow"] if ".tensorflow" in path else []
    return tensorflow + [f for f in ("torch", "jax", "keras", "lightning", "fastai")
                         if f".{f}" in path]  # fmt: skip


def import_or_skip(path: str) -> Any:
    """The object, or a skip."""
    for framework in frameworks_of(path):
        pytest.importorskip(framework)
    return resolve(path)


def names_in_migration() -> list[str]:
    rows = re.findall(r"^\|.*\|$", (DOCS / "migration.md").read_text("utf-8"), re.M)
    return sorted({n for row in rows for n in re.findall(r"`(tabfeed(?:\.\w+)+)`", row)})


@pytest.mark.parametrize("name", names_in_migration())
def test_names_to_move_to_exist(name: str) -> None:
    import_or_skip(name)


def test_every_operator_has_a_worked_table() -> None:
    text = (DOCS / "operators.md").read_text("utf-8")
    used = set(re.findall(r"ops\.(\w+)\(", text)) | set(re.findall(r"^### (\w+)", text, re.M))
    kinds = {
        n for n in ops.__all__
        if isinstance(getattr(ops, n), type) and issubclass(getattr(ops, n), ops.Operator)
    }  # fmt: skip
    tags = {"TagAsItemID", "TagAsUserFeatures", "TagAsItemFeatures"}  # described with TagAsUserID
    assert kinds - {"Operator", "StatOperator", "UDF"} - tags <= used
    assert all(f"`{name}`" in text for name in tags)


# -- messages ------------------------------------------------------------------------


def templates() -> dict[str, list[str]]:
    """For each class of errors, the messages the code may give, as regular expressions."""
    found = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for scope, call in _calls(ast.parse(path.read_text("utf-8")), ""):
            name = ast.unparse(call.func).rsplit(".", 1)[-1]
            name = scope if name == "__init__" else name
            names = [name]
            if name == "warn" and len(call.args) > 1:
                names = [ast.unparse(call.args[1])]
            elif name == "error":  # of a type that a caller chose
                names = errors.__all__
            for argument in call.args:
                if pattern := _pattern(argument):
                    for kind in set(names) & set(errors.__all__):
                        found[kind].append(pattern)
    message = "message = f'{feature} need an optional library: pip install \"tabfeed[{extra}]\"'"
    assert message in (SOURCE / "errors.py").read_text("utf-8")
    found["MissingExtraError"].append(r'.+ need an optional library: pip install "tabfeed\[\w+\]"')
    return dict(found)


def _calls(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.ClassDef) else scope
        if isinstance(child, ast.Call):
            yield inner, child
        yield from _calls(child, inner)


def _pattern(node: ast.expr) -> str | None:
    """A string as an expression, its values left open; None if hardly a word is fixed."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    fixed = [p.value if isinstance(p, ast.Constant) else None for p in parts]
    words = "".join(f for f in fixed if isinstance(f, str))
    if not all(f is None or isinstance(f, str) for f in fixed) or len(words) < 15:
        return None
    return "".join(".*" if f is None else re.escape(f) for f in fixed)


TEMPLATES = templates()


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_those_of_the_code(message: str) -> None:
    kind, _, words = message.partition(": ")
    assert kind in errors.__all__, f"{kind} is no error of tabfeed's"
    assert any(re.fullmatch(t, words, re.S) for t in TEMPLATES[kind]), "no such message in the code"


def test_a_message_that_changed_is_noticed() -> None:
    words = "Normalize was not fitted; call workflow.fit(dataset) before transform"
    assert not any(re.fullmatch(t, words) for t in TEMPLATES["NotFittedError"])


def test_there_are_messages_of_most_kinds() -> None:
    kinds = {m.partition(":")[0] for m in MESSAGES}
    bases = {"TabfeedError", "DatasetError", "SkippedFileWarning"}
    assert set(errors.__all__) - bases == kinds


# -- settings ------------------------------------------------------------------------


def test_environment_variables_are_named_as_in_the_code() -> None:
    code = "\n".join(p.read_text("utf-8") for p in SOURCE.rglob("*.py"))
    pages = "\n".join(p.read_text("utf-8") for p in DOCS.rglob("*.md"))
    assert set(re.findall(r"\bTABFEED_\w+", pages)) <= set(re.findall(r"\bTABFEED_\w+", code))


def test_files_named_on_a_page_exist() -> None:
    """Each ``path.py`` on each page is the end of a path in the repository."""
    there = [f"/{p.relative_to(ROOT).as_posix()}" for p in _sources()]
    wrong = []
    for page in pages():
        for name in re.findall(r"[\w./-]*\w\.py\b", page.read_text("utf-8")):
            ending = f"/{name.lstrip('./')}"
            if name not in OF_A_USER and not any(path.endswith(ending) for path in there):
                wrong.append(f"{name_of(page)} names {name}")
    assert not wrong


def _sources() -> Iterator[Path]:
    for folder in ("src", "tests", "benchmarks", "docs", "examples"):
        yield from (ROOT / folder).rglob("*.py")
