"""How the command line tells of an error: one sentence, a hint, exit status 1."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from tabfeed.errors import ArgumentError, DatasetExistsError, TabfeedError

__all__ = ["Group"]


class Group(TyperGroup):
    """A group of commands whose errors are told to a person."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; tell of an error unless ``--debug`` asks for all of it."""
        try:
            return super().invoke(ctx)
        except TabfeedError as error:
            if ctx.params.get("debug"):
                raise
            typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
            typer.secho(f"hint: {_hint(error)}", err=True)
            raise typer.Exit(1) from error


def _hint(error: TabfeedError) -> str:
    if isinstance(error, DatasetExistsError):
        return "on the command line, that is --overwrite"
    if isinstance(error, ArgumentError):
        return "--help after the command lists its options"
    return "tabfeed --debug ... shows where it came from"
