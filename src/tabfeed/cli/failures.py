"""How the command line tells of an error: one sentence, a hint, exit status 1.

What `tabfeed.errors` holds, and what the system refuses, is told as it is. Anything else is a
fault of ours or of the data's that nobody foresaw: its name is told, and how to see all of it.
"""

from __future__ import annotations

import shlex
from typing import Any

import typer

from tabfeed.cli.help_text import ReadableGroup
from tabfeed.errors import (
    ArgumentError,
    DatasetExistsError,
    SchemaError,
    SourceNotFoundError,
    TabfeedError,
)

__all__ = ["Group"]

_ARGUMENTS = "tabfeed.arguments"
_HINTS: dict[type[Exception], str] = {
    DatasetExistsError: "on the command line, that is --overwrite",
    ArgumentError: "--help after the command lists its options",
    SourceNotFoundError: "give a file, a folder, a glob in quotes, or a URL such as s3://bucket/data",
    SchemaError: "tabfeed inspect, with the same files, shows the columns and their types",
}


class Group(ReadableGroup):
    """A group of commands whose errors are told to a person."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the line as it was typed, for the hint."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; tell of an error unless ``--debug`` asks for all of it."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params.get("debug") or _is_usage(error):
                raise
            typer.secho(f"error: {_sentence(error)}", fg=typer.colors.RED, err=True)
            typer.secho(f"hint: {_hint(error, ctx.meta[_ARGUMENTS])}", err=True)
            raise typer.Exit(1) from error


def _is_usage(error: Exception) -> bool:
    """Whether the line itself is wrong, which Typer tells, with exit status 2."""
    return isinstance(error, typer.BadParameter.__bases__[0])


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
