"""Reading objects on other machines: which libraries do it, and what goes wrong there.

Two ways lead to a server. Arrow's own filesystems are C++: their reads let go of the interpreter.
fsspec's are Python, on one event loop. Measured on loopback with two cores, 8 MiB a request
(`benchmarks/remote.py`): Arrow's S3 takes 1.1 s of processor time a GB, s3fs 2.0 s, which it spends
holding the interpreter that a training loop needs as well. So ``s3://`` goes through Arrow wherever
`storage_options` can be said in its terms (`tabfeed.io.s3`), and everything else through fsspec,
whose options and credentials users know from pandas and Dask. For ``gs://`` and ``abfs://`` the two
have not been compared; for ``http://`` Arrow has nothing, and fsspec takes 0.7 to 1.0 s a GB, where
Python's own client, which knows neither proxies nor credentials, takes 0.3 to 0.4.

Neither library can be asked to read an object only if it still is the one that was opened. So a
reader looks at the object's version (its ETag where the server has one) when it opens it, and again
after its bytes have come: equal versions before and after mean that nothing else came between.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError

__all__ = ["Final", "Remote", "RemoteOptions", "Version", "remote_of", "split_options"]

T = TypeVar("T")
_VERSION_KEYS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "Content-MD5", "Digest")
_TIME_KEYS = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created")
_KEPT_HANDLES = 1024
# What asking again does not change: no rights, no such thing, a request the server will not take.
_FINAL = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|EXPIRED|ExpiredToken|NO_SUCH|INVALID_"
    r"|PermanentRedirect|AccessDenied|Forbidden|HTTP status 4(?!08|29)\d\d",
)


class Version(NamedTuple):
    """What tells one content of an object from another; `tag` is empty where nothing does."""

    size: int
    tag: str


class Final(OSError):
    """An error of a server that asking again will not change."""


@dataclass(frozen=True)
class RemoteOptions:
    """How to read from a server.

    Parameters
    ----------
    connections
        Most requests for data at a time, in one process; as many may ask for versions meanwhile.
    deadline
        Seconds after which a request is given up, with all its repetitions.
    """

    connections: int = 8
    deadline: float = 300.0

    def __post_init__(self) -> None:
        if isinstance(self.connections, bool) or not 1 <= self.connections <= 1024:
            raise ArgumentError(f"connections is {self.connections!r}; it must be from 1 to 1024")
        if not self.deadline > 0:
            raise ArgumentError(f"deadline is {self.deadline!r}; it must be seconds above 0")


def split_options(
    storage_options: Mapping[str, Any] | None,
) -> tuple[RemoteOptions, dict[str, Any]]:
    """Our own part of `storage_options`, and what goes to the filesystem.

    Examples
    --------
    >>> split_options({"connections": 16, "anon": True})
    (RemoteOptions(connections=16, deadline=300.0), {'anon': True})
    """
    rest = dict(storage_options or {})
    own = {name: rest.pop(name) for name in ("connections", "deadline") if name in rest}
    return RemoteOptions(**own), rest


class Remote(Protocol):
    """A server, as a reader of ranges needs it. Threads may share it."""

    def version(self, path: str, timeout: float) -> Version:
        """What the object is now."""
        ...

    def read(self, path: str, start: int, size: int, timeout: float) -> pa.Buffer:
        """Some of its bytes; fewer than asked if the server cuts them short."""
        ...


class _ArrowRemote:
    """A server behind one of Arrow's own filesystems."""

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._filesystem = filesystem
        self._handles: OrderedDict[str, pa.NativeFile] = OrderedDict()
        self._lock = threading.Lock()

    def version(self, path: str, timeout: float) -> Version:
        """What the object is now; the handle that learned it serves reads from here on."""
        handle = _within(timeout, lambda: self._filesystem.open_input_file(path))
        with self._lock:
            self._handles[path] = handle
            self._handles.move_to_end(path)
            while len(self._handles) > _KEPT_HANDLES:
                self._handles.popitem(last=False)
        noted = {k: bytes(v).decode() for k, v in (handle.metadata() or {}).items()}
        return Version(int(handle.size()), _tag(noted))

    def read(self, path: str, start: int, size: int, timeout: float) -> pa.Buffer:
        """Some of its bytes, in Arrow's own memory, which is used again and again.

        `read_at` would give Python's, fresh from the kernel each time: 0.65 s a GB for its pages.
        """
        with self._lock:
            handle = self._handles.get(path)
        if handle is None:
            self.version(path, timeout)
            return self.read(path, start, size, timeout)
        return _within(timeout, lambda: handle.get_stream(start, size).read_buffer(size))


