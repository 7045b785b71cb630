"""From Arrow to Polars, which lacks some of Arrow's types and panics at a few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tabfeed.errors import SchemaError
from tabfeed.schema.dtypes import format_type

if TYPE_CHECKING:
    import polars as pl

__all__ = ["frame_of", "refuse_type"]

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
