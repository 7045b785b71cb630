"""`LinearFeatures`: the wide half of wide-and-deep models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
from keras import ops

from tabfeed.framework_utils.tensorflow.layers.bags import combine, flat_numbers, look_up
from tabfeed.framework_utils.tensorflow.layers.dense import FeatureLayer, batch_rows
from tabfeed.loader.keras.columns import Column, Embedding, Numeric, categories_of

__all__ = ["LinearFeatures"]


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

    def __init__(
        self,
        feature_columns: Iterable[Any],
        *,
        mask_zero: bool = False,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(feature_columns, mask_zero, trainable=trainable, name=name, dtype=dtype)

    def build(self, input_shape: Mapping[str, Any]) -> None:
        """Make the weights; each column must be among the inputs."""
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros", autocast=False)
        super().build(input_shape)

    def build_column(self, column: Column) -> None:
        """A weight for each id, or for each number."""
        categories = categories_of(column)
        if categories is not None:
            size = categories.num_buckets
        else:
            assert isinstance(column, Numeric)  # the only kind without ids
            size = column.width
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
        if isinstance(column, Numeric):
            numbers = flat_numbers(inputs[column.key], column)
            return ops.matmul(ops.cast(numbers, self.variable_dtype), weights)
        categories = categories_of(column)
        assert categories is not None  # numbers were the only ones without
        bag = self.bag(inputs, masks, categories)
        combiner = column.combiner if isinstance(column, Embedding) else "sum"
        return combine(bag, look_up(weights, bag.ids), combiner)

    def compute_output_shape(self, input_shape: Mapping[str, Any]) -> tuple[int | None, ...]:
        """One number a row."""
        return (batch_rows(input_shape, self.columns), 1)
