"""How the command line tells of an error: one sentence and a hint.

What `tabfeed.errors` holds, and what the system refuses, is told as it is, with exit status 1.
Anything else is a fault of ours or of the data's that nobody foresaw: its name is told, and how to
see all of it. A line that cannot be understood exits with 2, told in the same form: Typer would
draw a box around it, below a usage that seldom says what was wrong.
"""

from __future__ import annotations

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
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # of the click that Typer brings
_HINTS: dict[type[Exception], str] = {
    DatasetExistsError: "on the command line, that is --overwrite",
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
            _tell(_sentence(error), _hint(error, ctx.meta[_ARGUMENTS]))
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


def _hint(error: Exception, arguments: list[str]) -> str:
    for kind, hint in _HINTS.items():
        if isinstance(error, kind):
            return hint
    return f"tabfeed --debug {shlex.join(arguments)} shows where it came from"
