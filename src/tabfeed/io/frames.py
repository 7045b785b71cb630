"""A dataset as other libraries' frames, whole or a few rows of it.

Polars lacks some of Arrow's types and panics at a few of them: `frame_of` refuses these by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tabfeed.errors import ArgumentError, DatasetError, MissingExtraError, SchemaError
from tabfeed.execute.executor import refuse_forked
from tabfeed.io.partition import first_rows
from tabfeed.schema.dtypes import format_type

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from tabfeed.io.table import PartitionedTable

__all__ = ["dask_frame", "frame_of", "head", "need", "polars_frame", "refuse_type", "sample"]


def head(table: PartitionedTable, n: int) -> pl.DataFrame:
    """See `Dataset.head`."""
    _refuse_negative(n)
    tables: list[pa.Table] = []
    rows = 0
    for i in range(table.npartitions):
        if rows >= n:
            break
        tables.append(_first_rows(table, i, n - rows))
        rows += tables[-1].num_rows
    return polars_frame(table, tables)


def _first_rows(table: PartitionedTable, index: int, n: int) -> pa.Table:
    """The beginning of a partition, without reading the rest where nothing filters it."""
    part = table.partitions[index]
    if table.condition is None and part.rows is not None and not table.maps:
        part = first_rows(part, n)
    return table.read(part).slice(0, n)


def sample(table: PartitionedTable, n: int, seed: int) -> pl.DataFrame:
    """See `Dataset.sample`."""
    import polars as pl

    _refuse_negative(n)
    lens = table.partition_lens
    total = sum(lens)
    rows = np.sort(np.random.default_rng(seed).choice(total, min(n, total), replace=False))
    ends = np.cumsum(lens)
    which = np.searchsorted(ends, rows, side="right")
    frames = [polars_frame(table, [])]
    for i in np.unique(which):
        inside = rows[which == i] - (ends[i] - lens[i])
        frames.append(polars_frame(table, [table.read(int(i))])[inside])
    return pl.concat(frames)


def _refuse_negative(n: int) -> None:
    if n < 0:
        raise ArgumentError(f"n is {n}; it must be 0 or more")


def polars_frame(table: PartitionedTable, tables: Sequence[pa.Table]) -> pl.DataFrame:
    """Tables of a dataset as one Polars frame; its columns even where there are no rows."""
    refuse_forked("this", DatasetError)
    full = [t for t in tables if t.num_rows] or [table.empty()]
    return frame_of(pa.concat_tables(full))


def dask_frame(table: PartitionedTable) -> Any:
    """See `Dataset.to_ddf`."""
    need("dask.dataframe", "dask", "Dask DataFrames")
    import dask.dataframe as dd
    from dask.dataframe import utils

    forget_categories: Callable[..., Any] = utils.clear_known_categories
    meta = forget_categories(_as_pandas(table.empty()))
    from_map: Callable[..., Any] = dd.from_map
    return from_map(_PandasReader(table), list(range(table.npartitions)), meta=meta)


@dataclass(frozen=True)
class _PandasReader:
    """Reads a partition as a pandas frame; Dask sends it to its workers."""

    table: PartitionedTable

    def __call__(self, index: int) -> pd.DataFrame:
        return _as_pandas(self.table.read(index))


def _as_pandas(table: pa.Table) -> pd.DataFrame:
    """As a pandas frame without columns of Python objects, which Dask would turn into text.

    A whole number beside a null stays one, where a float would lose digits.
    """
    import pandas as pd

    nulls = {c.type for c in table.columns if c.null_count}

    def kept(dtype: pa.DataType) -> Any:
        plain = pa.types.is_integer(dtype) or pa.types.is_boolean(dtype)
        native = (
            pa.types.is_floating(dtype)
            or pa.types.is_dictionary(dtype)
            or pa.types.is_timestamp(dtype)
            or pa.types.is_duration(dtype)
            or _is_text(dtype)
            or (plain and dtype not in nulls)
        )
        return None if native else pd.ArrowDtype(dtype)

    return table.to_pandas(types_mapper=kept)


def _is_text(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype)
        or pa.types.is_large_string(dtype)
        or pa.types.is_string_view(dtype)
    )


def need(module: str, extra: str, feature: str) -> None:
    """Say which extra to install if a library is missing."""
    try:
        importlib.import_module(module)
    except ImportError as e:
        raise MissingExtraError(extra, feature) from e


# -- Polars --------------------------------------------------------------------------------

_MOST_DIGITS = 38  # of a decimal in Polars
_PLAIN = {
    pa.type_for_alias(name).id
    for name in ("bool", "int8", "int16", "int32", "int64", "float32", "float64", "string")
}


def frame_of(table: pa.Table) -> pl.DataFrame:
    """A table as a Polars frame.

    Raises
    ------
    SchemaError
        If Polars lacks the type of a column; the message names the column.

    Examples
    --------
    >>> frame_of(pa.table({"x": pa.nulls(1, pa.month_day_nano_interval())}))
    Traceback (most recent call last):
        ...
    tabfeed.errors.SchemaError: column 'x' is month_day_nano_interval, which Polars does not have...
    """
    import polars as pl

    for i, dtype in enumerate(table.schema.types):
        if dtype.id in _PLAIN:
            continue
        field = table.schema.field(i)
        if pa.types.is_decimal256(dtype) and dtype.precision <= _MOST_DIGITS:
            narrow = pa.decimal128(dtype.precision, dtype.scale)
            table = table.set_column(i, field.with_type(narrow), table.column(i).cast(narrow))
        else:
            refuse_type(dtype, f"column {field.name!r}")
    try:
        frame = pl.from_arrow(table)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as e:
        name = _refused(table)
        if name is None:
            raise
        raise _error(f"column {name!r}", table.schema.field(name).type) from e
    assert isinstance(frame, pl.DataFrame)
    return frame


def refuse_type(dtype: pa.DataType, what: str) -> None:
    """Raise `SchemaError` for a type that Polars lacks, or that holds one."""
    if not _is_known(dtype):
        raise _error(what, dtype)


def _is_known(dtype: pa.DataType) -> bool:
    if pa.types.is_dictionary(dtype):
        return _is_known(dtype.value_type)
    lacking = (pa.types.is_interval, pa.types.is_decimal256, pa.types.is_union)
    inner = (dtype.field(i).type for i in range(dtype.num_fields))
    return not any(kind(dtype) for kind in lacking) and all(_is_known(t) for t in inner)


def _error(what: str, dtype: pa.DataType) -> SchemaError:
    return SchemaError(
        f"{what} is {format_type(dtype)}, which Polars does not have; leave the column out with "
        "columns=, or give it another type with dtypes= when you open the dataset; to_arrow() "
        "reads it as it is"
    )


def _refused(table: pa.Table) -> str | None:
    """The first column that Polars does not take by itself."""
    import polars as pl

    for name in table.column_names:
        try:
            pl.from_arrow(table.select([name]))
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return str(name)
    return None
