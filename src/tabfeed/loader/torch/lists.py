"""The forms in which ragged columns come: tensors side by side, nested, padded, or TorchRec's own.

Each form is a function from all ragged columns of a chunk, cut into batches, to the entries of
the batches.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import Any

import torch

from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.loader.read.arrow_columns import Layout

__all__ = ["LIST_FORMS", "ListForm", "list_form"]

Tensor = torch.Tensor
Ragged = Sequence[tuple[Tensor, Tensor]]  # (values, offsets) of each batch
ListForm = Callable[[Mapping[str, Ragged]], dict[str, Sequence[Any]]]


def ragged(columns: Mapping[str, Ragged]) -> dict[str, Sequence[Any]]:
    """``name__values`` and ``name__offsets``."""
    out: dict[str, Sequence[Any]] = {}
    for name, cut in columns.items():
        out[f"{name}__values"] = [values for values, _ in cut]
        out[f"{name}__offsets"] = [offsets for _, offsets in cut]
    return out


def nested(columns: Mapping[str, Ragged]) -> dict[str, Sequence[Any]]:
    """Nested tensors, in the jagged layout."""
    make = torch.nested.nested_tensor_from_jagged
    return {name: list(starmap(make, cut)) for name, cut in columns.items()}


def padded(columns: Mapping[str, Ragged]) -> dict[str, Sequence[Any]]:
    """Rows filled up to the longest of their batch, and which values are real."""
    out: dict[str, Sequence[Any]] = {}
    for name, cut in columns.items():
        both = list(starmap(_pad, cut))
        out[name] = [values for values, _ in both]
        out[f"{name}__mask"] = [mask for _, mask in both]
    return out


def _pad(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    lengths = offsets.diff()
    width = int(lengths.max()) if len(lengths) else 0
    mask = torch.arange(width, device=values.device) < lengths[:, None]
    full = torch.zeros(mask.shape + values.shape[1:], dtype=values.dtype, device=values.device)
    full[mask] = values
    return full, mask


def jagged(columns: Mapping[str, Ragged]) -> dict[str, Sequence[Any]]:
    """All columns in one TorchRec KeyedJaggedTensor: what its embedding modules take."""
    try:
        module = importlib.import_module("torchrec.sparse.jagged_tensor")
    except ImportError as e:
        raise LoaderError('lists="jagged" needs TorchRec: pip install torchrec') from e
    keys, out = list(columns), []
    for cut in zip(*columns.values(), strict=True):
        values = torch.cat([v for v, _ in cut])
        lengths = torch.cat([o.diff() for _, o in cut])
        out.append(module.KeyedJaggedTensor(keys=keys, values=values, lengths=lengths))
    return {"jagged": out}


LIST_FORMS: dict[str, ListForm] = {
    "ragged": ragged,
    "nested": nested,
    "padded": padded,
    "jagged": jagged,
}


def list_form(name: str, layout: Layout) -> ListForm:
    """The form of that name, if the columns can take it."""
    if name not in LIST_FORMS:
        raise ArgumentError(f"lists is {name!r}; it must be one of {', '.join(LIST_FORMS)}")
    kinds = {dtype.kind for _, dtype in layout.lists}
    if name == "jagged" and len(kinds - {"u"}) > 1:
        found = ", ".join(f"{column} ({dtype})" for column, dtype in layout.lists)
        raise ArgumentError(
            f'lists="jagged" puts all lists into one tensor of ids; these are of several kinds: '
            f"{found}; choose some with columns="
        )
    return LIST_FORMS[name]
