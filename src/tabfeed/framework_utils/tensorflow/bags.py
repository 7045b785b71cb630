"""Ids as they come, in any of five forms, made one thing: a bag of ids for each row.

A batch may hold the ids of a column as ``(N,)``, ``(N, 1)`` or ``(N, L)`` integers, as a
`tf.RaggedTensor`, a `tf.SparseTensor`, or a pair ``(values, nnz)``. A `Bag` is either dense, ids
``(N, L)``, or flat, all ids one after the other and the row of each. Everything is written in
`keras.ops` so that it runs on every backend; ragged and sparse tensors exist on TensorFlow alone
and are recognised by their attributes.

An id below 0 is none at all; so is one that a mask hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from tabfeed.errors import LoaderError
from tabfeed.loader.keras.columns import Bucketized, Categories

__all__ = ["Bag", "combine", "look_up", "make_bag"]

Tensor = Any


@dataclass(frozen=True)
class Bag:
    """The ids of each row.

    Attributes
    ----------
    ids
        ``(N, L)``, or ``(V,)`` if flat; never below 0.
    real
        Of the same shape, 1 where there is an id and 0 where there is none.
    rows
        If flat, the row of each id, not falling.
    count
        If flat, how many rows there are.
    """

    ids: Tensor
    real: Tensor
    rows: Tensor = None
    count: Tensor = None

    def total(self, vectors: Tensor) -> Tensor:
        """The sum over each row of one vector an id: ``(N, D)``."""
        if self.rows is None:
            return ops.sum(vectors, axis=1)
        return ops.segment_sum(vectors, self.rows, num_segments=self.count)

    def real_as(self, dtype: str) -> Tensor:
        """1 or 0 for each id, with a last axis to multiply vectors by."""
        return ops.expand_dims(ops.cast(self.real, dtype), -1)


def make_bag(value: Any, column: Categories, mask: Tensor = None) -> Bag:
    """What a batch holds of a column, as a bag.

    Parameters
    ----------
    value
        In one of the five forms.
    column
        Whose ids they are.
    mask
        For dense ids: true where one is real.
    """
    if isinstance(column, Bucketized):
        return _real_ones(_bucket_ids(value, column), None, mask)
    if isinstance(value, tuple | list):
        bag = _from_pair(value, column.key)
    elif hasattr(value, "value_rowids"):
        bag = Bag(value.values, None, value.value_rowids(), value.nrows())
    elif hasattr(value, "dense_shape"):
        bag = Bag(value.values, None, value.indices[:, 0], value.dense_shape[0])
    else:
        bag = Bag(ops.expand_dims(value, -1) if len(value.shape) == 1 else value, None)
    return _real_ones(bag, column.default_value, mask, column.num_buckets)


def _from_pair(pair: Any, key: str) -> Bag:
    if len(pair) != 2:
        raise LoaderError(f"{key!r} has {len(pair)} tensors; expected a pair, (values, nnz)")
    values, nnz = (ops.reshape(t, (-1,)) for t in pair)
    ends = ops.cumsum(nnz)
    places = ops.arange(ops.shape(values)[0], dtype=ends.dtype)
    rows = ops.searchsorted(ends, places, side="right")
    return Bag(values, None, rows, ops.shape(nnz)[0])


def _bucket_ids(value: Tensor, column: Bucketized) -> Bag:
    numbers = flat_numbers(value, column.source)
    ids = ops.digitize(numbers, column.boundaries)
    step = len(column.boundaries) + 1
    return Bag(ids + step * ops.arange(column.source.width, dtype=ids.dtype), None)


def flat_numbers(value: Tensor, column: Any) -> Tensor:
    """The numbers of a column as ``(N, width)``, normalised."""
    if column.normalizer is not None:
        value = column.normalizer(value)
    return ops.reshape(value, (-1, column.width))


def _real_ones(bag: Bag, default: int | None, mask: Tensor, num_buckets: int | None = None) -> Bag:
    ids = bag.ids
    if default is not None and num_buckets is not None:
        known = ops.logical_and(ids >= 0, ids < num_buckets)
        ids = ops.where(known, ids, ops.cast(default, ids.dtype))
    real = ids >= 0
    if mask is not None and bag.rows is None:
        mask = ops.reshape(ops.cast(mask, "bool"), ops.shape(ids))
        real = ops.logical_and(real, mask)
    return Bag(ops.maximum(ids, 0), real, bag.rows, bag.count)


def look_up(table: Any, ids: Tensor) -> Tensor:
    """Rows of a table.

    On TensorFlow these rows alone are read. `keras.ops.take` first reads the whole variable, and
    TensorFlow makes a copy of it for that as soon as training has changed single rows: with 46 M
    rows of 16 numbers that was all a step of 4,096 rows did.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.take(table, ids, axis=0)
    import tensorflow as tf

    return tf.gather(table.value, ids)


def combine(bag: Bag, vectors: Tensor, combiner: str) -> Tensor:
    """One vector a row from one an id: their sum, their mean, or their sum over the number's root.

    A row without ids gives zeros.
    """
    real = bag.real_as(vectors.dtype)
    total = bag.total(vectors * real)
    if combiner == "sum" or (bag.rows is None and bag.ids.shape[1] == 1):
        return total
    number = ops.maximum(bag.total(real), 1)
    return total / (number if combiner == "mean" else ops.sqrt(number))
