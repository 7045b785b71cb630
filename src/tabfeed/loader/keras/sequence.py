"""`KerasSequenceLoader`, made from what a user asks for, and a callback that validates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from tabfeed.budget import device_memory, parse_bytes
from tabfeed.errors import ArgumentError
from tabfeed.io.dataset import Dataset
from tabfeed.loader.build import build_pipeline, output_schema, table_steps
from tabfeed.loader.keras.adapter import KerasBase
from tabfeed.loader.keras.backends import Finish, find_device, find_tensors
from tabfeed.loader.keras.fields import Cutter, ListForms, find_roles, make_layout
from tabfeed.loader.options import GpuOptions, LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.shuffle_quality import warn_if_sorted
from tabfeed.schema import Schema

__all__ = ["KerasSequenceLoader", "KerasSequenceValidater"]


class KerasSequenceLoader(KerasBase):
    """Batches ``(dict of (N, 1) tensors, labels)`` for Keras, prepared in the background.

    Ids are integers (32 bits if the data have no more, 64 otherwise, on JAX always 32); numbers and
    labels are float32. One label is ``(N, 1)``, several are a list of such in the order of
    `label_names`, none is None. In ``fit`` and ``evaluate`` several labels come as a dict where the
    model's outputs have their names, and so they do from ``as_tf_dataset(by_name=True)``. In a loop
    of your own they stay a list, and for a model whose outputs are a dict you make one of them:
    Keras pairs a list with sorted names. Batches hold only these columns.

    Parameters
    ----------
    paths_or_dataset
        A `Dataset`, or whatever makes one: a path, a list of them, a glob, a folder, a frame.
    batch_size
        Rows in a batch, on each rank.
    label_names
        What is to be learned; columns tagged TARGET if neither this nor other names are given.
    feature_columns
        `tf.feature_column` objects: each names a column, and says whether it holds ids or numbers.
        Ids at or beyond ``num_buckets`` are an error, unless the column has a default.
    cat_names, cont_names
        Columns of ids and of numbers, instead of `feature_columns`. Without either, tags decide.
    engine, reader_kwargs
        For paths: the format, and more arguments of `Dataset`.
    shuffle
        Whether partitions and rows are permuted anew in every epoch.
    seed_fn
        Called at the start of each epoch for a seed.
    buffer_size
        Most memory for one chunk: bytes, ``"200MB"``, or a share of the GPU's memory (of free
        host memory where there is no GPU). Where chunks are made on the GPU, on torch and JAX, the
        most for everything there, unless `device_memory` is given.
    device
        The device of the tensors, as for `keras.device`, or a GPU's number; by default Keras
        decides.
    parts_per_chunk, global_size, global_rank, drop_last
        See `tabfeed.loader.options.LoaderOptions`.
    sparse_names, sparse_max, sparse_as_dense
        Columns of lists to deliver as matrices ``(N, sparse_max[name])``: `tf.SparseTensor`, or
        dense and filled with 0 on the right. A longer list is an error.
    schema
        Tags and list lengths, instead of the dataset's own.
    lists
        How other columns of lists come: ``"ragged"`` (`tf.RaggedTensor`; on TensorFlow the default)
        or ``"pair"`` (``(values (V, 1), nnz (N, 1))``; the default elsewhere).
    class_weight
        The weight of rows by their label; batches then have the weights third. Give it here:
        ``fit(class_weight=...)`` is refused, since Keras does not pass it on to a loader.
    transforms
        Functions from Arrow table to Arrow table; a fitted workflow is one.
    seed, last, streams, host_memory, cache, threads, depth
        See `tabfeed.loader.options.LoaderOptions`.
    reader, device_memory
        See `tabfeed.loader.options.GpuOptions`; without a GPU, and on TensorFlow, which copies
        to a GPU itself, they mean nothing. On JAX ``"auto"`` is ``"arrow"``.

    Examples
    --------
    >>> ds = Dataset({"C": [1, 2, 3], "I": [0.5, 1.5, 2.5], "label": [0, 1, 0]})
    >>> loader = KerasSequenceLoader(
    ...     ds, 2, label_names=["label"], cat_names=["C"], cont_names=["I"], shuffle=False)
    >>> for x, y in loader:
    ...     print({name: keras.ops.convert_to_numpy(t).tolist() for name, t in x.items()})
    {'C': [[1], [2]], 'I': [[0.5], [1.5]]}
    {'C': [[3]], 'I': [[2.5]]}
    >>> len(loader), loader.num_rows_processed
    (2, 3)
    """

    def __init__(
        self,
        paths_or_dataset: Any,
        batch_size: int,
        label_names: Sequence[str] | str | None = None,
        feature_columns: Iterable[Any] | None = None,
        cat_names: Sequence[str] | str | None = None,
        cont_names: Sequence[str] | str | None = None,
        engine: str | None = None,
        shuffle: bool = True,
        seed_fn: Callable[[], int] | None = None,
        buffer_size: int | float | str | None = None,
        device: int | str | None = None,
        parts_per_chunk: int = 1,
        reader_kwargs: Mapping[str, Any] | None = None,
        global_size: int | None = None,
        global_rank: int | None = None,
        drop_last: bool = False,
        sparse_names: Sequence[str] | None = None,
        sparse_max: Mapping[str, int] | None = None,
        sparse_as_dense: bool = False,
        schema: Schema | None = None,
        *,
        lists: str | None = None,
        class_weight: Mapping[int, float] | None = None,
        transforms: Any = None,
        seed: int = 0,
        last: str | None = None,
        streams: int | None = None,
        host_memory: int | float | str | None = None,
        cache: str | None = None,
        threads: int | None = None,
        depth: int | None = None,
        reader: str = "auto",
        device_memory: int | float | str | None = None,
    ) -> None:
        dataset = _as_dataset(paths_or_dataset, engine, reader_kwargs)
        options = LoaderOptions.among(locals(), buffer_size=_buffer_bytes(buffer_size))
        steps = table_steps(transforms, "KerasSequenceLoader")
        known = _with_remarks(output_schema(dataset, transforms, steps), schema)
        self.roles = find_roles(known, feature_columns, cat_names, cont_names, label_names)
        backend = keras.backend.backend()
        forms = ListForms.choose(backend, lists, sparse_names, sparse_max, sparse_as_dense)
        layout, self.fields = make_layout(known, self.roles, forms, narrow=backend == "jax")
        if class_weight is not None and len(self.roles.labels) != 1:
            raise ArgumentError(f"class_weight needs one label; there are {len(self.roles.labels)}")
        self.class_weight = None if class_weight is None else dict(class_weight)
        where = find_device(device)
        tensors = find_tensors(where, GpuOptions(reader, device_memory))
        cutter = raw = Cutter(self.fields, self.roles.limits)
        if tensors.columns is not None:
            layout = replace(layout, matrices=True)
            raw = replace(raw, groups=layout.groups)
            cutter = raw.without_buffers()
        finish = Finish(
            self.fields, cutter, tensors, len(self.roles.labels), where, self.class_weight
        )
        pipeline: Pipeline[Any] = build_pipeline(dataset, layout, options, finish, steps)
        warn_if_sorted(dataset, self.roles.labels, pipeline.plan)
        super().__init__(tensors.on_device(pipeline), replace(pipeline.stages, finish=raw))


def _as_dataset(
    source: Any, engine: str | None, reader_kwargs: Mapping[str, Any] | None
) -> Dataset:
    if isinstance(source, Dataset):
        if reader_kwargs:
            raise ArgumentError(
                f"reader_kwargs has {', '.join(reader_kwargs)}, but a Dataset is open already; "
                "give them to it"
            )
        return source
    return Dataset(source, engine, **dict(reader_kwargs or {}))


def _with_remarks(found: Schema, given: Schema | None) -> Schema:
    """The columns there are, with what the given schema says of them."""
    if given is None:
        return found
    return Schema(
        given[c.name].with_dtype(c.dtype) if c.name in given else c.without_tags(c.tags)
        for c in found
    )


def _buffer_bytes(size: int | float | str | None) -> int | None:
    """An amount in bytes; a share is one of the GPU's memory, where there is one."""
    return None if size is None else parse_bytes(size, name="buffer_size", of=device_memory())


class KerasSequenceValidater(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Evaluates the model on a loader after each epoch; the history then has ``val_*``.

    Metrics are reset before, and are afterwards as training left them.
    ``fit(validation_data=loader)`` does the same.

    Parameters
    ----------
    dataloader
        What to evaluate on: a `KerasSequenceLoader`, or anything else ``model.evaluate`` takes.
    """

    def __init__(self, dataloader: Any) -> None:
        super().__init__()
        self.dataloader = dataloader

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluate, and add what came out to `logs`."""
        variables = [v for metric in self.model.metrics for v in metric.variables]
        kept = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
        found = self.model.evaluate(self.dataloader, verbose=0, return_dict=True)
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in found.items()})
