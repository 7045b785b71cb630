"""Commands on the pages exist, take the options shown, and name files and extras that are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from tabfeed.cli import app
from tests.docs.pages import DOCS, ROOT, blocks, name_of, pages

PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
USAGE_ERROR = typer.BadParameter.__mro__[1]  # of the click that typer brings
COMMANDS = [
    pytest.param(command, id=f"{name_of(page)}:{block.line}: {command[:50]}")
    for page in pages()
    for block in blocks(page, "sh")
    if not block.marked
    for command in block.commands
]


def check(command: str) -> None:
    """Raise unless the command could be run."""
    words = [w for w in shlex.split(command, comments=True) if not re.match(r"[A-Z_]+=", w)]
    program, arguments = words[0].rsplit("/", 1)[-1], words[1:]
    if program == "tabfeed":
        check_tabfeed(arguments)
    elif program == "make":
        targets = [a for a in arguments if "=" not in a]
        assert all(re.search(rf"^{t}:", MAKEFILE, re.M) for t in targets), command
    elif program == "pip":
        extras = re.search(r"\[project.optional-dependencies\]\n(.*?)\n\[", PROJECT, re.S)
        assert extras is not None and arguments[0] == "install", command
        for names in re.findall(r"(?:tabfeed|\.)\[([\w,]+)\]", " ".join(arguments)):
            for name in names.split(","):
                assert re.search(rf"^{name} = \[", extras[1], re.M), f"no extra {name}"
    elif program in ("python", "torchrun", "accelerate"):
        scripts = [a for a in arguments if a.endswith(".py")]
        assert scripts and all((ROOT / s).exists() for s in scripts), command
    else:
        raise AssertionError(f"{program!r} is not a command that is checked: {command}")


def check_tabfeed(arguments: list[str]) -> None:
    """Parse the arguments as the command line would, and do nothing."""
    part, name = typer.main.get_command(app), "tabfeed"
    context = part.make_context(name, arguments)
    while hasattr(part, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, part, rest = part.resolve_command(context, rest)
        context = part.make_context(name, rest, parent=context)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_could_be_run(command: str) -> None:
    check(command)


@pytest.mark.parametrize(
    "wrong", ["tabfeed docter x", "tabfeed doctor x --fast", "make coffee", "rm -r x"]
)
def test_wrong_commands_are_noticed(wrong: str) -> None:
    with pytest.raises((USAGE_ERROR, AssertionError)):
        check(wrong)


def test_commands_named_in_the_text_exist() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for page in pages():
        named = set(re.findall(r"`tabfeed (\w+)", page.read_text("utf-8")))
        assert named <= known, name_of(page)


SCRIPT = """
from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr
import sys
assert sys.argv[1:] == ["--epochs", "1"]
for batch in TorchAsyncItr(Dataset("train"), cats=["C1"], labels=["label"], batch_size=4096):
    sum(range(100_000))
"""


def test_commands_of_the_profiling_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from tabfeed import datagen

    monkeypatch.chdir(tmp_path)
    datagen.criteo("train", rows=50_000)
    Path("train.py").write_text(SCRIPT)
    commands = [c for b in blocks(DOCS / "profiling.md", "sh") for c in b.commands]
    assert [c.split()[1] for c in commands] == ["profile"] * 3 + ["doctor", "rewrite"]
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        allowed = (0, 1) if "--fail-under" in command else (0,)  # it does little but wait
        assert done.exit_code in allowed, (command, done.output, done.exception)
    assert Path("report.html").exists() and Path("train_fast").is_dir()
