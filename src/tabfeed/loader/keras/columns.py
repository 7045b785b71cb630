"""Feature columns as plain values: what a batch must hold for each, and what a layer makes of it.

`tf.feature_column` objects are read once, by their public fields, and never again: they are
deprecated, and their own methods need TensorFlow's graph mode. What is kept here is frozen,
compares by value and needs no framework, so that the loader and the layers share it on every
Keras backend. Columns that turn raw values into ids (vocabularies, hashes, crosses) are the work
of a workflow, not of a model; they are refused with the call that makes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tabfeed.errors import ArgumentError

__all__ = [
    "COMBINERS",
    "Bucketized",
    "Categories",
    "Column",
    "Embedding",
    "Identity",
    "Indicator",
    "Numeric",
    "categories_of",
    "read_categories",
    "read_column",
    "read_columns",
]

COMBINERS = ("mean", "sum", "sqrtn")


@dataclass(frozen=True)
class Numeric:
    """Numbers as they are.

    Attributes
    ----------
    key
        The column of the data.
    shape
        Numbers in a row.
    normalizer
        Applied to the tensor first.
    """

    key: str
    shape: tuple[int, ...] = (1,)
    normalizer: Any = None

    @property
    def name(self) -> str:
        """What orders the columns of a layer."""
        return self.key

    @property
    def width(self) -> int:
        """Numbers in a row, flat."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Bucketized:
    """Numbers by their range: ``boundaries[i - 1] <= x < boundaries[i]`` is bucket ``i``.

    Alone it gives a one-hot vector; below an `Embedding` or an `Indicator` it gives ids. With
    several numbers in a row each place has ids of its own.
    """

    source: Numeric
    boundaries: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.boundaries or list(self.boundaries) != sorted(set(self.boundaries)):
            raise ArgumentError(
                f"the boundaries of {self.source.key!r} are {self.boundaries}; they must be some "
                "numbers, each larger than the one before"
            )

    @property
    def key(self) -> str:
        """The column of the data."""
        return self.source.key

    @property
    def name(self) -> str:
        """What orders the columns of a layer."""
        return f"{self.key}_bucketized"

    @property
    def num_buckets(self) -> int:
        """How many ids there are."""
        return (len(self.boundaries) + 1) * self.source.width

    @property
    def width(self) -> int:
        """Length of the one-hot vector."""
        return self.num_buckets


@dataclass(frozen=True)
class Identity:
    """Integers that are ids already: from 0 to ``num_buckets - 1``.

    `default_value` stands in for any other id; where it is None such an id is an error.
    """

    key: str
    num_buckets: int
    default_value: int | None = None

    @property
    def name(self) -> str:
        """What orders the columns of a layer."""
        return self.key


Categories = Identity | Bucketized


@dataclass(frozen=True)
class Embedding:
    """A learned vector for each id; several ids of a row are combined."""

    categories: Categories
    dimension: int
    combiner: str = "mean"
    initializer: Any = None
    max_norm: float | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        if self.combiner not in COMBINERS:
            raise ArgumentError(
                f"the combiner of {self.key!r} is {self.combiner!r}; it must be one of "
                f"{', '.join(COMBINERS)}"
            )

    @property
    def key(self) -> str:
        """The column of the data."""
        return self.categories.key

    @property
    def name(self) -> str:
        """What orders the columns of a layer."""
        return f"{self.categories.name}_embedding"

    @property
    def width(self) -> int:
        """Length of the vector."""
        return self.dimension


@dataclass(frozen=True)
class Indicator:
    """How often each id occurs in a row."""

    categories: Categories

    @property
    def key(self) -> str:
        """The column of the data."""
        return self.categories.key

    @property
    def name(self) -> str:
        """What orders the columns of a layer."""
        return f"{self.categories.name}_indicator"

    @property
    def width(self) -> int:
        """Length of the vector."""
        return self.categories.num_buckets


Column = Numeric | Bucketized | Identity | Embedding | Indicator


def categories_of(column: Column) -> Categories | None:
    """The ids a column is about, if it is about ids."""
    if isinstance(column, Embedding | Indicator):
        return column.categories
    return None if isinstance(column, Numeric) else column


def read_columns(columns: Iterable[Any]) -> tuple[Column, ...]:
    """Columns of ours or of `tf.feature_column`, as ours; each name once.

    Examples
    --------
    >>> read_columns([Numeric("age"), Numeric("age")])
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: the feature column 'age' is given twice
    """
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        columns = [columns]
    read = tuple(read_column(c) for c in columns)
    seen: set[str] = set()
    for column in read:
        if column.name in seen:
            raise ArgumentError(f"the feature column {column.name!r} is given twice")
        seen.add(column.name)
    if not read:
        raise ArgumentError("there are no feature columns; give one or more")
    return read


def read_column(column: Any, categories: Callable[[Any], Categories] | None = None) -> Column:
    """One column, by the name of its class.

    Parameters
    ----------
    column
        Of ours or of `tf.feature_column`.
    categories
        What reads the categorical column within an embedding or indicator.
    """
    of = categories or read_categories
    if isinstance(column, Embedding | Indicator):
        return column if categories is None else replace(column, categories=of(column.categories))
    if isinstance(column, Column):
        return column
    kind = type(column).__name__
    if kind == "NumericColumn":
        return _read_numeric(column)
    if kind == "BucketizedColumn":
        boundaries = tuple(float(b) for b in column.boundaries)
        return Bucketized(_read_numeric(column.source_column), boundaries)
    if kind == "IdentityCategoricalColumn":
        default = None if column.default_value is None else int(column.default_value)
        return Identity(column.key, int(column.number_buckets), default)
    if kind == "EmbeddingColumn":
        return _read_embedding(column, of(column.categorical_column))
    if kind == "IndicatorColumn":
        return Indicator(of(column.categorical_column))
    if kind in _TRANSFORMS:
        raise ArgumentError(
            f"{kind} {column.name!r} turns raw values into ids, which a layer does not do: "
            "make_feature_column_workflow gives a Workflow that does, and the columns for the model"
        )
    raise ArgumentError(
        f"{column!r} is not a feature column known here; use numeric_column, bucketized_column, "
        "categorical_column_with_identity, embedding_column or indicator_column"
    )


def _read_numeric(column: Any) -> Numeric:
    return Numeric(column.key, tuple(int(n) for n in column.shape), column.normalizer_fn)


def read_categories(column: Any) -> Categories:
    """A column of ids; refused if it has none."""
    read = read_column(column)
    if not isinstance(read, Categories):
        raise ArgumentError(f"{read.name!r} has no ids to look up; give a categorical column")
    return read


def _read_embedding(column: Any, categories: Categories) -> Embedding:
    if column.ckpt_to_load_from is not None:
        raise ArgumentError(
            f"{column.name!r} is to be read from a checkpoint, which is not supported; build the "
            "layer and set its weights"
        )
    max_norm = column.max_norm
    return Embedding(
        categories=categories,
        dimension=int(column.dimension),
        combiner=column.combiner,
        initializer=column.initializer,
        max_norm=None if max_norm is None else float(max_norm),
        trainable=bool(column.trainable),
    )


_TRANSFORMS = {
    "VocabularyListCategoricalColumn",
    "VocabularyFileCategoricalColumn",
    "HashedCategoricalColumn",
    "CrossedColumn",
}
