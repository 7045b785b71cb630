"""`Loader`: batches as ``(dict of tensors, targets)``."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.loader.base import Feed
from tabfeed.loader.build import (
    build_feed,
    dict_layout,
    input_names,
    output_schema,
    split_steps,
    target_names,
)
from tabfeed.loader.chunk import Chunk
from tabfeed.loader.columns import Lists
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.order_check import warn_if_sorted
from tabfeed.loader.torch.cut import (
    as_tensor,
    batch_sizes,
    choose_device,
    collector_paused,
    cut_lists,
    cut_rows,
)
from tabfeed.loader.torch.feed import TorchFeed, rank_and_world

__all__ = ["Loader"]

Tensor = torch.Tensor
LIST_FORMS = ("ragged", "nested", "padded", "jagged")


@dataclass(frozen=True)
class _FinishDicts:
    """Chunks to ``(dict of tensors, targets)``."""

    targets: tuple[str, ...]
    lists: str
    device: torch.device
    functions: tuple[Callable[[Any, Any], Any], ...] = ()

    def __call__(self, chunk: Chunk) -> list[Any]:
        with collector_paused():
            batches = self._cut(chunk)
        for function in self.functions:
            batches = [function(x, y) for x, y in batches]
        return batches

    def _cut(self, chunk: Chunk) -> list[Any]:
        columns = self._columns(chunk)
        targets = {n: columns.pop(n) for n in self.targets if n in columns}
        names = list(columns)
        if columns:
            inputs = [
                dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
        else:
            inputs = [{} for _ in range(chunk.steps)]
        return list(zip(inputs, self._targets(targets, chunk.steps), strict=True))

    def _columns(self, chunk: Chunk) -> dict[str, Sequence[Any]]:
        sizes = batch_sizes(chunk)
        out: dict[str, Sequence[Any]] = {
            name: cut_rows(as_tensor(array, self.device), chunk)
            for name, array in chunk.columns.items()
        }
        for name, lists in chunk.lists.items():
            out.update(self._list_column(name, lists, chunk))
        starts = chunk.bounds[:-1].tolist()
        for name, array in chunk.extras.items():
            out[name] = [array.slice(s, n) for s, n in zip(starts, sizes, strict=True)]
        return out

    def _list_column(self, name: str, lists: Lists, chunk: Chunk) -> dict[str, Sequence[Any]]:
        cut = cut_lists(lists, chunk, self.device)
        if self.lists == "nested":
            return {name: [torch.nested.nested_tensor_from_jagged(v, o) for v, o in cut]}
        if self.lists == "padded":
            return _padded(name, cut)
        if self.lists == "jagged":
            return {name: [_keyed_jagged(name, v, o) for v, o in cut]}
        return {f"{name}__values": [v for v, _ in cut], f"{name}__offsets": [o for _, o in cut]}

    @staticmethod
    def _targets(targets: dict[str, Sequence[Any]], steps: int) -> Sequence[Any]:
        if not targets:
            return [None] * steps
        if len(targets) == 1:
            return next(iter(targets.values()))
        return [dict(zip(targets, row, strict=True)) for row in zip(*targets.values(), strict=True)]


def _padded(name: str, cut: list[tuple[Tensor, Tensor]]) -> dict[str, Sequence[Tensor]]:
    """Rows filled up to the longest of their batch, and which values are real."""
    values, masks = [], []
    for v, o in cut:
        lengths = o.diff()
        width = int(lengths.max()) if len(lengths) else 0
        mask = torch.arange(width, device=v.device) < lengths[:, None]
        full = torch.zeros(mask.shape + v.shape[1:], dtype=v.dtype, device=v.device)
        full[mask] = v
        values.append(full)
        masks.append(mask)
    return {name: values, f"{name}__mask": masks}


def _keyed_jagged(name: str, values: Tensor, offsets: Tensor) -> Any:
    try:
        jagged = importlib.import_module("torchrec.sparse.jagged_tensor")
    except ImportError as e:
        raise LoaderError('lists="jagged" needs TorchRec: pip install torchrec') from e
    return jagged.KeyedJaggedTensor(keys=[name], values=values, offsets=offsets)


class Loader(TorchFeed):
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
        Where tensors shall be: ``"cpu"`` by default, ``"cuda"``, or a GPU's number.
    columns
        Only these; all that are not `extras` by default.
    targets
        What is to be learned; columns tagged TARGET by default.
    extras
        Columns that ride along as Arrow arrays: keys, text, times.
    lists
        "ragged": ``name__values`` and ``name__offsets``. "nested": torch nested tensors. "padded":
        filled with 0 to the longest row, and ``name__mask``. "jagged": a TorchRec
        KeyedJaggedTensor.
    seed, last, streams, host_memory, buffer_size, cache, threads, depth
        See `tabfeed.loader.options.LoaderOptions`.

    Examples
    --------
    >>> ds = Dataset({"x": [1, 2, 3], "words": [[7], [], [8, 9]], "y": [0.0, 1.0, 0.0]})
    >>> for inputs, target in Loader(ds, batch_size=2, targets=["y"]):
    ...     print({name: t.tolist() for name, t in inputs.items()}, target.tolist())
    {'x': [1, 2], 'words__values': [7], 'words__offsets': [0, 1, 1]} [0.0, 1.0]
    {'x': [3], 'words__values': [8, 9], 'words__offsets': [0, 2]} [0.0]
    """

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
    ) -> None:
        if lists not in LIST_FORMS:
            raise ArgumentError(f"lists is {lists!r}; it must be one of {', '.join(LIST_FORMS)}")
        global_rank, global_size = rank_and_world(global_rank, global_size)
        options = LoaderOptions(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            seed_fn=seed_fn,
            parts_per_chunk=parts_per_chunk,
            global_size=global_size,
            global_rank=global_rank,
            drop_last=drop_last,
            last=last,
            streams=streams,
            host_memory=host_memory,
            buffer_size=buffer_size,
            cache=cache,
            threads=threads,
            depth=depth,
        )
        steps = split_steps(transforms)
        self.output_schema = output_schema(dataset, transforms, steps)
        self.targets = target_names(self.output_schema, targets)
        names = input_names(self.output_schema, columns, extras)
        names += [t for t in self.targets if t not in names]
        self.device = choose_device(device)
        self.feed = build_feed(
            dataset,
            dict_layout(self.output_schema, names, extras),
            options,
            _FinishDicts(tuple(self.targets), lists, self.device),
            steps,
        )
        warn_if_sorted(dataset, self.targets, self.feed.plan)

    def map(self, fn: Callable[[Any, Any], Any]) -> Loader:
        """A loader whose batches go through ``fn(inputs, targets)``, in the background.

        `fn` is called from several threads and must depend on nothing but its arguments.
        """
        new = copy.copy(self)
        finish: Any = self.feed.recipe.finish
        functions = (*finish.functions, fn)
        recipe = replace(self.feed.recipe, finish=replace(finish, functions=functions))
        new.feed = Feed(recipe, self.feed.plan, self.feed.options)
        return new

    def epochs(self, count: int = 1) -> Iterator[Any]:
        """Batches of several epochs, one after the other."""
        for _ in range(count):
            yield from self
