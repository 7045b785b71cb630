"""JAX: batches as ``(dict of arrays, targets)``, sharded over devices if asked.

Arrays are made in the background, one `jax.device_put` for all columns of a batch. JAX holds 32-bit
numbers unless told otherwise; ids that do not fit are refused rather than cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.arguments import known_arguments
from tabfeed.errors import LoaderError, MissingExtraError
from tabfeed.io.dataset import Dataset
from tabfeed.loader.base import EpochIterator
from tabfeed.loader.build import build_feed
from tabfeed.loader.chunk import Chunk
from tabfeed.loader.dicts import DictColumns, split_targets
from tabfeed.loader.door import Door
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.order_check import warn_if_sorted

try:
    import jax
except ImportError as e:
    raise MissingExtraError("jax", "JAX loaders") from e

__all__ = ["Loader", "cut_columns", "put"]

Array = npt.NDArray[Any]


def put(arrays: Sequence[Array]) -> Sequence[Any]:
    """Arrays on JAX's device, in one call; on the CPU they keep their memory where it is aligned.

    JAX holds on to an array for as long as it looks at its memory.
    """
    moved: Sequence[Any] = jax.device_put(arrays)
    return moved


def cut_columns(matrix: Array, bounds: tuple[int, ...]) -> Sequence[Sequence[Any]]:
    """For each batch of a ``(columns, rows)`` buffer its columns, ``(rows, 1)``.

    The buffer is copied whole and cut on the device, by a call compiled once for each shape. The
    calling thread waits for the copy: a cut that were queued before it has come would hold up the
    model's steps, which run in the order they are asked for.

    Examples
    --------
    >>> first, second = cut_columns(np.array([[1, 2, 3], [4, 5, 6]], np.int32), (0, 2, 3))
    >>> [column.tolist() for column in first], [column.tolist() for column in second]
    ([[[1], [2]], [[4], [5]]], [[[3]], [[6]]])
    """
    found: Sequence[Sequence[Any]] = _cut(jax.device_put(matrix).block_until_ready(), bounds)
    return found


@partial(jax.jit, static_argnums=1)
def _cut(whole: Any, bounds: tuple[int, ...]) -> list[list[Any]]:
    return [list(whole[:, low:high, None]) for low, high in pairwise(bounds)]


@dataclass(frozen=True)
class _Finish:
    """Chunks to ``(dict of arrays, targets)``."""

    targets: tuple[str, ...]
    sharding: Any

    def __call__(self, chunk: Chunk) -> list[Any]:
        columns = {name: _fit(array, name) for name, array in chunk.columns.items()}
        lists = {n: (_fit(v.values, n), v.offsets.astype(np.int32)) for n, v in chunk.lists.items()}
        batches = []
        bounds = chunk.bounds.tolist()
        for low, high in pairwise(bounds):
            arrays: dict[str, Any] = {n: a[low:high] for n, a in columns.items()}
            for name, (values, offsets) in lists.items():
                first, last = int(offsets[low]), int(offsets[high])
                arrays[f"{name}__offsets"] = offsets[low : high + 1] - first
                arrays[f"{name}__values"] = values[first:last]
            extras = {n: a.slice(low, high - low) for n, a in chunk.extras.items()}
            batches.append(self._split({**self._put(arrays), **extras}))
        return batches

    def _put(self, arrays: dict[str, Array]) -> dict[str, Any]:
        if self.sharding is None:
            moved: dict[str, Any] = jax.device_put(arrays)
            return moved
        return {name: self._shard(name, array) for name, array in arrays.items()}

    def _shard(self, name: str, array: Array) -> Any:
        if name.endswith("__offsets"):
            raise LoaderError(
                f"column {name.removesuffix('__offsets')!r} is ragged, and what differs in length "
                "cannot be sharded: give Padding in transforms=, or leave the column out"
            )
        make: Any = jax.make_array_from_process_local_data
        try:
            return make(self.sharding, array)
        except ValueError as e:
            raise LoaderError(
                f"column {name!r} has {len(array)} rows here, which this sharding cannot spread "
                f'evenly ({e}): use drop_last=True or last="wrap", and a batch_size that divides'
            ) from e

    def _split(self, columns: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        names, found = split_targets(columns, self.targets)
        inputs = {name: columns[name] for name in names}
        if isinstance(found, list):
            return inputs, {name: columns[name] for name in found}
        return inputs, None if found is None else columns[found]


def _fit(array: Array, name: str) -> Array:
    """The array in a dtype JAX has: 32 bits unless ``jax_enable_x64`` is on."""
    config: Any = jax.config
    if config.jax_enable_x64 or array.dtype.itemsize < 8 or array.dtype.kind not in "iuf":
        return array
    narrow = np.dtype(f"{array.dtype.kind}4")
    if array.dtype.kind != "f" and array.size:
        limits = np.iinfo(narrow)
        if array.min() < limits.min or array.max() > limits.max:
            raise LoaderError(
                f"column {name!r} goes from {array.min()} to {array.max()}, beyond the 32 bits JAX "
                'uses: jax.config.update("jax_enable_x64", True) allows 64'
            )
    return array.astype(narrow)


class Loader(Door):
    """Batches ``(inputs, targets)`` of JAX arrays, prepared in the background.

    Parameters
    ----------
    dataset
        What to load.
    batch_size, shuffle, seed_fn, parts_per_chunk, global_size, global_rank, drop_last
        See `tabfeed.loader.options.LoaderOptions`. Rank and size default to JAX's process index and
        count where there are several processes.
    transforms
        Functions from Arrow table to Arrow table, then `Padding` and `EmbeddingOperator`.
    sharding
        How batches lie over devices, along their rows; each process gives its own rows, and the
        arrays are those of all processes together. Every batch must divide evenly: use
        ``drop_last=True`` or ``last="wrap"``, and `Padding` for ragged columns.
    columns, targets, extras
        As for `tabfeed.loader.torch.Loader`; ragged columns come as ``name__values`` and
        ``name__offsets``.
    seed, last, streams, host_memory, buffer_size, cache, threads, depth
        See `tabfeed.loader.options.LoaderOptions`.

    Examples
    --------
    >>> ds = Dataset({"x": [1, 2, 3], "y": [0.0, 1.0, 0.0]})
    >>> [(inputs["x"].tolist(), y.tolist()) for inputs, y in Loader(ds, 2, targets=["y"])]
    [([1, 2], [0.0, 1.0]), ([3], [0.0])]
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
        *,
        sharding: Any = None,
        columns: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        extras: Sequence[str] = (),
        seed: int = 0,
        last: str | None = None,
        streams: int | None = None,
        host_memory: int | float | str | None = None,
        buffer_size: int | float | str | None = None,
        cache: str | None = None,
        threads: int | None = None,
        depth: int | None = None,
    ) -> None:
        if global_size is None and global_rank is None and jax.process_count() > 1:
            global_size, global_rank = jax.process_count(), jax.process_index()
        options = LoaderOptions.among(locals())
        chosen = DictColumns.choose(dataset, transforms, columns, targets, extras)
        self.output_schema, self.targets = chosen.schema, list(chosen.targets)
        finish = _Finish(chosen.targets, sharding)
        self.feed = build_feed(dataset, chosen.layout, options, finish, chosen.steps)
        warn_if_sorted(dataset, self.targets, self.feed.plan)

    def __iter__(self) -> EpochIterator[Any]:
        return iter(self.feed)

    def epochs(self, count: int = 1) -> Iterator[Any]:
        """Batches of several epochs, one after the other."""
        for _ in range(count):
            yield from self
