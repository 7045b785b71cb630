"""`DenseFeatures`: a dict of columns to one tensor, side by side or stacked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
from keras import ops

from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.framework_utils.tensorflow.layers.bags import (
    Bag,
    combine,
    flat_numbers,
    look_up,
    make_bag,
)
from tabfeed.framework_utils.tensorflow.layers.config import (
    columns_from_config,
    columns_to_config,
    table_initializer,
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

__all__ = ["DenseFeatures", "FeatureLayer"]

AGGREGATIONS = ("concat", "stack")
Tensor = Any


class FeatureLayer(keras.layers.Layer):  # type: ignore[misc,unused-ignore]
    """What layers over feature columns share: columns by name, bags of ids, the shapes."""

    def __init__(
        self,
        feature_columns: Iterable[Any],
        mask_zero: bool,
        *,
        trainable: bool,
        name: str | None,
        dtype: Any,
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
        value, key = inputs[categories.key], categories.key
        mask = masks.get(key) if isinstance(masks, Mapping) else None
        if isinstance(mask, tuple | list):
            mask = None
        bag = make_bag(value, categories, mask)
        if self.mask_zero and isinstance(categories, Identity):
            real = ops.logical_and(bag.real, bag.ids > 0)
            bag = Bag(bag.ids, real, bag.rows, bag.count)
        return bag

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """A row of the result has no parts to hide."""
        return None

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        config: dict[str, Any] = super().get_config()
        return {
            **config,
            "feature_columns": columns_to_config(self.columns),
            "mask_zero": self.mask_zero,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The layer that `get_config` spoke of."""
        columns = columns_from_config(config["feature_columns"])
        return cls(**{**config, "feature_columns": columns})


@keras.saving.register_keras_serializable(package="tabfeed")
class DenseFeatures(FeatureLayer):
    """Columns by name to one tensor.

    Columns are taken in the order of their names (``C1_embedding``, ``I1``, ...), whatever the
    order they are given in. A batch may hold more columns than are asked for.

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
        super().__init__(feature_columns, mask_zero, trainable=trainable, name=name, dtype=dtype)
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
        if isinstance(column, Numeric):
            return flat_numbers(inputs[column.key], column)
        categories = categories_of(column)
        assert categories is not None  # numbers were the only ones without
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
    rows: int | None = shape[1][0] if pair else shape[0]
    return rows
