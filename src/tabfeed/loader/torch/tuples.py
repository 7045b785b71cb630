"""`TorchAsyncItr`: batches as ``(x_cat, x_cont, y)``.

Its tensors are transposed views of column buffers: each column is contiguous, as embedding lookups
need it. ``row_major=True`` makes rows contiguous instead, for one more copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from tabfeed.arguments import known_arguments
from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.loader.assemble.batch_ops import pad_lists
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.base_loader import line
from tabfeed.loader.build import build_pipeline, matrix_layout, output_schema, table_steps
from tabfeed.loader.options import GpuOptions, LoaderOptions
from tabfeed.loader.read.arrow_columns import Lists
from tabfeed.loader.shuffle_quality import warn_if_sorted
from tabfeed.loader.tensors.cut import (
    as_tensor,
    cut_all,
    cut_lists,
    pad_ragged,
)
from tabfeed.loader.tensors.device import choose_device
from tabfeed.loader.torch.base import TorchBase, rank_and_world
from tabfeed.schema import Schema, Tags

__all__ = ["TorchAsyncItr"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class _Sparse:
    """How multi-hot columns are delivered."""

    names: tuple[str, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)
    as_dense: bool = False

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in self.widths:
                raise ArgumentError(
                    f"sparse_names has {name!r}, but sparse_max says nothing of it; give "
                    f'sparse_max={{"{name}": most values in a row}}'
                )

    def makes_dense(self, name: str) -> bool:
        """Whether all rows of a column get one length."""
        return self.as_dense and name in self.names

    def cut(self, name: str, lists: Lists, chunk: Chunk, device: torch.device) -> list[Any]:
        """One column of each batch."""
        if name not in self.names:
            return cut_lists(lists, chunk, device)
        values, offsets = cast(Any, lists.values), cast(Any, lists.offsets)
        width = self.widths[name]
        on_device = isinstance(values, Tensor)
        lengths = offsets.diff() if on_device else np.diff(offsets)
        longest = int(lengths.max()) if len(lengths) else 0  # waits for a GPU
        if longest > width:
            raise LoaderError(
                f"column {name!r} has a row of {longest} values; sparse_max allows {width}"
            )
        if self.as_dense:
            rows = pad_ragged(values, offsets, width, 0) if on_device else pad_lists(lists, width)
            return cut_all([as_tensor(rows, device)], chunk)[0]
        return [_coo(v, o, width) for v, o in cut_lists(lists, chunk, device)]


def _coo(values: Tensor, offsets: Tensor, width: int) -> Tensor:
    lengths = offsets.diff()
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
    places = torch.arange(len(values), device=values.device) - offsets[:-1][rows]
    shape = (len(lengths), width)
    places = torch.stack([rows, places])
    return torch.sparse_coo_tensor(places, values, shape, is_coalesced=True, check_invariants=False)


@dataclass(frozen=True)
class _FinishTuples:
    """Chunks to ``(x_cat, x_cont, y)``."""

    multi_hot: tuple[str, ...]
    one_label: bool
    sparse: _Sparse
    device: torch.device
    row_major: bool
    only_cuts = True  # all batches are views of the same memory

    def __call__(self, chunk: Chunk) -> list[Any]:
        found = {name: self._rows(chunk, name) for name in ("cats", "conts", "labels")}
        there = {name: rows for name, rows in found.items() if rows is not None}
        cut: dict[str, Sequence[Any]] = dict.fromkeys(found, [None] * chunk.steps)
        cut |= zip(there, cut_all(list(there.values()), chunk), strict=True)
        if self.multi_hot:
            columns = [
                self.sparse.cut(n, chunk.lists[n], chunk, self.device) for n in self.multi_hot
            ]
            beside = [dict(zip(self.multi_hot, c, strict=True)) for c in zip(*columns, strict=True)]
            cut["cats"] = list(zip(cut["cats"], beside, strict=True))
        return list(zip(*cut.values(), strict=True))

    def _rows(self, chunk: Chunk, group: str) -> Tensor | None:
        """The rows of a group; None if there is none."""
        buffer = chunk.matrices.get(group)
        if buffer is None:
            return None
        if group == "labels" and self.one_label:
            return as_tensor(buffer[0], self.device)
        rows = as_tensor(buffer, self.device).t()
        return rows.contiguous() if self.row_major else rows


class TorchAsyncItr(TorchBase):
    """Batches ``(x_cat, x_cont, y)``, prepared in the background.

    ``x_cat`` is int64 ``(N, categories)``, its columns **sorted by name** whatever order `cats` is
    given in: as `get_embedding_sizes` has them, so that table ``i`` belongs to column ``i``. The
    attribute `cats` says which order that is. ``x_cont`` is float32 ``(N, numbers)`` in the order
    given; ``y`` is float32, ``(N,)`` for one label. A group that is not there is None. With
    multi-hot columns ``x_cat`` is a pair: the matrix of the others (or None), and a dict
    ``{name: (values, offsets)}`` where row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Parameters
    ----------
    dataset
        What to load.
    cats, conts, labels
        Columns; by their tags in the schema when none of the three is given.
    batch_size, shuffle, seed_fn, parts_per_chunk, global_size, global_rank, drop_last
        See `tabfeed.loader.options.LoaderOptions`.
    device
        The device of tensors: ``"cpu"``, ``"cuda"``, or a GPU's number; the GPU by default, if
        there is one.
    sparse_names, sparse_max, sparse_as_dense
        Multi-hot columns to deliver as sparse matrices ``(N, sparse_max[name])``, or as dense ones
        filled with 0 on the right.
    row_major
        Lay rows, not columns, in memory.
    transforms
        Functions from Arrow table to Arrow table, applied to each partition; a workflow is one.
    seed, last, streams, host_memory, buffer_size, cache, threads, depth
        See `tabfeed.loader.options.LoaderOptions`.
    reader, device_memory
        See `tabfeed.loader.options.GpuOptions`; without a GPU they mean nothing. With
        ``cache="device"`` `device_memory` is for all of the data; half of what is free by default.
    static_batch
        Give every batch in the same tensors, for CUDA graphs and `torch.compile`; see
        `tabfeed.loader.torch.base`.

    Attributes
    ----------
    cats, conts, labels
        The columns of ``x_cat``, ``x_cont`` and ``y``, in their order there. Multi-hot columns are
        among `cats`, and come in the dict, not in the matrix.

    Examples
    --------
    >>> ds = Dataset({"C": [1, 2, 3], "I": [0.5, 1.5, 2.5], "label": [0, 1, 0]})
    >>> for x_cat, x_cont, y in TorchAsyncItr(ds, ["C"], ["I"], ["label"], batch_size=2):
    ...     print(x_cat.tolist(), x_cont.tolist(), y.tolist())
    [[1], [2]] [[0.5], [1.5]] [0.0, 1.0]
    [[3]] [[2.5]] [0.0]
    >>> TorchAsyncItr(Dataset({"b": [10], "a": [20]}), cats=["b", "a"]).cats
    ['a', 'b']
    """

    @known_arguments
    def __init__(
        self,
        dataset: Dataset,
        cats: Sequence[str] | None = None,
        conts: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        seed_fn: Callable[[], int] | None = None,
        parts_per_chunk: int = 1,
        device: Any = None,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        sparse_names: Sequence[str] | None = None,
        sparse_max: Mapping[str, int] | None = None,
        sparse_as_dense: bool = False,
        *,
        row_major: bool = False,
        transforms: Any = None,
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
        steps = table_steps(transforms, "TorchAsyncItr")
        schema = output_schema(dataset, transforms, steps)
        self.cats, self.conts, self.labels = _roles(schema, cats, conts, labels)
        layout = matrix_layout(
            schema,
            [
                ("cats", self.cats, np.dtype(np.int64)),
                ("conts", self.conts, np.dtype(np.float32)),
                ("labels", self.labels, np.dtype(np.float32)),
            ],
        )
        if lists := [n for n, _ in layout.lists if n in (*self.conts, *self.labels)]:
            raise LoaderError(
                f"column {lists[0]!r} holds lists; here only categories may: use "
                "tabfeed.loader.torch.Loader for other lists"
            )
        self.device = choose_device(device)
        sparse = _Sparse(tuple(sparse_names or ()), dict(sparse_max or {}), sparse_as_dense)
        finish = _FinishTuples(
            multi_hot=tuple(name for name, _ in layout.lists),
            one_label=len(self.labels) == 1,
            sparse=sparse,
            device=self.device,
            row_major=row_major,
        )
        assemble = self._assembler(GpuOptions(reader, device_memory), options.cache)
        self.pipeline = build_pipeline(dataset, layout, options.off_device, finish, steps, assemble)
        if static_batch:
            self._keep_static([n for n in finish.multi_hot if not sparse.makes_dense(n)])
        warn_if_sorted(dataset, self.labels, self.pipeline.plan)

    def __repr__(self) -> str:
        roles = {"cats": self.cats, "conts": self.conts, "labels": self.labels}
        return line(type(self).__name__, self.state, roles)


def _roles(
    schema: Schema,
    cats: Sequence[str] | None,
    conts: Sequence[str] | None,
    labels: Sequence[str] | None,
) -> tuple[list[str], list[str], list[str]]:
    """Columns by role, as named or as tagged; categories sorted by name."""
    if cats is None and conts is None and labels is None:
        targets = schema.select_by_tag(Tags.TARGET).column_names
        inputs = schema.without(targets)
        return (
            sorted(inputs.select_by_tag(Tags.CATEGORICAL).column_names),
            inputs.select_by_tag(Tags.CONTINUOUS).column_names,
            targets,
        )
    chosen = [[g] if isinstance(g, str) else list(g or ()) for g in (cats, conts, labels)]
    schema.select(dict.fromkeys(name for group in chosen for name in group))  # are all there?
    return sorted(chosen[0]), chosen[1], chosen[2]
