"""What users pass in: refuse unknown arguments, and say where their functions failed.

An error of a user's function keeps its type and gets a note. `StopIteration` is different: it would
end the loop that calls the function, as if there were no more batches. It becomes a
`FunctionError`, just as it becomes a RuntimeError inside a generator.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from tabfeed.errors import FunctionError, UnknownArgumentError

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


_MARK = "_tabfeed_users"


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a user's function; `is_users` recognises its errors.

    Examples
    --------
    >>> call(next, iter([]))
    Traceback (most recent call last):
        ...
    tabfeed.errors.FunctionError: StopIteration raised by next: it would end the loop that calls \
it; catch it there
    """
    try:
        return function(*args)
    except StopIteration as e:
        raise not_the_end(e, getattr(function, "__name__", repr(function))) from e
    except Exception as e:
        vars(e)[_MARK] = True  # not setattr, which a frozen dataclass refuses
        raise


def is_users(error: BaseException) -> bool:
    """Whether a user's function raised this error."""
    return bool(getattr(error, _MARK, False))


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, once. Python 3.10 has no notes, and frozen errors take none."""
    if hasattr(error, "add_note") and note not in getattr(error, "__notes__", ()):
        with suppress(Exception):
            error.add_note(note)


def explain(error: BaseException, what: str) -> None:
    """Note which function raised an error, and on what; raise another for StopIteration."""
    if isinstance(error, StopIteration):
        raise not_the_end(error, what) from error
    add_note(error, f"raised by {what}")


def not_the_end(error: StopIteration, what: str) -> FunctionError:
    """The error to raise instead of StopIteration."""
    instead = FunctionError(
        f"StopIteration raised by {what}: it would end the loop that calls it; catch it there"
    )
    instead.__cause__ = error
    return instead


class Guarded:
    """A user's function whose StopIteration is an error; can be pickled if the function can.

    Parameters
    ----------
    function
        The function.
    name
        The argument it was given as.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        try:
            return self.function(*args)
        except StopIteration as e:
            raise not_the_end(e, self.name) from e
