"""NumPy arrays to Arrow arrays of types that NumPy lacks: strings, lists, nulls.

Everything works on whole arrays; there are no loops over rows.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["hex_strings", "joined", "ragged"]


def hex_strings(
    values: npt.NDArray[np.uint32], nulls: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Format each value as eight hex digits.

    Examples
    --------
    >>> hex_strings(np.array([10, 3735928559], np.uint32)).to_pylist()
    ['0000000a', 'deadbeef']
    """
    digits = _four_digits()
    text = np.empty((len(values), 2), np.uint32)
    text[:, 0] = digits.take(values >> np.uint32(16))
    text[:, 1] = digits.take(values & np.uint32(0xFFFF))
    offsets = np.arange(0, 8 * len(values) + 1, 8, dtype=np.int32)
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


@cache
def _four_digits() -> npt.NDArray[np.uint32]:
    """The four hex digits of every 16-bit number, as the bytes of one word each."""
    text = "".join(f"{i:04x}" for i in range(1 << 16)).encode()
    return np.frombuffer(text, np.uint32)


def ragged(values: pa.Array, keep: npt.NDArray[np.bool_]) -> pa.Array:
    """Lists of the kept values of each row.

    Parameters
    ----------
    values
        The kept values, row by row.
    keep
        Which values of each row are kept, as (rows, positions).

    Examples
    --------
    >>> ragged(pa.array([1, 2, 3]), np.array([[True, True], [False, True]])).to_pylist()
    [[1, 2], [3]]
    """
    offsets = np.zeros(len(keep) + 1, np.int32)
    np.cumsum(keep.sum(axis=1), out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, values)


def joined(*parts: pa.Array | str) -> pa.Array:
    """Concatenate texts and numbers in each row.

    Examples
    --------
    >>> joined("Movie ", pa.array([1, 2]), "!").to_pylist()
    ['Movie 1!', 'Movie 2!']
    """
    texts = [p if isinstance(p, str) else p.cast(pa.string()) for p in parts]
    return pc.binary_join_element_wise(*texts, "")
