"""The tensors of a batch, at any depth."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

__all__ = ["copied", "tensors_in", "with_tensors"]

Tensor = torch.Tensor
_PLAIN = (dict, list, tuple)
_HELD = (*_PLAIN, Mapping)
_BUILT_IN = (*_PLAIN, set, frozenset, deque)
_EMPTY = frozenset({type(None), bool, int, float, complex, str, bytes, torch.Size})
# In these there is nothing of a batch, though there may be much else.
_OTHER = (
    *(str, bytes, bytearray, memoryview, range, np.ndarray, np.generic, torch.nn.Module),
    *(type, ModuleType, FunctionType, BuiltinFunctionType, MethodType),
)
_MOST = 1000  # objects that are looked into for one that a batch holds


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All of them, in order; in objects of any kind as well.

    It searches dataclasses, attributes and slots: up to a thousand objects, the nearest first, but
    no modules.

    Examples
    --------
    >>> [t.item() for t in tensors_in(({"a": torch.tensor(1)}, [torch.tensor(2)], None))]
    [1, 2]
    >>> from types import SimpleNamespace
    >>> [t.item() for t in tensors_in([SimpleNamespace(pair=(torch.tensor(3), "b"))])]
    [3]
    """
    found: list[Tensor] = []
    _gather(value, found, set())
    return iter(found)


def _gather(value: Any, found: list[Tensor], around: set[int]) -> None:
    """Append the tensors of a value to `found`; `around` has the ids of the values around it."""
    kind = type(value)
    if kind in _EMPTY or id(value) in around:
        return
    if issubclass(kind, Tensor):
        found.append(value)
        return
    plain = kind in _PLAIN
    if not (plain or issubclass(kind, _HELD)):
        found.extend(_hidden(_parts(value)))
        return
    start = len(found)
    around.add(id(value))
    for item in _items(value):
        if type(item) is Tensor:
            found.append(item)
        else:
            _gather(item, found, around)
    around.discard(id(value))
    if not plain and (more := _attributes(value)):
        known = {id(tensor) for tensor in found[start:]}
        found.extend(tensor for tensor in _hidden(more) if id(tensor) not in known)


def _hidden(parts: list[Any]) -> Iterator[Tensor]:
    """The tensors reachable from parts of an object, each once."""
    ahead, seen, looked = deque(parts), set(), 0
    kept: list[Any] = []  # so that none gets the identity of another
    while ahead:
        item = ahead.popleft()
        kind = type(item)
        if kind in _EMPTY or id(item) in seen:
            continue
        seen.add(id(item))
        kept.append(item)
        if issubclass(kind, Tensor):
            yield item
        elif looked < _MOST:
            looked += 1
            ahead.extend(_parts(item))


def _parts(value: Any) -> list[Any]:
    """The items and attributes of an object of any kind."""
    kind = type(value)
    if kind in _PLAIN:
        return _items(value)
    return [] if issubclass(kind, _OTHER) else [*_items(value), *_attributes(value)]


def _items(value: Any) -> list[Any]:
    """The items of a container; of a user's own class no more than `_MOST`."""
    kind = type(value)
    if kind is dict:
        return list(value.values())
    if kind is list or kind is tuple:
        return list(value)
    try:
        most = None if issubclass(kind, _BUILT_IN) else _MOST
        if issubclass(kind, Mapping):
            return list(islice(value.values(), most))
        if issubclass(kind, Sequence | Set):
            return list(islice(value, most))
    except Exception:  # whatever its methods raise
        pass
    return []


def _attributes(value: Any) -> list[Any]:
    """The values in an object's ``__dict__`` and its slots; properties are not read."""
    found: list[Any] = []
    try:
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            found += list(held.values())
        kind: Any = type(value)
        for slot in _slots(kind):
            with suppress(AttributeError):  # nothing is in it
                found.append(slot.__get__(value))
    except Exception:  # an object that cannot be inspected
        pass
    return found


@lru_cache(maxsize=256)
def _slots(kind: type) -> tuple[Any, ...]:
    """The slots of all objects of a class."""
    held = [member for base in kind.__mro__ for member in vars(base).values()]
    return tuple(member for member in held if type(member) is MemberDescriptorType)


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same structure with other tensors; a mapping of any kind becomes a dict.

    Values other than mappings, lists and tuples stay as they are, and the tensors meant for them
    are skipped.
    """
    if isinstance(value, Tensor):
        return next(tensors)
    if type(value) not in _PLAIN:  # it may hold more than is replaced
        tensors = iter(list(islice(tensors, sum(1 for _ in tensors_in(value)))))
    if isinstance(value, Mapping):
        return {name: with_tensors(item, tensors) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_tensors(item, tensors) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(with_tensors(item, tensors) for item in value)
    return value


def copied(value: Any) -> Any:
    """A copy of a batch in memory of its own, rather than part of a chunk's.

    Values other than dicts, lists and tuples, such as a user's own classes, stay as they are.

    Examples
    --------
    >>> chunk = torch.arange(6)
    >>> batch = copied({"a": chunk[4:]})
    >>> batch["a"].tolist(), batch["a"].untyped_storage().nbytes()
    ([4, 5], 16)
    """
    if isinstance(value, Tensor):
        return value.clone()
    if type(value) is dict:
        return {name: copied(item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(copied, value))
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return value
