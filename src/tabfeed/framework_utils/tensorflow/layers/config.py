"""Feature columns to and from the plain values a saved Keras model holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import keras

from tabfeed.errors import ArgumentError
from tabfeed.loader.keras.columns import (
    Bucketized,
    Column,
    Embedding,
    Identity,
    Indicator,
    Numeric,
)

__all__ = ["columns_from_config", "columns_to_config", "table_initializer"]

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Numeric, Bucketized, Identity, Embedding, Indicator)
}
_KERAS_OBJECTS = ("initializer", "normalizer")


def columns_to_config(columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """Plain values; initializers and functions the way Keras saves its own."""
    return [_to_config(column) for column in columns]


def _to_config(column: Any) -> dict[str, Any]:
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


def columns_from_config(config: list[dict[str, Any]]) -> tuple[Column, ...]:
    """What `columns_to_config` made, as columns again."""
    return tuple(_from_config(c) for c in config)


def _from_config(config: Mapping[str, Any]) -> Any:
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

    TensorFlow's own initializers are taken over by their class and settings; by default, as in
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
