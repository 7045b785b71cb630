"""Arrays of batches as TensorFlow tensors, in their own memory where possible, and as `tf.data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tabfeed.loader.keras.fields import Array, Field, make_entries, weights_of

__all__ = ["Structure", "as_tensor", "build_entry", "make_dataset", "put", "put_on_device"]

_ALIGNMENT = 64


def as_tensor(array: Array) -> tf.Tensor:
    """The array's own memory as a tensor, where TensorFlow can use it; a copy otherwise."""
    shareable = array.size and array.flags.c_contiguous and array.flags.writeable
    if shareable and array.ctypes.data % _ALIGNMENT == 0:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.convert_to_tensor(array)


def put(arrays: Sequence[Array]) -> list[tf.Tensor]:
    """Arrays as tensors."""
    return [as_tensor(array) for array in arrays]


def put_on_device(arrays: Sequence[Array]) -> list[tf.Tensor]:
    """The same, on the device of the scope it is called in."""
    return [tf.identity(as_tensor(array)) for array in arrays]


def build_entry(field: Field, parts: Sequence[Any]) -> Any:
    """The tensor of a field from those it is made of."""
    if field.form == "ragged":
        return tf.RaggedTensor.from_row_splits(parts[0], parts[1], validate=False)
    if field.form == "sparse":
        return tf.SparseTensor(*parts)
    return tuple(parts) if field.form == "pair" else parts[0]


# -- tf.data --------------------------------------------------------------------------------------


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
        """A number for each batch of an epoch."""
        mine: set[int] = set()
        try:
            for batch in self._batches():
                self._number += 1
                number = self._number
                mine.add(number)
                self._held[number] = batch
                yield number
                mine.discard(number)
        finally:  # an abandoned epoch leaves nothing behind
            for number in mine:
                self._held.pop(number, None)

    def take(self, number: Any) -> list[Array]:
        """The batch of a number, once."""
        return self._held.pop(int(number))


@dataclass(frozen=True)
class Structure:
    """Flat tensors as ``(inputs, labels)``.

    It does not hold the loader, which holds a dataset made with it.

    Attributes
    ----------
    fields
        The entries of a batch, labels last.
    labels
        How many of the entries are labels.
    weights
        Of rows, by their label.
    rows
        Rows in a batch; None if the last one has fewer.
    by_name
        Whether labels come as a dict by name; otherwise several are a tuple.
    """

    fields: tuple[Field, ...]
    labels: int
    weights: Mapping[int, float] | None
    rows: int | None
    by_name: bool = False

    def specs(self) -> list[tf.TensorSpec]:
        """What the tensors of a batch are."""
        flat = [spec for field in self.fields for spec in _part_specs(field, self.rows)]
        if self.weights is not None:
            flat.append(tf.TensorSpec((self.rows,), tf.float32))
        return flat

    def __call__(self, tensors: Sequence[tf.Tensor]) -> Any:
        """The batch; without labels ``(inputs,)``."""
        x = make_entries(self.fields, tensors, build_entry)
        names = [field.name for field in self.fields[len(self.fields) - self.labels :]]
        y = {name: x.pop(name) for name in names}
        if not y:
            return (x,)
        found = tuple(y.values())
        labels: Any = y if self.by_name else found[0] if len(found) == 1 else found
        return (x, labels) if self.weights is None else (x, labels, tensors[-1])


def make_dataset(
    structure: Structure,
    batches: Callable[[], Iterator[list[Array]]],
    *,
    own_shards: bool,
    steps: int | None = None,
) -> tf.data.Dataset:
    """The batches of a loader as a `tf.data.Dataset`; shapes vary in the last batch's rows alone.

    Parameters
    ----------
    structure
        What a batch is made of.
    batches
        Begins an epoch of their arrays.
    own_shards
        Whether each process has rows of its own: TensorFlow must not shard them again.
    steps
        How many there are, fewer being an error; None if that is not known.
    """
    waiting, flat = _Waiting(batches), structure.specs()

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
    dataset = numbers.map(assemble).with_options(_options(own_shards=own_shards))
    if steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset


def _options(*, own_shards: bool) -> tf.data.Options:
    options = tf.data.Options()
    policy = tf.data.experimental.AutoShardPolicy
    options.experimental_distribute.auto_shard_policy = policy.OFF if own_shards else policy.DATA
    options.deterministic = True
    # Nothing here is left to be tuned, and the thread that would do it is at times waited for when
    # an iterator goes: `fit` then stood still for seconds at its end.
    options.autotune.enabled = False
    return options
