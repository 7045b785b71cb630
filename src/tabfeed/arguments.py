"""Refuse unknown arguments with an error that lists the known ones."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from tabfeed.errors import UnknownArgumentError

__all__ = ["known_arguments", "refuse_unknown"]

P = ParamSpec("P")
R = TypeVar("R")


def known_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse keyword arguments that `function` does not have.

    Examples
    --------
    >>> @known_arguments
    ... def read(path, *, columns=None): ...
    >>> read("a", column=["x"])
    Traceback (most recent call last):
        ...
    tabfeed.errors.UnknownArgumentError: read has no argument 'column'; did you mean 'columns'?
    """
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_unknown(kwargs, known, name)
        return function(*args, **kwargs)

    return checked


def refuse_unknown(given: Iterable[str], known: Iterable[str], name: str) -> None:
    """Raise for the first of the `given` arguments that the function `name` does not have."""
    others = [k for k in known if k != "self"]
    for argument in given:
        if argument not in others:
            raise UnknownArgumentError(
                f"{name} has no argument {argument!r}; {_hint(argument, others)}"
            )


def _hint(given: str, known: list[str]) -> str:
    near = difflib.get_close_matches(given, known, n=3)
    if near:
        return f"did you mean {' or '.join(repr(n) for n in near)}?"
    return f"it has {', '.join(known) or 'none'}"
