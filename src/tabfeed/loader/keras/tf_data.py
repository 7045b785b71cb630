"""A loader's batches as `tf.data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tabfeed.loader.keras.adapter import KerasPipeline
from tabfeed.loader.keras.fields import PARTS, Array, Field
from tabfeed.loader.keras.finish import weights_of
from tabfeed.loader.keras.tf_tensors import build_entry

__all__ = ["make_dataset"]


def _part_specs(field: Field, rows: int | None) -> list[tf.TensorSpec]:
    dtype = tf.as_dtype(field.dtype)
    if field.form == "ragged":
        ends = None if rows is None else rows + 1
        return [tf.TensorSpec((None,), dtype), tf.TensorSpec((ends,), tf.int64)]
    if field.form == "pair":
        return [tf.TensorSpec((None, 1), dtype), tf.TensorSpec((rows, 1), tf.int32)]
    if field.form == "sparse":
        indices = tf.TensorSpec((None, 2), tf.int64)
        return [indices, tf.TensorSpec((None,), dtype), tf.TensorSpec((2,), tf.int64)]
    return [tf.TensorSpec((rows, field.width), dtype)]


class _Waiting:
    """Batches between the generator that counts them and the function that takes them."""

    def __init__(self, batches: Callable[[], Iterator[list[Array]]]) -> None:
        self._batches = batches
        self._held: dict[int, list[Array]] = {}
        self._number = 0

    def numbers(self) -> Iterator[int]:
        """A number for each batch of a pass."""
        mine: set[int] = set()
        try:
            for batch in self._batches():
                self._number += 1
                number = self._number
                mine.add(number)
                self._held[number] = batch
                yield number
                mine.discard(number)
        finally:  # an abandoned pass leaves nothing behind
            for number in mine:
                self._held.pop(number, None)

    def take(self, number: Any) -> list[Array]:
        """The batch of a number, once."""
        return self._held.pop(int(number))


@dataclass(frozen=True)
class _Structure:
    """Flat tensors as ``(inputs, labels)``, without holding the loader, which holds a dataset."""

    fields: tuple[Field, ...]
    labels: int
    weights: Mapping[int, float] | None
    by_name: bool = False

    @classmethod
    def of(cls, loader: KerasPipeline, *, by_name: bool) -> _Structure:
        """That of a loader's batches."""
        return cls(loader.fields, len(loader.roles.labels), loader.class_weight, by_name)

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Any:
        """The batch; without labels ``(inputs,)``."""
        entries, at = [], 0
        for field in self.fields:
            count = PARTS[field.form]
            entries.append(build_entry(field, tensors[at : at + count]))
            at += count
        inputs = len(entries) - self.labels
        names = [field.name for field in self.fields]
        x, y = dict(zip(names[:inputs], entries, strict=False)), entries[inputs:]
        if not y:
            return (x,)
        labels: Any = y[0] if len(y) == 1 else tuple(y)
        if self.by_name:
            labels = dict(zip(names[inputs:], y, strict=True))
        return (x, labels) if self.weights is None else (x, labels, tensors[-1])


def make_dataset(
    loader: KerasPipeline,
    batches: Callable[[], Iterator[list[Array]]],
    *,
    exact: bool = False,
    by_name: bool = False,
) -> tf.data.Dataset:
    """The batches of a loader as a `tf.data.Dataset`; shapes vary in the last batch's rows alone.

    Parameters
    ----------
    loader
        Whose batches.
    batches
        Begins a pass over their arrays.
    exact
        Whether to tell how many there are, and to make fewer an error.
    by_name
        Whether several labels come as a dict by name, not as a tuple.
    """
    rows = loader.batch_size if not loader.has_partial_batch else None
    specs = [_part_specs(field, rows) for field in loader.fields]
    flat = [spec for parts in specs for spec in parts]
    if loader.class_weight is not None:
        flat.append(tf.TensorSpec((rows,), tf.float32))
    waiting, structure = _Waiting(batches), _Structure.of(loader, by_name=by_name)

    def take(number: Any) -> list[Array]:
        arrays = waiting.take(number)
        if structure.weights is not None:
            arrays = [*arrays, weights_of(arrays[-1], structure.weights)]
        return arrays

    def assemble(number: tf.Tensor) -> Any:
        tensors = tf.numpy_function(take, [number], [spec.dtype for spec in flat])
        for tensor, spec in zip(tensors, flat, strict=True):
            tensor.set_shape(spec.shape)
        return structure(tensors)

    numbers = tf.data.Dataset.from_generator(
        waiting.numbers, output_signature=tf.TensorSpec((), tf.int64)
    )
    # No prefetch: the loader prepares batches in the background anyway, and a state made in the
    # middle of an epoch would count batches that the model has not seen.
    dataset = numbers.map(assemble).with_options(_options(loader))
    if exact:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(loader)))
    return dataset


def _options(loader: KerasPipeline) -> tf.data.Options:
    options = tf.data.Options()
    shared = loader.pipeline.options.shard.world > 1
    policy = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policy.OFF if shared else policy.DATA
    options.deterministic = True
    # Nothing here is left to be tuned, and the thread that would do it is at times waited for when
    # an iterator goes: `fit` then stood still for seconds at its end.
    options.autotune.enabled = False
    return options
