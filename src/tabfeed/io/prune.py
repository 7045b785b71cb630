"""Which row groups a filter can do without, told from the footers alone.

What is known of a row group (its folder keys, the smallest and largest value of a column,
whether it has nulls) is written as an expression that holds for all of its rows. Arrow then
says whether the filter can be true where that expression is. The footers were read when
the files were opened; Arrow's own pruning would read each of them again.

NaN is left out of the statistics, so a filter that it may pass gets no help from those of floats:
``not (x <= 5)`` and ``x != 5`` can hold in a row group whose largest value is 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tabfeed.io.filters import Filter

__all__ = ["facts_of_chunk", "facts_of_keys", "known_bounds", "may_match"]

_MAY_KEEP_NAN = re.compile(r"invert|!=|\bnan\b|is_nan|nan_is_null=true|\.\.\.")


def may_match(
    condition: Filter, facts: Sequence[Sequence[pc.Expression]], schema: pa.Schema
) -> list[bool]:
    """Whether the filter can hold, for each row group of which the facts are known."""
    import pyarrow.dataset as pads  # imports pandas where it is installed: not at the top

    form, nowhere = pads.ParquetFileFormat(), pafs.LocalFileSystem()
    pieces = [
        form.make_fragment(str(i), nowhere, partition_expression=_all_of(known))
        for i, known in enumerate(facts)
    ]
    possible = pads.FileSystemDataset(pieces, schema, form, nowhere)
    try:
        kept = {int(p.path) for p in possible.get_fragments(filter=condition.expression)}
    except pa.ArrowException:  # as reading will say, if it holds there too
        return [True] * len(facts)
    return [i in kept for i in range(len(facts))]


def _all_of(facts: Sequence[pc.Expression]) -> pc.Expression:
    return reduce(and_, facts) if facts else pc.scalar(True)


def facts_of_keys(
    keys: Mapping[str, Any], columns: Iterable[str], schema: pa.Schema
) -> list[pc.Expression]:
    """What the folders say: a column has one value, or is null throughout."""
    facts = []
    for name in columns:
        if name not in keys:
            continue
        if keys[name] is None:
            facts.append(pc.field(name).is_null())
        elif not pa.types.is_nested(dtype := schema.field(name).type):
            facts.append(pc.field(name) == _as(keys[name], dtype))
    return facts


def _as(value: Any, dtype: pa.DataType) -> pa.Scalar:
    plain = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    return pa.scalar(value).cast(plain)


def facts_of_chunk(
    chunk: pq.ColumnChunkMetaData, stored: pa.DataType, field: pa.Field, condition: Filter
) -> list[pc.Expression]:
    """What the statistics of one column of a row group say.

    Parameters
    ----------
    chunk
        The column in the footer.
    stored
        Its type in the file.
    field
        Its name and type in the dataset.
    condition
        The filter, to leave out what does not help it.
    """
    statistics = chunk.statistics
    if statistics is None or not _ordered_alike(stored, field.type):
        return []
    if statistics.has_null_count and statistics.null_count == chunk.num_values:
        return [pc.field(field.name).is_null()]
    if pa.types.is_floating(stored) and not _may_bound(str(condition.expression), stored):
        return []
    bounds = _bounds(statistics, stored, field.type)
    if bounds is None:
        return []
    column = pc.field(field.name)
    within = [column >= bounds[0], column <= bounds[1]]
    if not statistics.has_null_count or statistics.null_count:
        within = [fact | column.is_null() for fact in within]  # each by itself, as Arrow reads them
    return within


def _may_bound(condition: str, stored: pa.DataType) -> bool:
    """Whether bounds of a column of floats tell anything of what a filter keeps."""
    if stored.bit_width < 64 and "is_in" in condition:  # 0.1 is not what it is in 32 bits
        return False
    return not _MAY_KEEP_NAN.search(condition)


def _ordered_alike(stored: pa.DataType, read: pa.DataType) -> bool:
    """Whether the smallest value in the file is the smallest once it is read."""
    if stored == read:
        return not pa.types.is_nested(stored) and not pa.types.is_dictionary(stored)
    numbers = (pa.types.is_integer, pa.types.is_floating)
    both_numbers = all(any(check(t) for check in numbers) for t in (stored, read))
    return both_numbers or (pa.types.is_timestamp(stored) and pa.types.is_timestamp(read))


def known_bounds(statistics: pq.Statistics | None) -> tuple[Any, Any] | None:
    """The smallest and the largest value, if the statistics tell and both are values."""
    try:
        if statistics is None or not statistics.has_min_max:
            return None
        low, high = statistics.min, statistics.max
        return (low, high) if low is not None and high is not None and low <= high else None
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
        return None  # text cut in the middle of a character, a date Python does not know


def _bounds(
    statistics: pq.Statistics, stored: pa.DataType, read: pa.DataType
) -> tuple[pa.Scalar, pa.Scalar] | None:
    known = known_bounds(statistics)  # NaN is neither below nor above anything: None
    if known is None:
        return None
    try:
        low, high = (pa.scalar(v, stored).cast(read) for v in known)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
    return low, high
