"""Memory for batches, used again as soon as no array views it.

A fresh large allocation costs more in page faults than the work done in it, so buffers go
round. One is free again when the last array that views it is gone: every array made here has a
`_Lease` at the bottom of its chain of bases, and the lease gives the memory back when it dies.
Tensors made from such arrays keep the array, hence the lease, alive. Nothing counts batches.

The free list is a deque without a lock: a lease may die inside the garbage collector, on any
thread, at any moment, and must neither wait nor raise.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGN = 64
Array = npt.NDArray[Any]


class _Lease:
    """The bottom of an array's chain of bases: holds memory, gives it back when it dies."""

    __slots__ = ("__array_interface__", "_free", "_owner")

    def __init__(self, owner: Array, interface: dict[str, Any], free: deque[Array]) -> None:
        self._owner = owner
        self._free = free
        self.__array_interface__ = interface

    def __del__(self) -> None:
        self._free.append(self._owner)


class BufferPool:
    """Buffers by size class, handed out as arrays.

    Parameters
    ----------
    keep
        Most bytes of free buffers to hold on to.
    allocate
        Gives so many bytes; ordinary memory by default.

    Examples
    --------
    >>> pool = BufferPool()
    >>> a = pool.empty((2, 1000), np.float32)
    >>> address, part = a.ctypes.data, a[:, 10:20]
    >>> del a
    >>> pool.empty((2, 1000), np.float32).ctypes.data == address  # `part` still looks at it
    False
    >>> del part
    >>> address in {pool.empty((2, 1000), np.float32).ctypes.data for _ in range(2)}
    True
    """

    def __init__(self, keep: int = 2**30, allocate: Callable[[int], Array] | None = None) -> None:
        self._free: dict[int, deque[Array]] = {}
        self._keep = keep
        self._allocate = allocate or _ordinary

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array with undefined content."""
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if nbytes == 0:
            return np.empty(shape, kind)
        size = _size_class(nbytes)
        free = self._free.setdefault(size, deque())
        try:
            owner = free.pop()
        except IndexError:
            self._trim(size)
            owner = self._allocate(size + _ALIGN)
        address = -(-owner.ctypes.data // _ALIGN) * _ALIGN
        interface = {"data": (address, False), "typestr": kind.str, "shape": shape, "version": 3}
        return np.asarray(_Lease(owner, interface, free))

    def __reduce__(self) -> tuple[type[BufferPool], tuple[Any, ...]]:
        return BufferPool, (self._keep, self._allocate)  # a copy begins empty

    def _trim(self, size: int) -> None:
        """Let free buffers of other sizes go if too much is kept."""
        if self.free_bytes <= self._keep:
            return
        for other, free in list(self._free.items()):
            if other != size:
                free.clear()

    @property
    def free_bytes(self) -> int:
        """Bytes waiting to be used again."""
        return sum(size * len(free) for size, free in list(self._free.items()))


def _ordinary(nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8)


def _size_class(nbytes: int) -> int:
    """Round up by at most an eighth, so that nearly equal chunks share buffers."""
    step = max(4096, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


class Scratch(threading.local):
    """Working memory of each thread, grown as needed, by name.

    Examples
    --------
    >>> scratch = Scratch()
    >>> scratch.get("a", 3, np.int32).shape
    (3,)
    """

    def __init__(self) -> None:
        self._held: dict[str, Array] = {}

    def get(self, name: str, rows: int, dtype: npt.DTypeLike) -> Array:
        """An array with undefined content, valid until the next call with this name."""
        kind = np.dtype(dtype)
        need = rows * kind.itemsize
        held = self._held.get(name)
        if held is None or held.nbytes < need:
            held = self._held[name] = np.empty(_size_class(need), np.uint8)
        return held[:need].view(kind)

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()
