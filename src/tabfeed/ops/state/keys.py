"""Values as 64-bit keys: exact, reversible, and in the order of the values.

Numbers, booleans, dates and times always fit. Text and bytes fit when they have at most
eight bytes and do not end in a zero byte, which covers most identifiers. Sorting, counting
and looking up such keys is several times faster than the same on strings.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import SchemaError
from tabfeed.hashing import byte_words, large_buffers
from tabfeed.schema.dtypes import is_list_type

__all__ = ["Keys", "base_type", "flatten", "normalise", "pack", "plain_array", "unpack"]

Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_SIGN = np.uint64(1 << 63)


def base_type(dtype: pa.DataType) -> pa.DataType:
    """The type that values of `dtype` are compared as: int8 and int64 are the same thing."""
    if is_list_type(dtype) or pa.types.is_dictionary(dtype):
        return base_type(dtype.value_type)
    if pa.types.is_uint64(dtype):
        return pa.uint64()
    if pa.types.is_integer(dtype):
        return pa.int64()
    if pa.types.is_floating(dtype):
        return pa.float64()
    if pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return pa.string()
    if (
        pa.types.is_large_binary(dtype)
        or pa.types.is_binary_view(dtype)
        or pa.types.is_fixed_size_binary(dtype)
    ):
        return pa.binary()
    if pa.types.is_decimal(dtype):
        return pa.string()
    return dtype


def normalise(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast to a base type; a NaN among floats is a null, and whole floats may become integers."""
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    if values.type == dtype:
        return values
    if not _comparable(values.type, dtype):
        raise SchemaError(f"values are {values.type} now and were {dtype} when fitted")
    try:
        return values.cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SchemaError(f"values are {values.type} now and were {dtype} when fitted: {e}") from e


def _comparable(given: pa.DataType, fitted: pa.DataType) -> bool:
    """Whether values of the one type can equal values of the other."""
    if pa.types.is_null(given) or base_type(given) == fitted:
        return True
    kinds = (pa.types.is_temporal, lambda t: pa.types.is_integer(t) or pa.types.is_floating(t))
    return any(kind(given) and kind(fitted) for kind in kinds)


def plain_array(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.Array:
    """A column as one array of a base type, dictionaries decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return normalise(array, dtype)


def flatten(array: pa.Array) -> pa.Array:
    """The values inside all lists of an array, null lists skipped."""
    while is_list_type(array.type):
        array = array.flatten()
    return array


def pack(values: pa.Array) -> tuple[Keys, Mask | None]:
    """Keys of values without nulls, and which of them are true keys (None: all).

    Examples
    --------
    >>> keys, good = pack(pa.array(["b", "a", "longer than eight"]))
    >>> bool(keys[1] < keys[0]), good.tolist()
    (True, [True, True, False])
    """
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.uint64), None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _pack_text(values.cast(pa.large_binary()))
    if pa.types.is_uint64(kind):
        return values.to_numpy(zero_copy_only=False), None
    if pa.types.is_floating(kind):
        bits = (values.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0).view(np.uint64)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN), None
    return _as_int64(values).view(np.uint64) ^ _SIGN, None


def _as_int64(values: pa.Array) -> npt.NDArray[np.int64]:
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = values.view(pa.int32())
    elif pa.types.is_temporal(kind):
        values = values.view(pa.int64())
    elif not pa.types.is_integer(kind):
        raise SchemaError(f"values of type {kind} cannot be counted or looked up")
    return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def _pack_text(values: pa.LargeBinaryArray) -> tuple[Keys, Mask | None]:
    offsets, data = large_buffers(values)
    lengths = np.diff(offsets)
    if len(lengths) and (lengths == 8).all():
        keys = data[: 8 * len(lengths)].view(">u8").astype(np.uint64)
        good = (keys & np.uint64(255)) != 0
    else:
        keys = byte_words(data, offsets[:-1], np.minimum(lengths, 8)).byteswap()
        keys[lengths == 0] = 0
        shift = (np.uint64(8) * (8 - np.clip(lengths, 1, 8)).astype(np.uint64)).astype(np.uint64)
        good = ((keys >> shift) & np.uint64(255)) != 0
        good = (good | (lengths == 0)) & (lengths <= 8)
    return keys, None if good.all() else good


def unpack(keys: Keys, dtype: pa.DataType) -> pa.Array:
    """The values that `pack` made keys of.

    Examples
    --------
    >>> unpack(pack(pa.array([-1, 7]))[0], pa.int64()).to_pylist()
    [-1, 7]
    """
    if pa.types.is_string(dtype) or pa.types.is_binary(dtype):
        return _unpack_text(keys, dtype)
    if pa.types.is_uint64(dtype):
        return pa.array(keys)
    if pa.types.is_floating(dtype):
        return pa.array(np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64))
    ints = pa.array((keys ^ _SIGN).view(np.int64))
    if pa.types.is_boolean(dtype):
        return ints.cast(pa.int8()).cast(dtype)
    if pa.types.is_date32(dtype) or pa.types.is_time32(dtype):
        return ints.cast(pa.int32()).view(dtype)
    return ints.view(dtype) if pa.types.is_temporal(dtype) else ints.cast(dtype)


def _unpack_text(keys: Keys, dtype: pa.DataType) -> pa.Array:
    raw = keys.astype(">u8").view(np.uint8).reshape(-1, 8)
    if len(keys) and (raw[:, 7] != 0).all():
        offsets = np.arange(len(keys) + 1, dtype=np.int64) * 8
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(raw)]
        return pa.Array.from_buffers(pa.large_binary(), len(keys), buffers).cast(dtype)
    used = raw != 0
    lengths = np.where(used.any(axis=1), 8 - used[:, ::-1].argmax(axis=1), 0)
    keep = np.arange(8) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(raw[keep]))]
    return pa.Array.from_buffers(pa.large_binary(), len(keys), buffers).cast(dtype)
