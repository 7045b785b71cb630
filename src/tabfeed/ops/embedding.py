"""How large an embedding table each categorical column needs."""

from __future__ import annotations

from typing import Any

from tabfeed.errors import ArgumentError
from tabfeed.schema import Schema, Tags

__all__ = ["embedding_size", "get_embedding_sizes"]

Sizes = dict[str, tuple[int, int]]


def embedding_size(cardinality: int) -> tuple[int, int]:
    """Rows and columns of the table for `cardinality` ids.

    Examples
    --------
    >>> [embedding_size(n)[1] for n in (100, 1_000, 10_000, 100_000)]
    [21, 77, 278, 512]
    """
    return cardinality, min(max(16, round(1.6 * cardinality**0.56)), 512)


def get_embedding_sizes(source: Any) -> Sizes | tuple[Sizes, Sizes]:
    """``{column: (cardinality, dimension)}`` of the categorical columns, sorted by name.

    Where there are columns of ragged lists, a pair: the single-valued columns and the list
    columns.

    Parameters
    ----------
    source
        A fitted `Workflow`, a node of one, or a `Schema`.

    Examples
    --------
    >>> from tabfeed import ColumnSchema
    >>> get_embedding_sizes(Schema([
    ...     ColumnSchema("C2", "int64", tags="categorical", embedding_size=(10, 16)),
    ...     ColumnSchema("C10", "int64", tags="categorical", embedding_size=(1000, 77))]))
    {'C10': (1000, 77), 'C2': (10, 16)}
    """
    schema = source if isinstance(source, Schema) else getattr(source, "output_schema", None)
    if schema is None:
        raise ArgumentError(f"give a workflow, a node or a schema, not {source!r}")
    single: Sizes = {}
    multi: Sizes = {}
    for column in sorted(schema, key=lambda c: c.name):
        if column.embedding_size is None or Tags.CATEGORICAL not in column.tags:
            continue
        (multi if column.is_list and column.is_ragged else single)[column.name] = (
            column.embedding_size
        )
    return (single, multi) if multi else single
