"""The tensors of a batch, however deep they lie in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["copied", "tensors_in", "with_tensors"]

Tensor = torch.Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All of them, in order.

    Examples
    --------
    >>> [t.item() for t in tensors_in(({"a": torch.tensor(1)}, [torch.tensor(2)], None))]
    [1, 2]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same around other tensors; a mapping of any kind becomes a dict."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {name: with_tensors(item, tensors) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_tensors(item, tensors) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(with_tensors(item, tensors) for item in value)
    return value


def copied(value: Any) -> Any:
    """The same in memory of its own, where a batch is but a piece of a chunk's.

    What is no dict, list or tuple, but of a kind that only the program knows, is left as it is.

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
