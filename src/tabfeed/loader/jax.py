"""JAX: batches as ``(dict of arrays, targets)``, sharded over devices if asked.

Arrays are made in the background, one `jax.device_put` for all columns of a batch. JAX holds 32-bit
numbers unless told otherwise; ids that do not fit are refused rather than cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.errors import LoaderError, MissingExtraError
from tabfeed.io.dataset import Dataset
from tabfeed.loader.base import EpochIterator
from tabfeed.loader.build import (
    build_feed,
    dict_layout,
    input_names,
    output_schema,
    split_steps,
    target_names,
)
from tabfeed.loader.chunk import Chunk
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.order_check import warn_if_sorted
from tabfeed.loader.quality import ShuffleQuality, shuffle_quality

try:
    import jax
except ImportError as e:
    raise MissingExtraError("jax", "JAX loaders") from e

__all__ = ["Loader"]

Array = npt.NDArray[Any]


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
                arrays[f"{name}__values"] = values[first:last]
                arrays[f"{name}__offsets"] = offsets[low : high + 1] - first
            extras = {n: a.slice(low, high - low) for n, a in chunk.extras.items()}
            batches.append(self._split({**self._put(arrays), **extras}))
        return batches

    def _put(self, arrays: dict[str, Array]) -> dict[str, Any]:
        if self.sharding is None:
            put: dict[str, Any] = jax.device_put(arrays)
            return put
        make: Any = jax.make_array_from_process_local_data
        return {name: make(self.sharding, array) for name, array in arrays.items()}

    def _split(self, columns: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        targets = {n: columns.pop(n) for n in self.targets if n in columns}
        if len(targets) == 1:
            return columns, next(iter(targets.values()))
        return columns, targets or None


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


class Loader:
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
        How batches lie over devices, along their rows; each process gives its own rows. Every batch
        must divide evenly: use ``drop_last=True`` or ``last="wrap"``.
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
        layout = dict_layout(self.output_schema, names, extras)
        finish = _Finish(tuple(self.targets), sharding)
        self.feed = build_feed(dataset, layout, options, finish, steps)
        warn_if_sorted(dataset, self.targets, self.feed.plan)

    def __len__(self) -> int:
        """Batches in an epoch; the same on every process."""
        return len(self.feed)

    def __iter__(self) -> EpochIterator[Any]:
        return iter(self.feed)

    def epochs(self, count: int = 1) -> Iterator[Any]:
        """Batches of several epochs, one after the other."""
        for _ in range(count):
            yield from self

    def peek(self) -> Any:
        """The first batch of the next pass, without moving on."""
        return self.feed.peek()

    @property
    def num_rows_processed(self) -> int:
        """Rows given so far, over all epochs."""
        return self.feed.rows_given

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass is."""
        self.feed.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands."""
        return self.feed.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.feed.load_state_dict(state_dict)

    def shuffle_quality(self) -> ShuffleQuality:
        """How well the order mixes, from 0 (the files' own order) to 1 (a uniform permutation)."""
        return shuffle_quality(self.feed.plan)

    def close(self) -> None:
        """End the background threads of all passes."""
        self.feed.close()

    stop = close
