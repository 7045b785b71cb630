"""Vocabularies that users bring and take: lists, Series, arrays, and files as older tools write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError, BadFileError, SchemaError, SourceNotFoundError
from tabfeed.ops.keys import base_type, normalise
from tabfeed.ops.stored import Stored

__all__ = ["read_vocab", "write_vocab"]


def read_vocab(given: Any) -> pa.Array:
    """Distinct values in the order given, nulls dropped.

    Examples
    --------
    >>> read_vocab(["b", None, "a", "b"]).to_pylist()
    ['b', 'a']
    """
    values = _from_file(Path(given)) if isinstance(given, str | Path) else _from_values(given)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    try:
        return normalise(values, base_type(values.type)).drop_null().unique()
    except (SchemaError, pa.ArrowNotImplementedError) as e:
        raise ArgumentError(
            f"a vocabulary holds numbers, texts or times, not values of type {values.type}"
        ) from e


def _from_values(given: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return given
    if isinstance(given, pl.Series):
        return given.to_arrow(compat_level=pl.CompatLevel.oldest())
    try:
        return pa.array(given, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as e:
        raise ArgumentError(f"a vocabulary is a list, Series, array or Parquet path: {e}") from e


def _from_file(path: Path) -> pa.ChunkedArray:
    """The value column of a file; counts (``<name>_size``) and pandas' index are passed over."""
    if not path.exists():
        raise SourceNotFoundError(f"there is no vocabulary file {str(path)!r}")
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as e:
        raise BadFileError(f"{path} is not a Parquet file: {e}", file=str(path)) from e
    names = [n for n in table.column_names if not n.endswith("_size") and not n.startswith("__")]
    if len(names) != 1:
        raise ArgumentError(f"{path} should have one column of values; it has {table.column_names}")
    return table.column(names[0])


def write_vocab(path: Path, vocabulary: Stored, names: list[str]) -> None:
    """A vocabulary as a file of its own, its columns under these names, a piece at a time."""
    schema = vocabulary.schema
    fields = [f.with_name(n) for f, n in zip(schema, names, strict=True)]
    with pq.ParquetWriter(path, pa.schema(fields)) as writer:
        for piece in vocabulary.pieces():
            writer.write_table(piece.rename_columns(names))
