"""How ``--help`` reads.

Typer names the Python type of everything; ``--json <bool>`` says nothing to a person. Here flags
and arguments go without one, and options name what they take by a ``metavar``. It also breaks
paragraphs where the source does; here they are broken where the window ends.
"""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

__all__ = ["ReadableCommand", "ReadableGroup", "prose"]


class ReadableCommand(TyperCommand):
    """A command whose help does without types that say nothing."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, shown readably."""
        return _readable(super().get_params(ctx))


class ReadableGroup(TyperGroup):
    """The same for a group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, shown readably."""
        return _readable(super().get_params(ctx))


def _readable(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if isinstance(param, TyperArgument):  # a metavar would be its name, not its type
            vars(param)["display_type_rich"] = lambda ctx: None
    return params


def prose(docstring: str) -> str:
    r"""Put each paragraph of a docstring on one line.

    Examples
    --------
    >>> prose("Say it.\n\n    A sentence that goes\n    on.\n")
    'Say it.\n\nA sentence that goes on.'
    """
    return "\n\n".join(" ".join(p.split()) for p in inspect.cleandoc(docstring).split("\n\n"))
