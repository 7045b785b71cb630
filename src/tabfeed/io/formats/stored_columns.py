"""Two things a stored file needs that Arrow leaves out: pandas indexes, and checks of text.

pandas and Dask store the index of a frame as columns beside the others, and note in the schema's
metadata which they are. They number or name the rows; as features they would tell a model where a
row lay. So they are left out of a dataset unless they are asked for by name (`index_columns`).

pyarrow decodes Parquet's text without checking that it is UTF-8, and readers downstream trust it:
Python raises an error of its own, Polars does what it likes. `check_texts` finds such text first.
Most text is ASCII, which is recognised at some 20 GB/s; Arrow checks the rest at 2 to 3 GB/s, which
adds a half to two thirds to decoding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.schema.dtypes import is_list_type

__all__ = ["check_texts", "index_columns"]


def check_texts(rows: pa.Table | pa.RecordBatch) -> None:
    r"""Raise `pyarrow.ArrowInvalid` unless all text of all columns is UTF-8.

    Examples
    --------
    >>> text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    >>> check_texts(pa.table([text], ["x"]))
    Traceback (most recent call last):
        ...
    pyarrow.lib.ArrowInvalid: Invalid UTF8 sequence at string index 0
    """
    for column in rows.columns:
        _check_column(column)


def _check_column(column: pa.ChunkedArray | pa.Array) -> None:
    if _holds_text(column.type):
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            _check(chunk)


def _check(array: pa.Array) -> None:
    dtype = array.type
    if isinstance(dtype, pa.BaseExtensionType):
        _check(array.storage)
    elif pa.types.is_dictionary(dtype):
        _check_column(array.dictionary)
    elif pa.types.is_struct(dtype):
        for i in range(dtype.num_fields):
            _check_column(array.field(i))
    elif pa.types.is_map(dtype) or is_list_type(dtype):
        _check_column(array.values)
    elif pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        _check_flat(array)
    else:
        array.validate(full=True)


def _check_flat(array: pa.Array) -> None:
    """Value by value, unless all are ASCII."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return
    wide = pa.types.is_large_string(array.type)
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)
    ends = ends[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    if not _is_ascii(text):
        array.validate(full=True)


def _is_ascii(text: npt.NDArray[np.uint8]) -> bool:
    whole = len(text) // 8 * 8
    bits = np.bitwise_or.reduce(text[:whole].view(np.uint64), initial=0)
    return not int(bits) & 0x8080808080808080 and bool((text[whole:] < 128).all())


@lru_cache(maxsize=1024)
def _holds_text(dtype: pa.DataType) -> bool:
    if pa.types.is_dictionary(dtype):
        return _holds_text(dtype.value_type)
    if isinstance(dtype, pa.BaseExtensionType):
        return _holds_text(dtype.storage_type)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    inner = (dtype.field(i).type for i in range(dtype.num_fields))
    return any(kind(dtype) for kind in kinds) or any(_holds_text(t) for t in inner)


_UNNAMED = re.compile(r"__index_level_\d+__|__null_dask_index__")


def index_columns(names: Iterable[str], metadata: Mapping[bytes, bytes] | None) -> tuple[str, ...]:
    """Those of the names that are an index; none if there would be no column left.

    Examples
    --------
    >>> index_columns(["x", "id"], {b"pandas": b'{"index_columns": ["id"]}'})
    ('id',)
    >>> index_columns(["x", "__index_level_0__"], None)
    ('__index_level_0__',)
    """
    noted = _noted((metadata or {}).get(b"pandas", b""))
    everything = list(names)
    found = tuple(n for n in everything if n in noted or _UNNAMED.fullmatch(n))
    return found if len(found) < len(everything) else ()


@lru_cache(maxsize=64)
def _noted(metadata: bytes) -> frozenset[str]:
    """What pandas' metadata name; an index that only counts the rows is described, not named."""
    try:
        columns = json.loads(metadata)["index_columns"]
        return frozenset(c for c in columns if isinstance(c, str))
    except (ValueError, TypeError, KeyError):  # there is none, or it is not pandas'
        return frozenset()