class _FsspecRemote:
    """A server behind an fsspec filesystem."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def version(self, path: str, timeout: float) -> Version:
        """What the object is now, whatever a listing once said."""
        self._filesystem.invalidate_cache(path)
        info = self._call("info", timeout, path)
        if info.get("size") is None:
            raise Final("the server does not say how large it is, so it cannot be read in parts")
        return Version(int(info["size"]), _tag(info))

    def read(self, path: str, start: int, size: int, timeout: float) -> pa.Buffer:
        """Some of its bytes."""
        data = self._call("cat_file", timeout, path, start=start, end=start + size)
        if len(data) > size:
            raise Final("the server sends the whole object where a part of it was asked for")
        return pa.py_buffer(data)

    def _call(self, name: str, timeout: float, *args: Any, **options: Any) -> Any:
        from fsspec.asyn import sync

        system = self._filesystem
        if getattr(system, "async_impl", False):
            coroutine = getattr(system, f"_{name}")
            return _translated(
                lambda: sync(system.loop, coroutine, *args, timeout=timeout, **options)
            )
        return _within(timeout, lambda: getattr(system, name)(*args, **options))


def _tag(info: Mapping[str, Any]) -> str:
    """All that an object's description says of its version."""
    known = [f"{k}={info[k]}" for k in _VERSION_KEYS if info.get(k)]
    return " ".join(known or [f"{k}={info[k]}" for k in _TIME_KEYS if info.get(k)])


def _translated(call: Callable[[], T]) -> T:
    """Every library has its own tree of errors; here they become two kinds of ``OSError``."""
    try:
        return call()
    except (FileNotFoundError, PermissionError) as e:
        raise Final(str(e) or type(e).__name__) from e
    except (MemoryError, Final):
        raise
    except Exception as e:
        text = str(e) or type(e).__name__
        status = getattr(e, "status", None)  # aiohttp's
        hopeless = isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
        if hopeless or _FINAL.search(text):
            raise Final(text) from e
        raise OSError(text) from e


def _within(timeout: float, call: Callable[[], T]) -> T:
    """Call a library that knows no time limit; a call that outlasts it is left to itself."""
    outcome: list[Any] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(_translated(call))
        except BaseException as e:
            outcome.append(e)
        done.set()

    threading.Thread(target=run, name="tabfeed-request", daemon=True).start()
    if not done.wait(timeout):
        raise OSError(f"no answer within {timeout:.0f} s")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    result: T = outcome[0]
    return result


_remotes: OrderedDict[tuple[int, bytes], Remote] = OrderedDict()
_remotes_lock = threading.Lock()


def remote_of(filesystem: pafs.FileSystem) -> Remote:
    """The server behind a filesystem: one for all its files.

    A forked child gets another: the connections and threads of these libraries stay behind.
    """
    key = (os.getpid(), pickle.dumps(filesystem))
    with _remotes_lock:
        found = _remotes.get(key)
        if found is None:
            forked = any(pid != key[0] for pid, _ in _remotes)
            found = _remotes[key] = _make(_anew(filesystem, key[1]) if forked else filesystem)
        return found


def _anew(filesystem: pafs.FileSystem, pickled: bytes) -> pafs.FileSystem:
    """The same filesystem for a forked child."""
    if filesystem.type_name != "s3":
        return pickle.loads(pickled)
    from tabfeed.io.s3 import after_fork

    return after_fork(filesystem.__reduce__()[1][0])


def _make(filesystem: pafs.FileSystem) -> Remote:
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, pafs.FSSpecHandler):
        return _FsspecRemote(handler.fs)
    return _ArrowRemote(filesystem)


def _unlock() -> None:
    """In a forked child, whoever held the lock in the parent."""
    global _remotes_lock
    _remotes_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
