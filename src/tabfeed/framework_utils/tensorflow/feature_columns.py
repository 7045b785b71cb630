"""`make_feature_column_workflow`: what feature columns do to raw values, as a `Workflow`.

A model over `tf.feature_column` objects looks up words, hashes and crosses them at every step. Here
a workflow does that once, ahead of training, and the columns that come back hold plain ids:

=================================  ==========================================
column                             operator
=================================  ==========================================
vocabulary list or file            ``Categorify(vocabs=...)``
hash bucket                        ``HashBucket``
crossed                            ``HashedCross``, named ``a_X_b``
bucketized                         ``Bucketize``, named ``a_bucketized``
identity, numeric                  none
=================================  ==========================================

Ids of a vocabulary are those of `Categorify`: 0 pad, 1 null, then words it does not know, then its
own. Hashes are tabfeed's, not TensorFlow's: a model trained on the one cannot go on with the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tabfeed import ops
from tabfeed.errors import ArgumentError, SourceNotFoundError
from tabfeed.loader.keras.columns import (
    Bucketized,
    Categories,
    Column,
    Identity,
    Indicator,
    Numeric,
    read_categories,
    read_column,
)
from tabfeed.ops.graph.node import Node
from tabfeed.workflow import Workflow

__all__ = ["make_feature_column_workflow"]


def make_feature_column_workflow(
    feature_columns: Iterable[Any], label_name: str | Iterable[str] | None = None
) -> tuple[Workflow, list[Column]]:
    """A workflow that makes ids of raw values, and the columns for the model that reads them.

    Parameters
    ----------
    feature_columns
        `tf.feature_column` objects.
    label_name
        The target; passes through unchanged.

    Returns
    -------
    tuple
        The workflow, not yet fitted, and columns for `DenseFeatures` and `KerasSequenceLoader`.

    Examples
    --------
    >>> workflow, columns = make_feature_column_workflow([Numeric("age"), Identity("C1", 10)], "y")
    >>> [column.name for column in columns]
    ['age', 'C1']
    """
    graph = _Graph()
    columns = [graph.column(column) for column in feature_columns]
    labels = [label_name] if isinstance(label_name, str) else list(label_name or ())
    return Workflow(Node.of([*graph.made.values(), *labels])), columns


class _Graph:
    """What makes each column, by its name: a node, or the name of a column of the data."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self._how: dict[str, Any] = {}

    def column(self, column: Any) -> Column:
        """The model's column for one of the user's."""
        if type(column).__name__ not in _NOT_BARE:
            ids = self.categories(column)
            bare = isinstance(ids, Identity) and ids.key.endswith("_bucketized")
            return Indicator(ids) if bare else ids
        read = read_column(column, self.categories)
        if isinstance(read, Numeric):
            self._make(read.key, "as it is", lambda: read.key)
        return read

    def categories(self, column: Any) -> Categories:
        """The ids that a categorical column makes."""
        kind = type(column).__name__
        if kind in ("VocabularyListCategoricalColumn", "VocabularyFileCategoricalColumn"):
            return self._words(column)
        if kind == "HashedCategoricalColumn":
            return self._hashed(column.key, int(column.hash_bucket_size))
        if kind == "CrossedColumn":
            return self._crossed(column)
        read = read_categories(column)
        if isinstance(read, Bucketized) and read.source == Numeric(read.key):
            return self._buckets(read)
        self._make(read.key, "as it is", lambda: read.key)  # the layer does the rest
        return read

    def _make(self, name: str, how: Any, make: Callable[[], Any]) -> None:
        """Each name is made once; twice in the same way is once."""
        if name not in self.made:
            self.made[name], self._how[name] = make(), how
        elif self._how[name] != how:
            raise ArgumentError(
                f"feature columns make {name!r} in two ways; give one of them a copy of the data's "
                "column under another name"
            )

    def _words(self, column: Any) -> Identity:
        key, words = column.key, _words_of(column)
        oov = int(column.num_oov_buckets or 0)
        op = ops.Categorify(vocabs={key: list(words)}, num_buckets=oov or None)
        self._make(key, ("words", words, oov), lambda: [key] >> op)
        return Identity(key, 2 + max(1, oov) + len(words))

    def _hashed(self, key: str, size: int) -> Identity:
        self._make(key, ("hashed", size), lambda: [key] >> ops.HashBucket(size))
        return Identity(key, size)

    def _buckets(self, column: Bucketized) -> Identity:
        key, name = column.key, column.name
        self._make(
            name,
            column.boundaries,
            lambda: [key] >> ops.Bucketize(list(column.boundaries)) >> ops.Rename(name=name),
        )
        return Identity(name, column.num_buckets)

    def _crossed(self, column: Any) -> Identity:
        """Hashes of several columns together; of their ids, where a key is a column itself."""
        names, parts = [], []
        for key in column.keys:
            name = key if isinstance(key, str) else self.categories(key).key
            names.append(name)
            parts.append(name if isinstance(key, str) else self.made[name])
        crossed, size = "_X_".join(names), int(column.hash_bucket_size)
        op = ops.HashedCross({tuple(names): size})
        self._make(crossed, ("crossed", size), lambda: Node.of(parts) >> op)
        return Identity(crossed, size)


# Ours and those of `tf.feature_column` that are not ids, or hold the column that is.
_NOT_BARE = {"Numeric", "Embedding", "Indicator"}
_NOT_BARE |= {f"{name}Column" for name in _NOT_BARE}


def _words_of(column: Any) -> tuple[Any, ...]:
    """The vocabulary; of a file its lines, as far as the column counts them."""
    if hasattr(column, "vocabulary_list"):
        return tuple(column.vocabulary_list)
    path = Path(str(column.vocabulary_file))
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError as e:
        raise SourceNotFoundError(
            f"the vocabulary file {path} of column {column.key!r} does not exist"
        ) from e
    return tuple(lines[: column.vocabulary_size])
