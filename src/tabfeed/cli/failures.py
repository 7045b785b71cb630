"""How the command line reports an error: one sentence and a hint.

Errors of `tabfeed.errors` and of the system are shown as they are, with exit status 1. Where they
speak of Python's arguments, the command's options take their place. For any other error its name is
shown, and how to see all of it. A line that cannot be understood exits with 2, in the same form:
Typer would draw a box around it, below a usage that seldom says what was wrong.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer

from tabfeed.cli.help_text import ReadableGroup
from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    DatasetExistsError,
    SchemaError,
    SourceNotFoundError,
    TabfeedError,
)

__all__ = ["Group"]

_ARGUMENTS = "tabfeed.arguments"
# Arguments of Python's that options of the command line have other names for.
_NAMES = {
    "columns": "column",
    "dtypes": "dtype",
    "output_files": "files",
    "on_bad_file": "skip_bad",
}
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # of the click that Typer brings
_HINTS: dict[type[Exception], str] = {
    DatasetExistsError: "--help after the command lists its options",
    BadFileError: "tabfeed convert and tabfeed rewrite leave out such files with --skip-bad",
    ArgumentError: "--help after the command lists its options",
    SourceNotFoundError: "give a file, a folder, a glob in quotes, or a URL such as s3://bucket/data",
    SchemaError: "tabfeed inspect, with the same files, shows the columns and their types",
}


class Group(ReadableGroup):
    """A group of commands whose errors are told to a person."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the line as it was typed, for the hint."""
        ctx.meta[_ARGUMENTS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except _USAGE_ERROR as error:
            _tell_usage(error, ctx)
            raise typer.Exit(2) from error

    def invoke(self, ctx: Any) -> Any:
        """Run the command; tell of an error unless ``--debug`` asks for all of it."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except _USAGE_ERROR as error:
            _tell_usage(error, ctx)
            raise typer.Exit(2) from error
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            sentence = _in_options(_sentence(error), ctx)
            _tell(sentence, _hint(error, ctx.meta[_ARGUMENTS]))
            raise typer.Exit(1) from error


def _tell(error: str, hint: str) -> None:
    typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
    typer.secho(f"hint: {hint}", err=True)


def _tell_usage(error: Any, ctx: Any) -> None:
    """Say what is wrong with the line itself; a group without a command has shown its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return
    where = error.ctx or ctx
    told = error.format_message().replace("Value error, ", "").rstrip(".")
    lists = "its commands" if hasattr(where.command, "commands") else "what it takes"
    _tell(told[:1].lower() + told[1:], f"{where.command_path} --help lists {lists}")


def _sentence(error: Exception) -> str:
    if isinstance(error, TabfeedError):
        return "; ".join([str(error), *getattr(error, "__notes__", ())])
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return f"unexpected {type(error).__name__}: {error}"


def _in_options(sentence: str, ctx: Any) -> str:
    """An error's text with the options of the command in place of Python's arguments."""
    command = ctx.command
    for word in ctx.meta[_ARGUMENTS]:
        command = getattr(command, "commands", {}).get(word, command)
    for param in command.params:
        flags = [flag for flag in param.opts if flag.startswith("--")]
        if not flags:
            continue
        for name in [param.name, *(long for long, short in _NAMES.items() if short == param.name)]:
            value = r"""(?:True|"skip")""" if param.is_flag else ""
            sentence = re.sub(rf"\b{name}={value}", flags[0] + " " * (not param.is_flag), sentence)
            sentence = re.sub(rf"(?<!\ba )\b{name} (?=is )", f"{flags[0]} ", sentence)
    sentence = re.sub(r"""(--\w+) \{"(\w+)": "([^"]+)"\}""", r"\1 \2=\3", sentence)  # a dict of one
    sentence = re.sub(r"(--\w+) \{'(\w+)': \.\.\.\}", r"\1 \2=TYPE", sentence)
    sentence = re.sub(r"(--[\w-]+) +(?=[,;]|$)", r"\1", sentence)
    return sentence.replace("  ", " ")


def _hint(error: Exception, arguments: list[str]) -> str:
    for kind, hint in _HINTS.items():
        if isinstance(error, kind):
            return hint
    return f"tabfeed --debug {shlex.join(arguments)} shows where it came from"
