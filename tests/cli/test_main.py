import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
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
        "error: --rows is 0; it must be a positive integer",
        "hint: --help after the command lists its options",
    ]


@pytest.mark.parametrize(
    ("raised", "told", "hint"),
    [
        (
            ZeroDivisionError("division by zero"),
            "unexpected ZeroDivisionError: division by zero",
            "tabfeed --debug inspect 'my data' shows where it came from",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "a.parquet"),
            "Permission denied: a.parquet",
            "tabfeed --debug inspect 'my data' shows where it came from",
        ),
    ],
)
def test_nobody_sees_a_traceback_who_did_not_ask(
    raised: Exception, told: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("tabfeed.io.Dataset", fail)
    result = runner.invoke(app, ["inspect", "my data"])
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [f"error: {told}", f"hint: {hint}"]
    assert runner.invoke(app, ["--debug", "inspect", "my data"]).exception is raised


def test_the_error_is_red_and_the_hint_is_not(tmp_path: Path) -> None:
    result = runner.invoke(app, ["inspect", str(tmp_path / "none")], color=True)
    error, hint = result.stderr.splitlines()
    assert error.startswith("\x1b[31merror: ")
    assert hint.startswith("hint: give a file, a folder")


def test_debug_lets_the_error_through(tmp_path: Path) -> None:
    result = runner.invoke(app, ["--debug", "datagen", "criteo", "--rows", "0", str(tmp_path)])
    assert isinstance(result.exception, ArgumentError)


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize(
    ("line", "told", "hint"),
    [
        (["--colour"], "no such option: --colour", "tabfeed --help lists its commands"),
        (
            ["inspekt", "raw"],
            "no such command 'inspekt'. Did you mean 'inspect'?",
            "tabfeed --help lists its commands",
        ),
        (
            ["datagen", "criteo"],
            "missing argument 'OUT'",
            "tabfeed datagen criteo --help lists what it takes",
        ),
        (
            ["datagen", "criteo", "out", "--colour", "red"],
            "no such option: --colour",
            "tabfeed datagen criteo --help lists what it takes",
        ),
        (
            ["convert", "raw", "out", "--shuffle", "ful"],
            "invalid value for '--shuffle': 'ful' is not one of 'per_partition', 'per_worker', "
            "'full'",
            "tabfeed convert --help lists what it takes",
        ),
    ],
)
def test_wrong_usage_is_one_sentence_and_a_hint_too(
    line: list[str], told: str, hint: str, debug: list[str]
) -> None:
    result = runner.invoke(app, [*debug, *line])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [f"error: {told}", f"hint: {hint}"]


def test_a_damaged_file_is_told_of_with_the_option_that_leaves_it_out(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_text("hello, this is no Parquet file")
    result = runner.invoke(app, ["inspect", str(tmp_path / "bad.parquet")])
    assert result.exit_code == 1
    assert "is not a Parquet file" in result.stderr
    assert result.stderr.splitlines()[-1].endswith("leave out such files with --skip-bad")


@pytest.mark.parametrize(
    ("command", "column", "kind"),
    [
        ("inspect", "tabfeed convert --column", "tabfeed convert --dtype"),
        ("convert", "--column", "--dtype"),
    ],
)
def test_an_error_speaks_of_options_not_of_arguments(
    tmp_path: Path, command: str, column: str, kind: str
) -> None:
    (tmp_path / "1.csv").write_text("a\n1\n")
    (tmp_path / "2.csv").write_text("a\nx\n")
    out = [str(tmp_path / "out")] if command == "convert" else []
    result = runner.invoke(app, [command, str(tmp_path / "*.csv"), *out])
    assert result.exit_code == 1
    assert f"say which one with {kind} a=TYPE, leave the column out with {column}," in result.stderr


def test_an_argument_without_an_option_is_said_to_be_of_python(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n1,2,3\n")
    result = runner.invoke(app, ["convert", str(tmp_path / "a.csv"), str(tmp_path / "out")])
    assert "check --sep and names= (in Python, for Dataset)" in result.stderr


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


COMMANDS = ["inspect", "convert", "datagen", "profile", "doctor", "rewrite"]


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS), ["datagen", "criteo"]])
def test_help_reads_well(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    for type_name in ("<bool>", "<str>", "<int>", "<float>", "list[str]"):
        assert type_name not in result.output
    assert "Example" in result.output or command in ([], ["datagen", "criteo"])


def test_help_is_broken_where_the_window_ends() -> None:
    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        assert command.help
        assert "\n" not in command.help.replace("\n\n", "")


def test_help_tells_of_completion() -> None:
    assert "tabfeed --install-completion" in runner.invoke(app, ["--help"]).output


def complete(line: str) -> list[str]:
    """What a shell gets when Tab is pressed at the end of `line`."""
    words = line.split(" ")
    asked = {
        "_TABFEED_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    return runner.invoke(app, prog_name="tabfeed", env=asked).output.split()


@pytest.mark.parametrize("folder", ["files=3", "names=b", "columns=c"])
def test_a_folder_with_the_name_of_an_option_stays_as_it_is(tmp_path: Path, folder: str) -> None:
    bad = tmp_path / folder / "sep=1" / "a.parquet"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(b"not Parquet")
    result = runner.invoke(app, ["inspect", str(tmp_path)])
    assert f"{folder}/sep=1/a.parquet is not a Parquet file" in result.stderr
    assert "pass tabfeed convert --skip-bad" in result.stderr


@pytest.mark.parametrize(("command", "out"), [("inspect", []), ("convert", ["out"])])
def test_words_of_a_sentence_are_no_options(tmp_path: Path, command: str, out: list[str]) -> None:
    for name in "ab":
        (tmp_path / f"{name}.parquet").write_bytes(b"PAR1")
    result = runner.invoke(app, [command, str(tmp_path), *out, "--engine", "csv"])
    assert "none of its 2 files is csv data" in result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tabfeed ", COMMANDS),
        ("tabfeed do", ["doctor"]),
        ("tabfeed datagen m", ["movielens"]),
        ("tabfeed convert --eng", ["--engine"]),
        ("tabfeed convert --shuffle p", ["per_partition", "per_worker"]),
    ],
)
def test_tab_completes(line: str, words: list[str]) -> None:
    assert sorted(complete(line)) == sorted(words)


def test_completion_for_bash_is_shell_code(tmp_path: Path) -> None:
    shown = runner.invoke(app, prog_name="tabfeed", env={"_TABFEED_COMPLETE": "source_bash"})
    assert shown.exit_code == 0
    script = tmp_path / "complete.sh"
    script.write_text(shown.output)
    check = f"source {script} && complete -p tabfeed"
    told = subprocess.run(["bash", "-c", check], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "complete -o default -F _tabfeed_completion tabfeed"
