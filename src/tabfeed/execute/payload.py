"""Functions and results as bytes, to be sent to other processes.

A function is sent as a `Payload`. A worker keeps it for the whole run and unpacks it at its first
task, so a vocabulary inside is moved and unpacked once per worker, not once per task. Large arrays
travel beside the pickle (protocol 5), so they are not copied into or out of it on any machine they
pass. Results travel as plain bytes: a task that runs again can't find its input changed by the
first attempt, and the size of a result is known.

What can't be pickled is found before the run starts, and the error names the path to it.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tabfeed.errors import ClusterError

__all__ = ["Payload", "pack", "unpack"]

_MAX_DEPTH = 12


def pack(what: Any) -> bytes:
    """Pickle anything, also lambdas and functions of the main module."""
    return _dumps(what)


def _dumps(what: Any, **apart: Any) -> bytes:
    cloudpickle = sys.modules.get("cloudpickle")  # comes with Dask
    dumps = pickle.dumps if cloudpickle is None else cloudpickle.dumps
    return bytes(dumps(what, protocol=5, **apart))


def unpack(data: bytes) -> Any:
    """Unpickle what `pack` returned."""
    return pickle.loads(data)


class Payload:
    """A function and the data it holds, sent once per worker.

    Examples
    --------
    >>> Payload.of(len).open()([1, 2])
    2
    >>> Payload.of(threading.Lock())
    Traceback (most recent call last):
        ...
    tabfeed.errors.ClusterError: the work cannot be sent to other processes: cannot pickle \
'_thread.lock' object, found in lock
    """

    def __init__(self, data: Any, arrays: Sequence[Any] = ()) -> None:
        self.data, self.arrays = data, list(arrays)
        self._opened: list[Any] = []
        self._lock = threading.Lock()

    @classmethod
    def of(cls, what: Any) -> Payload:
        """Pack something, or raise an error that names what can't be sent."""
        arrays: list[pickle.PickleBuffer] = []
        try:
            return cls(_dumps(what, buffer_callback=arrays.append), arrays)
        except Exception as e:  # any __reduce__ or __getstate__ may raise anything
            path = " of ".join(reversed(list(_path_to_culprit(what))))
            raise ClusterError(
                f"the work cannot be sent to other processes: {e}, found in {path}"
            ) from e

    def open(self) -> Any:
        """The function; unpacked at the first call."""
        with self._lock:
            if not self._opened:
                self._opened.append(pickle.loads(self.data, buffers=self.arrays))
        return self._opened[0]

    def __len__(self) -> int:
        return sum(memoryview(part).nbytes for part in (self.data, *self.arrays))

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + len(self)

    def __reduce__(self) -> tuple[type[Payload], tuple[Any, list[Any]]]:
        apart = pickle.PickleBuffer
        return Payload, (apart(self.data), [apart(array) for array in self.arrays])


def _path_to_culprit(what: Any) -> Iterator[str]:
    """The names of nested objects, down to the one that can't be pickled."""
    seen: set[int] = set()
    name = type(what).__name__
    for _ in range(_MAX_DEPTH):
        seen.add(id(what))
        bad = next((p for p in _parts(what) if id(p[1]) not in seen and not _packs(p[1])), None)
        if bad is None:
            break
        if _worth_naming(what):
            yield repr(what)
        name, what = bad
    yield name if type(what).__name__ == name else f"{name} ({type(what).__name__})"


def _packs(what: Any) -> bool:
    try:
        pack(what)
    except Exception:  # whatever was raised, this object caused it
        return False
    return True


def _parts(what: Any) -> Iterator[tuple[str, Any]]:
    """The objects inside an object: attributes, items, closure variables."""
    if isinstance(what, dict):
        yield from ((str(k), v) for k, v in what.items())
    elif isinstance(what, list | tuple | set | frozenset):
        yield from ((type(v).__name__, v) for v in what)
    else:
        if hasattr(what, "__self__"):
            yield type(what.__self__).__name__, what.__self__
        for cell in getattr(what, "__closure__", None) or ():
            yield getattr(what, "__qualname__", "closure"), cell.cell_contents
        for name in getattr(type(what), "__slots__", ()):
            if hasattr(what, name) and name != "__weakref__":
                yield name, getattr(what, name)
        yield from vars(what).items() if hasattr(what, "__dict__") else ()


def _worth_naming(what: Any) -> bool:
    """Whether this is a node of a graph, which the user wrote."""
    return hasattr(what, "parents") and hasattr(what, "op")
