"""`Loader`: batches as ``(dict of tensors, targets)``."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import torch

from tabfeed.arguments import explain, known_arguments
from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.build import DictColumns, build_pipeline, split_targets
from tabfeed.loader.options import GpuOptions, LoaderOptions
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.loader.shuffle_quality import warn_if_sorted
from tabfeed.loader.tensors.cut import (
    as_tensor,
    collector_paused,
    cut_all,
    cut_lists,
)
from tabfeed.loader.tensors.device import choose_device
from tabfeed.loader.torch.base import TorchBase, rank_and_world

__all__ = ["Loader"]

Tensor = torch.Tensor
Ragged = Sequence[tuple[Tensor, Tensor]]  # (values, offsets) of each batch
# From all ragged columns of a chunk, cut into batches, to the entries of the batches.
ListForm = Callable[[Mapping[str, Ragged]], dict[str, Sequence[Any]]]


@dataclass(frozen=True)
class _FinishDicts:
    """Chunks to ``(dict of tensors, targets)``."""

    targets: tuple[str, ...]
    lists: ListForm
    device: torch.device
    functions: tuple[Callable[[Any, Any], Any], ...] = ()

    @property
    def only_cuts(self) -> bool:
        """Whether all batches are views of the same memory."""
        return not self.functions

    def __call__(self, chunk: Chunk) -> list[Any]:
        with collector_paused:
            batches = self._cut(chunk)
        for function in self.functions:
            batches = _mapped(function, batches, chunk.first_step)
        return batches

    def _cut(self, chunk: Chunk) -> list[Any]:
        columns = self._columns(chunk)
        names, targets = split_targets(columns, self.targets)
        learned: Sequence[Any] = [None] * chunk.steps
        if targets is not None:
            several = isinstance(targets, list)
            learned = _dicts(columns, targets, chunk.steps) if several else columns[targets]
        return list(zip(_dicts(columns, names, chunk.steps), learned, strict=True))

    def _columns(self, chunk: Chunk) -> dict[str, Sequence[Any]]:
        tensors = [as_tensor(array, self.device) for array in chunk.columns.values()]
        found = cut_all(tensors, chunk)
        out: dict[str, Sequence[Any]] = dict(zip(chunk.columns, found, strict=True))
        cut = {name: cut_lists(lists, chunk, self.device) for name, lists in chunk.lists.items()}
        if cut:
            out.update(self.lists(cut))
        rows = list(zip(chunk.bounds[:-1].tolist(), chunk.sizes, strict=True))
        for name, array in chunk.extras.items():
            out[name] = [array.slice(start, count) for start, count in rows]
        return out


def _mapped(function: Callable[[Any, Any], Any], batches: list[Any], first: int) -> list[Any]:
    out: list[Any] = []
    try:
        for x, y in batches:
            out.append(function(x, y))
    except Exception as e:
        explain(e, f"the function given to map(), on batch {first + len(out)} of the epoch")
        raise
    return out


def _dicts(columns: Mapping[str, Sequence[Any]], names: list[str], steps: int) -> list[Any]:
    """A dict for each batch."""
    if not names:
        return [{} for _ in range(steps)]
    rows = zip(*(columns[n] for n in names), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]


# -- the forms in which ragged columns come ------------------------------------------------------


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


_LIST_FORMS: dict[str, ListForm] = {
    "ragged": ragged,
    "nested": nested,
    "padded": padded,
    "jagged": jagged,
}


def _list_form(name: str, layout: Layout) -> ListForm:
    """The form of that name; refused if the columns cannot take it."""
    if name not in _LIST_FORMS:
        raise ArgumentError(f"lists is {name!r}; it must be one of {', '.join(_LIST_FORMS)}")
    kinds = {dtype.kind for _, dtype in layout.lists}
    if name == "jagged" and len(kinds - {"u"}) > 1:
        found = ", ".join(f"{column} ({dtype})" for column, dtype in layout.lists)
        raise ArgumentError(
            f'lists="jagged" puts all lists into one tensor of ids; these are of several kinds: '
            f"{found}; choose some with columns="
        )
    return _LIST_FORMS[name]


# -- the loader -----------------------------------------------------------------------------------


class Loader(TorchBase):
    """Batches ``(inputs, targets)``: a dict of tensors by column name, and what is to be learned.

    Scalars have shape ``(N,)`` and the dtype they have in the files; lists of one length
    ``(N, L)``; ragged lists come as `lists` says. `targets` is a tensor, a dict of them if there
    are several, or None. It can be used as it is, or inside a `DLDataLoader`.

    Parameters
    ----------
    dataset
        What to load.
    batch_size, shuffle, seed_fn, parts_per_chunk, global_size, global_rank, drop_last
        See `tabfeed.loader.options.LoaderOptions`.
    transforms
        Functions from Arrow table to Arrow table (a fitted workflow is one), then `Padding` and
        `EmbeddingOperator` if wanted.
    device
        The device of tensors: ``"cpu"``, ``"cuda"``, or a GPU's number; the GPU by default, if
        there is one.
    columns
        Only these; all that are not `extras` by default.
    targets
        What is to be learned; columns tagged TARGET by default.
    extras
        Columns that pass through as Arrow arrays: keys, text, times.
    lists
        "ragged": ``name__values`` and ``name__offsets``. "nested": torch nested tensors. "padded":
        filled with 0 to the longest row, and ``name__mask``. "jagged": all of them in one TorchRec
        KeyedJaggedTensor, ``inputs["jagged"]``.
    seed, last, streams, host_memory, buffer_size, cache, threads, depth
        See `tabfeed.loader.options.LoaderOptions`.
    reader, device_memory
        See `tabfeed.loader.options.GpuOptions`; without a GPU they mean nothing. With
        ``cache="device"`` `device_memory` is for all of the data; half of what is free by default.
    static_batch
        Give every batch in the same tensors, for CUDA graphs and `torch.compile`; see
        `tabfeed.loader.torch.base`.

    Examples
    --------
    >>> ds = Dataset({"x": [1, 2, 3], "words": [[7], [], [8, 9]], "y": [0.0, 1.0, 0.0]})
    >>> for inputs, target in Loader(ds, batch_size=2, targets=["y"]):
    ...     print({name: t.tolist() for name, t in inputs.items()}, target.tolist())
    {'x': [1, 2], 'words__values': [7], 'words__offsets': [0, 1, 1]} [0.0, 1.0]
    {'x': [3], 'words__values': [8, 9], 'words__offsets': [0, 2]} [0.0]
    """

    @known_arguments
    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        shuffle: bool = False,
        seed_fn: Callable[[], int] | None = None,
        parts_per_chunk: int = 1,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        transforms: Any = None,
        device: Any = None,
        *,
        columns: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        extras: Sequence[str] = (),
        lists: str = "ragged",
        seed: int = 0,
        last: str | None = None,
        streams: int | None = None,
        host_memory: int | float | str | None = None,
        buffer_size: int | float | str | None = None,
        cache: str | None = None,
        threads: int | None = None,
        depth: int | None = None,
        reader: str = "auto",
        device_memory: int | float | str | None = None,
        static_batch: bool = False,
    ) -> None:
        global_rank, global_size = rank_and_world(global_rank, global_size)
        options = LoaderOptions.among(locals())
        chosen = DictColumns.choose(dataset, transforms, columns, targets, extras)
        self.output_schema, self.targets = chosen.schema, list(chosen.targets)
        self.device = choose_device(device)
        finish = _FinishDicts(chosen.targets, _list_form(lists, chosen.layout), self.device)
        assemble = self._assembler(GpuOptions(reader, device_memory), options.cache)
        self.pipeline = build_pipeline(
            dataset, chosen.layout, options.off_device, finish, chosen.steps, assemble
        )
        if static_batch:
            from tabfeed.loader.torch.base import ragged_after

            self._keep_static(ragged_after(chosen.layout, chosen.steps))
        warn_if_sorted(dataset, self.targets, self.pipeline.plan)

    def map(self, fn: Callable[[Any, Any], Any]) -> Loader:
        """A loader whose batches go through ``fn(inputs, targets)``.

        Background threads call `fn` ahead of the loop, several at a time, so it must depend only on
        its arguments. On a GPU the training thread itself calls it if there are no lists and no
        `extras`, and nothing is cached there: for all batches of a chunk, one after the other. Its
        GPU work is queued beside the model; the loop waits for the rest.
        """
        new = copy.copy(self)
        new.static = copy.copy(self.static)  # a copy has tensors of its own
        finish: Any = self.pipeline.stages.finish
        functions = (*finish.functions, fn)
        new.state = self.state.finishing(replace(finish, functions=functions))
        return new

    def epochs(self, count: int = 1) -> Iterator[Any]:
        """Batches of several epochs, one after the other."""
        for _ in range(count):
            yield from self
