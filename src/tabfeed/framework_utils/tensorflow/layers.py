"""Keras 3 layers for tabular models: feature columns to tensors, and products of their vectors.

They run on every Keras backend; ragged and sparse inputs exist on TensorFlow alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import keras
from keras import ops

from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.framework_utils.tensorflow.bags import (
    Bag,
    combine,
    flat_numbers,
    look_up,
    make_bag,
)
from tabfeed.framework_utils.tensorflow.interaction import (
    DotProductInteraction,
    XDeepFmOuterProduct,
)
from tabfeed.loader.keras.columns import (
    Bucketized,
    Categories,
    Column,
    Embedding,
    Identity,
    Indicator,
    Numeric,
    categories_of,
    read_columns,
)

__all__ = ["DenseFeatures", "DotProductInteraction", "LinearFeatures", "XDeepFmOuterProduct"]

AGGREGATIONS = ("concat", "stack")
Tensor = Any
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Numeric, Bucketized, Identity, Embedding, Indicator)
}
_KERAS_OBJECTS = ("initializer", "normalizer")


def _to_config(column: Any) -> dict[str, Any]:
    """A column as plain values; initializers and functions the way Keras saves its own."""
    out: dict[str, Any] = {"column": type(column).__name__}
    for field in fields(column):
        value = getattr(column, field.name)
        if type(value).__name__ in _KINDS:
            value = _to_config(value)
        elif field.name == "initializer":
            value = keras.saving.serialize_keras_object(table_initializer(column))
        elif field.name in _KERAS_OBJECTS:
            value = keras.saving.serialize_keras_object(value)
        out[field.name] = list(value) if isinstance(value, tuple) else value
    return out


def _from_config(config: Mapping[str, Any]) -> Any:
    """What `_to_config` made, as a column again."""
    values = dict(config)
    kind = _KINDS[values.pop("column")]
    for name, value in values.items():
        if isinstance(value, Mapping) and "column" in value:
            values[name] = _from_config(value)
        elif name in _KERAS_OBJECTS:
            values[name] = keras.saving.deserialize_keras_object(value)
        elif isinstance(value, list):
            values[name] = tuple(value)
    return kind(**values)


def table_initializer(column: Embedding) -> Any:
    """What fills a table, as an initializer of Keras.

    TensorFlow's own initializers are rebuilt from their class and settings; by default, as in
    `tf.feature_column`, a normal distribution cut at two deviations of ``1 / sqrt(dimension)``.
    """
    given = column.initializer
    if given is None:
        return keras.initializers.TruncatedNormal(stddev=column.dimension**-0.5)
    if isinstance(given, str | Mapping | keras.initializers.Initializer):
        return keras.initializers.get(given)
    known = getattr(keras.initializers, type(given).__name__, None)
    if known is None or not hasattr(given, "get_config"):
        raise ArgumentError(
            f"the initializer of {column.name!r} is {given!r}; give one of keras.initializers"
        )
    settings = {k: v for k, v in given.get_config().items() if k not in ("dtype", "verify_shape")}
    return known(**settings)


class FeatureLayer(keras.layers.Layer):  # type: ignore[misc,unused-ignore]
    """What layers over feature columns share: columns by name, bags of ids, the shapes."""

    def __init__(
        self,
        feature_columns: Iterable[Any],
        *,
        mask_zero: bool = False,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        # Numbers must reach `Bucketized` as they are; results are cast at the end.
        super().__init__(trainable=trainable, name=name, dtype=dtype, autocast=False)
        columns = read_columns(feature_columns)
        self.columns = tuple(sorted(columns, key=lambda column: column.name))
        self.mask_zero = bool(mask_zero)
        self.supports_masking = True
        self.tables: dict[str, Any] = {}

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Make the weights; each column must be among the inputs."""
        for column in self.columns:
            if column.key not in input_shape:
                raise ColumnNotFoundError(
                    column.key, input_shape, where=f"the inputs of {self.name}"
                )
            self.build_column(column)
        self.built = True

    def build_column(self, column: Column) -> None:
        """Make the weights of a column."""
        raise NotImplementedError

    def bag(self, inputs: Mapping[str, Any], masks: Any, categories: Categories) -> Bag:
        """The ids of a column in a batch."""
        mask = masks.get(categories.key) if isinstance(masks, Mapping) else None
        if isinstance(mask, tuple | list):
            mask = None
        bag = make_bag(inputs[categories.key], categories, mask)
        if self.mask_zero and isinstance(categories, Identity):
            real = ops.logical_and(bag.real, bag.ids > 0)
            bag = Bag(bag.ids, real, bag.rows, bag.count)
        return bag

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """A row of the result has no parts to hide."""
        return None

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {
            **super().get_config(),
            "feature_columns": [_to_config(column) for column in self.columns],
            "mask_zero": self.mask_zero,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The layer that `get_config` spoke of."""
        columns = map(_from_config, config["feature_columns"])
        return cls(**{**config, "feature_columns": columns})


@keras.saving.register_keras_serializable(package="tabfeed")
class DenseFeatures(FeatureLayer):
    """Columns by name to one tensor.

    Columns are taken in the order of their names (``C1_embedding``, ``I1``, ...), whatever the
    order they are given in. A batch may hold more columns than these.

    Parameters
    ----------
    feature_columns
        `tf.feature_column` objects: `embedding_column`, `indicator_column`, `numeric_column`,
        `bucketized_column`; or those of `tabfeed.loader.keras.columns`.
    aggregation
        ``"concat"``: ``(N, sum of widths)``. ``"stack"``: ``(N, columns, width)``, one width.
    mask_zero
        Whether id 0 is padding, as `Categorify` and ``sparse_as_dense=True`` have it, and counts
        for nothing.

    Examples
    --------
    >>> layer = DenseFeatures([Embedding(Identity("C1", 10), 4, combiner="sum"), Numeric("I1")])
    >>> layer({"C1": ops.array([[1], [2]]), "I1": ops.array([[0.5], [1.5]])}).shape[1]
    5
    """

    def __init__(
        self,
        feature_columns: Iterable[Any],
        aggregation: str = "concat",
        *,
        mask_zero: bool = False,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            feature_columns, mask_zero=mask_zero, trainable=trainable, name=name, dtype=dtype
        )
        if aggregation not in AGGREGATIONS:
            raise ArgumentError(f'aggregation is {aggregation!r}; it must be "concat" or "stack"')
        self.aggregation = aggregation
        for column in self.columns:
            if isinstance(column, Identity):
                raise ArgumentError(
                    f"{column.key!r} is only an id; wrap it in embedding_column or indicator_column"
                )
        widths = {column.name: column.width for column in self._wide()}
        if aggregation == "stack" and len(set(widths.values())) > 1:
            raise ArgumentError(f"columns of different widths cannot be stacked: {widths}")

    def _wide(self) -> list[Numeric | Bucketized | Embedding | Indicator]:
        return [column for column in self.columns if not isinstance(column, Identity)]

    def build_column(self, column: Column) -> None:
        """A table for each embedding."""
        if isinstance(column, Embedding):
            self.tables[column.name] = self.add_weight(
                name=f"{column.name}_table",
                shape=(column.categories.num_buckets, column.dimension),
                initializer=table_initializer(column),
                trainable=column.trainable,
                autocast=False,
            )

    def call(self, inputs: Mapping[str, Any], mask: Any = None) -> Tensor:
        """One tensor from a dict of columns."""
        parts = [
            ops.cast(self._column(column, inputs, mask), self.compute_dtype)
            for column in self._wide()
        ]
        if self.aggregation == "stack":
            return ops.stack(parts, axis=1)
        return ops.concatenate(parts, axis=1)

    def _column(self, column: Column, inputs: Mapping[str, Any], masks: Any) -> Tensor:
        categories = categories_of(column)
        if categories is None:
            return flat_numbers(inputs[column.key], column)
        bag = self.bag(inputs, masks, categories)
        if not isinstance(column, Embedding):
            ones = ops.one_hot(bag.ids, categories.num_buckets, dtype=self.variable_dtype)
            return combine(bag, ones, "sum")
        vectors = look_up(self.tables[column.name], bag.ids)
        if column.max_norm is not None:
            vectors = _clip_norm(vectors, column.max_norm)
        return combine(bag, vectors, column.combiner)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, ...]:
        """The shape of the result."""
        rows, widths = batch_rows(input_shape, self.columns), [c.width for c in self._wide()]
        if self.aggregation == "stack":
            return (rows, len(widths), widths[0])
        return (rows, sum(widths))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {**super().get_config(), "aggregation": self.aggregation}


def _clip_norm(vectors: Tensor, most: float) -> Tensor:
    norm = ops.sqrt(ops.sum(ops.square(vectors), axis=-1, keepdims=True))
    return ops.where(norm > most, vectors * (most / ops.maximum(norm, most)), vectors)


def batch_rows(input_shape: Mapping[str, Any], columns: tuple[Column, ...]) -> int | None:
    """Rows of the batch: a plain column has them first, a pair in its second tensor."""
    shape = input_shape[columns[0].key]
    pair = bool(shape) and isinstance(shape[0], tuple | list)
    return shape[1][0] if pair else shape[0]  # type: ignore[no-any-return]


@keras.saving.register_keras_serializable(package="tabfeed")
class LinearFeatures(FeatureLayer):
    """A weight for each category and each number, and a bias: ``(N, 1)``, all zero at first.

    Parameters
    ----------
    feature_columns
        `tf.feature_column` objects: `categorical_column_with_identity`, `numeric_column`,
        `bucketized_column`. An `indicator_column` or `embedding_column` stands for the categories
        in it, so that one list of columns can serve the wide and the deep part of a model. Several
        ids in a row are summed; for an `embedding_column` they are combined as it says.
    mask_zero
        Whether id 0 is padding and counts for nothing.

    Examples
    --------
    >>> from tabfeed.loader.keras.columns import Identity
    >>> layer = LinearFeatures([Identity("C1", 10), Numeric("I1")])
    >>> layer({"C1": ops.array([[1], [2]]), "I1": ops.array([[0.5], [1.5]])}).shape[1]
    1
    """

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Make the weights; each column must be among the inputs."""
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros", autocast=False)
        super().build(input_shape)

    def build_column(self, column: Column) -> None:
        """A weight for each id, or for each number."""
        ids = column.categories if isinstance(column, Embedding | Indicator) else column
        size = ids.width if isinstance(ids, Numeric) else ids.num_buckets
        self.tables[column.name] = self.add_weight(
            name=f"{column.name}_weights", shape=(size, 1), initializer="zeros", autocast=False
        )

    def call(self, inputs: Mapping[str, Any], mask: Any = None) -> Any:
        """The weighted sum."""
        total = ops.convert_to_tensor(self.bias)
        for column in self.columns:
            total = total + self._column(column, inputs, mask)
        return ops.cast(total, self.compute_dtype)

    def _column(self, column: Column, inputs: Mapping[str, Any], masks: Any) -> Any:
        weights = self.tables[column.name]
        categories = categories_of(column)
        if categories is None:
            numbers = flat_numbers(inputs[column.key], column)
            return ops.matmul(ops.cast(numbers, self.variable_dtype), weights)
        bag = self.bag(inputs, masks, categories)
        combiner = column.combiner if isinstance(column, Embedding) else "sum"
        return combine(bag, look_up(weights, bag.ids), combiner)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, ...]:
        """One number a row."""
        return (batch_rows(input_shape, self.columns), 1)
