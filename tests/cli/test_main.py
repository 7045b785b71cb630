import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tabfeed
from tabfeed.cli import app
from tabfeed.errors import ArgumentError

runner = CliRunner()


def test_the_command_by_itself_shows_its_help() -> None:
    asked, alone = runner.invoke(app, ["--help"]), runner.invoke(app, [])
    assert asked.exit_code == 0
    assert "datagen" in asked.output
    assert "--version" in asked.output
    assert "datagen" in alone.output


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"tabfeed {tabfeed.__version__}\n")


def test_an_error_is_one_sentence_and_a_hint_on_stderr(tmp_path: Path) -> None:
    result = runner.invoke(app, ["datagen", "criteo", "--rows", "0", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: rows is 0; it must be a whole number from 1",
        "hint: --help after the command lists its options",
    ]


def test_debug_lets_the_error_through(tmp_path: Path) -> None:
    result = runner.invoke(app, ["--debug", "datagen", "criteo", "--rows", "0", str(tmp_path)])
    assert isinstance(result.exception, ArgumentError)


def test_an_unknown_option_is_wrong_usage(tmp_path: Path) -> None:
    result = runner.invoke(app, ["datagen", "criteo", "--colour", "red", str(tmp_path)])
    assert result.exit_code == 2
    assert "--colour" in result.stderr


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_as_a_process(tmp_path: Path, debug: list[str]) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tabfeed", *debug, "datagen", "criteo", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONUTF8": "1"},
            check=False,
        )

    out = str(tmp_path / "out")
    made = run("--rows", "1_000", out)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith(f"{out}: 1,000 rows of 40 columns\n")
    again = run("--rows", "1_000", out)
    assert (again.returncode, again.stdout) == (1, "")
    assert "already holds a dataset" in again.stderr
    assert ("Traceback" in again.stderr) == bool(debug)
