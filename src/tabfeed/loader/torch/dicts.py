"""`Loader`: batches as ``(dict of tensors, targets)``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tabfeed.arguments import known_arguments
from tabfeed.io.dataset import Dataset
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.build import DictColumns, build_pipeline, split_targets
from tabfeed.loader.gpu.devices import choose_device
from tabfeed.loader.options import GpuOptions, LoaderOptions
from tabfeed.loader.sorted_files import warn_if_sorted
from tabfeed.loader.tensors.cut import (
    as_tensor,
    batch_sizes,
    collector_paused,
    cut_lists,
)
from tabfeed.loader.tensors.scripted import cut_all
from tabfeed.loader.torch.base import TorchBase, rank_and_world
from tabfeed.loader.torch.lists import ListForm, list_form
from tabfeed.loader.torch.static import StaticBatch, ragged_after
from tabfeed.user_functions import explain

__all__ = ["Loader"]


@dataclass(frozen=True)
class _FinishDicts:
    """Chunks to ``(dict of tensors, targets)``."""

    targets: tuple[str, ...]
    lists: ListForm
    device: torch.device
    functions: tuple[Callable[[Any, Any], Any], ...] = ()

    @property
    def only_cuts(self) -> bool:
        """Whether all batches share the memory of the first."""
        return not self.functions

    def __call__(self, chunk: Chunk) -> list[Any]:
        with collector_paused():
            batches = self._cut(chunk)
        for function in self.functions:
            batches = _mapped(function, batches, chunk.first_step)
        return batches

    def _cut(self, chunk: Chunk) -> list[Any]:
        columns = self._columns(chunk)
        names, targets = split_targets(columns, self.targets)
        inputs = _dicts(columns, names, chunk.steps)
        return list(zip(inputs, _targets(columns, targets, chunk.steps), strict=True))

    def _columns(self, chunk: Chunk) -> dict[str, Sequence[Any]]:
        tensors = [as_tensor(array, self.device) for array in chunk.columns.values()]
        found = cut_all(tensors, batch_sizes(chunk))
        out: dict[str, Sequence[Any]] = dict(zip(chunk.columns, found, strict=True))
        cut = {name: cut_lists(lists, chunk, self.device) for name, lists in chunk.lists.items()}
        if cut:
            out.update(self.lists(cut))
        rows = list(zip(chunk.bounds[:-1].tolist(), batch_sizes(chunk), strict=True))
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


def _targets(columns: Mapping[str, Sequence[Any]], targets: Any, steps: int) -> Sequence[Any]:
    if targets is None:
        return [None] * steps
    return _dicts(columns, targets, steps) if isinstance(targets, list) else columns[targets]


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
        Where tensors shall be: ``"cpu"``, ``"cuda"``, or a GPU's number; the GPU by default, if
        there is one.
    columns
        Only these; all that are not `extras` by default.
    targets
        What is to be learned; columns tagged TARGET by default.
    extras
        Columns that ride along as Arrow arrays: keys, text, times.
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
        `tabfeed.loader.torch.static`.

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
        finish = _FinishDicts(chosen.targets, list_form(lists, chosen.layout), self.device)
        pipeline = build_pipeline(dataset, chosen.layout, options.off_device, finish, chosen.steps)
        self._place(pipeline, GpuOptions(reader, device_memory), options.cache)
        if static_batch:
            self._keep_static(ragged_after(chosen.layout, chosen.steps))
        warn_if_sorted(dataset, self.targets, self.pipeline.plan)

    def map(self, fn: Callable[[Any, Any], Any]) -> Loader:
        """A loader whose batches go through ``fn(inputs, targets)``.

        `fn` is called ahead of the loop, from several threads, and must depend on nothing but its
        arguments. On a GPU the training thread itself calls it where all columns are plain (no
        lists, no `extras`) and nothing is cached there: for all batches of a chunk, one after the
        other. What it asks of the GPU is queued beside the model; the loop waits for the rest.
        """
        new = copy.copy(self)
        new.static = StaticBatch() if self.static is not None else None
        finish: Any = self.pipeline.stages.finish
        functions = (*finish.functions, fn)
        new.state = self.state.finishing(replace(finish, functions=functions))
        return new

    def epochs(self, count: int = 1) -> Iterator[Any]:
        """Batches of several epochs, one after the other."""
        for _ in range(count):
            yield from self
