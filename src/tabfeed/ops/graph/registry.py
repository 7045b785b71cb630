"""Operators that a saved workflow may name without further permission.

A saved workflow names its operators, and loading one must run no code that the folder chooses. So
names are looked up here, and never imported: tabfeed's own operators have fixed names, and a
user's class is found once the user has registered it. A module that is not registered needs
``Workflow.load(..., trusted=...)`` (`tabfeed.workflow.trust`).
"""

from __future__ import annotations

from typing import TypeVar

from tabfeed.errors import ArgumentError
from tabfeed.ops.base import Operator

__all__ = ["class_name", "register", "registered"]

Kind = TypeVar("Kind", bound=type[Operator])

_REGISTERED: dict[str, type[Operator]] = {}


def register(operator: Kind) -> Kind:
    """Let saved workflows name an operator of yours; use it as a decorator.

    `tabfeed.Workflow.load` finds a registered class wherever it is defined, in a script or a
    notebook too, and needs no ``operators=`` or ``trusted=`` for it.

    Examples
    --------
    >>> from tabfeed import ops
    >>> @ops.register
    ... class Double(ops.Operator):
    ...     def transform(self, frame, inputs):
    ...         return frame.select(pl.col(n) * 2 for n in inputs.names)
    """
    _REGISTERED[class_name(operator)] = operator
    return operator


def registered() -> dict[str, type[Operator]]:
    """The classes that were registered, by name."""
    return dict(_REGISTERED)


def class_name(operator: type[Operator]) -> str:
    """``module:name``, under which a saved workflow names a class.

    Examples
    --------
    >>> class_name("Double")
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: 'Double' is not a subclass of tabfeed.ops.Operator
    """
    if not (isinstance(operator, type) and issubclass(operator, Operator)):
        raise ArgumentError(f"{operator!r} is not a subclass of tabfeed.ops.Operator")
    return f"{operator.__module__}:{operator.__qualname__}"
