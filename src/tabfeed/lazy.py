"""A property that is computed once, without a lock.

Until Python 3.12, `functools.cached_property` holds one lock for each property of a class, which
all its instances share, while it computes. A property that reads files on threads, and whose
threads need the same property of another instance (a dataset made of another dataset), then waits
for itself without end. Here two threads that come at the same time both compute, and one of the two
values stays: what is computed must not depend on who computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["cached_property"]

T = TypeVar("T")


class cached_property(Generic[T]):
    """The result of a method, computed when it is first needed, as an attribute.

    Examples
    --------
    >>> class Table:
    ...     @cached_property
    ...     def rows(self):
    ...         print("counting")
    ...         return 3
    >>> table = Table()
    >>> table.rows, table.rows
    counting
    (3, 3)
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> cached_property[T] | T:
        if instance is None:
            return self
        # Not setattr, which a frozen dataclass refuses; of two threads, both get the first value.
        value: T = vars(instance).setdefault(self._name, self._compute(instance))
        return value
