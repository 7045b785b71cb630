"""`Loader`: batches as ``(dict of arrays, targets)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tabfeed.arguments import known_arguments
from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.base_loader import BaseLoader
from tabfeed.loader.build import DictColumns, build_pipeline, split_targets
from tabfeed.loader.jax.transfer import JaxTransfer, as_wide_as_jax, find_device
from tabfeed.loader.options import GpuOptions, LoaderOptions
from tabfeed.loader.read.arrow_columns import Group
from tabfeed.loader.shuffle_quality import warn_if_sorted
from tabfeed.loader.state import EpochIterator

__all__ = ["Loader"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Finish:
    """Chunks to ``(dict of arrays, targets)``.

    Attributes
    ----------
    targets
        What is to be learned.
    transfer
        Takes arrays to the device.
    sharding
        How they are sharded over several devices instead.
    groups
        The columns of those buffers that are copied whole.
    """

    targets: tuple[str, ...]
    transfer: JaxTransfer
    sharding: Any
    groups: tuple[Group, ...] = ()

    def __call__(self, chunk: Chunk) -> list[Any]:
        ready = self._from_buffers(chunk)
        moved = self._put(self._arrays(chunk))
        extras = [
            {name: array.slice(low, high - low) for name, array in chunk.extras.items()}
            for low, high in pairwise(chunk.bounds.tolist())
        ]
        return [
            self._split({**one, **two, **three})
            for one, two, three in zip(ready, moved, extras, strict=True)
        ]

    def _from_buffers(self, chunk: Chunk) -> list[dict[str, Any]]:
        """For each batch the columns that are cut on the device, if any are."""
        if not self.groups:
            return [{} for _ in range(chunk.steps)]
        matrices = [as_wide_as_jax(chunk.matrices[g.name], g.columns) for g in self.groups]
        names = [name for group in self.groups for name in group.columns]
        batches = self.transfer.columns(matrices, chunk.bounds.tolist())
        return [dict(zip(names, columns, strict=True)) for columns in batches]

    def _arrays(self, chunk: Chunk) -> list[dict[str, Array]]:
        """For each batch the other columns."""
        columns = {name: _column(array, name) for name, array in chunk.columns.items()}
        lists = {
            name: (_column(found.values, name), found.offsets.astype(np.int32))
            for name, found in chunk.lists.items()
        }
        batches = []
        for low, high in pairwise(chunk.bounds.tolist()):
            arrays = {name: array[low:high] for name, array in columns.items()}
            for name, (values, offsets) in lists.items():
                first, last = int(offsets[low]), int(offsets[high])
                arrays[f"{name}__offsets"] = offsets[low : high + 1] - first
                arrays[f"{name}__values"] = values[first:last]
            batches.append(arrays)
        return batches

    def _put(self, batches: list[dict[str, Array]]) -> list[dict[str, Any]]:
        if self.sharding is not None:
            return [{name: self._shard(name, a) for name, a in batch.items()} for batch in batches]
        if not any(batches):
            return batches
        # All in one call; as lists, since JAX would put a dict in the order of its names.
        moved = self.transfer([list(batch.values()) for batch in batches])
        return [dict(zip(a, b, strict=True)) for a, b in zip(batches, moved, strict=True)]

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


def _column(array: Array, name: str) -> Array:
    column: Array = as_wide_as_jax(array[None], (name,))[0]
    return column


def _has_own_memory(transfer: JaxTransfer, sharding: Any) -> bool:
    """Whether batches are somewhere else than in host memory."""
    if sharding is None:
        return transfer.remote
    return any(device.platform != "cpu" for device in sharding.device_set)


def _why_apart(sharding: Any, chosen: DictColumns) -> str | None:
    """Why columns go to a device one by one; None if they go there in whole buffers."""
    if sharding is not None:
        return "sharding= spreads batches over devices from host memory"
    for op in chosen.steps.chunks:
        return f"{type(op).__name__} works in host memory for JAX"
    return None if chosen.layout.groups else "there are only list or text columns"


class Loader(BaseLoader):
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
    device
        The device of the arrays: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, a GPU's number or a device of
        JAX's; JAX's own default otherwise, which is the GPU if there is one.
    sharding
        How batches are sharded over devices instead, by rows; each process gives its own rows, and
        the arrays are those of all processes together. Every batch must divide evenly: use
        ``drop_last=True`` or ``last="wrap"``, and `Padding` for ragged columns.
    columns, targets, extras
        As for `tabfeed.loader.torch.Loader`; ragged columns come as ``name__values`` and
        ``name__offsets``.
    seed, last, streams, host_memory, buffer_size, cache, threads, depth
        See `tabfeed.loader.options.LoaderOptions`.
    reader, device_memory
        See `tabfeed.loader.options.GpuOptions`. `reader` has a meaning where PyTorch sees the
        GPU as well, and makes chunks there; if it does not, `reader_choice` says why. ``"auto"`` is
        ``"arrow"`` here.

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
        device: Any = None,
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
        reader: str = "auto",
        device_memory: int | float | str | None = None,
    ) -> None:
        if global_size is None and global_rank is None and jax.process_count() > 1:
            global_size, global_rank = jax.process_count(), jax.process_index()
        options, on_gpu = LoaderOptions.among(locals()), GpuOptions(reader, device_memory)
        if device is not None and sharding is not None:
            raise ArgumentError("device and sharding both set where arrays go; give only one")
        chosen = DictColumns.choose(dataset, transforms, columns, targets, extras)
        self.output_schema, self.targets = chosen.schema, list(chosen.targets)
        finish = _Finish(chosen.targets, JaxTransfer(find_device(device)), sharding)
        layout, apart = chosen.layout, _why_apart(sharding, chosen)
        elsewhere = _has_own_memory(finish.transfer, sharding)
        if elsewhere and apart is None:
            finish = replace(finish, groups=layout.groups)
            layout = replace(layout, matrices=True)
        pipeline = build_pipeline(dataset, layout, options, finish, chosen.steps)
        if elsewhere:
            from tabfeed.loader.jax.device_chunks import on_device

            pipeline = on_device(pipeline, finish.transfer, finish.groups, on_gpu, apart, sharding)
        self.pipeline = pipeline
        warn_if_sorted(dataset, self.targets, self.pipeline.plan)

    def __iter__(self) -> EpochIterator[Any]:
        return self.state.iterate()

    def epochs(self, count: int = 1) -> Iterator[Any]:
        """Batches of several epochs, one after the other."""
        for _ in range(count):
            yield from self
