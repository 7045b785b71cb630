"""Reading objects on other machines: which libraries do it, and what goes wrong there.

Two ways lead to a server. Arrow's own filesystems are C++: their reads let go of the interpreter.
fsspec's are Python, on one event loop. Measured on loopback with two cores, 8 MiB a request
(`benchmarks/remote.py`): Arrow's S3 takes 1.1 s of processor time a GB, s3fs 2.0 s, which it spends
holding the interpreter that a training loop needs as well. So ``s3://`` goes through Arrow wherever
`storage_options` can be said in its terms (`tabfeed.io.storage.s3`), and everything else through
fsspec, whose options and credentials users know from pandas and Dask. For ``gs://`` and ``abfs://``
the two have not been compared; for ``http://`` Arrow has nothing, and fsspec takes 0.7 to 1.0 s a
GB, where Python's own client, which knows neither proxies nor credentials, takes 0.3 to 0.4.

obstore 0.12 was tried in place of all this. It reads `s3://` faster: 1.1 GB/s where these modules
read 0.8 with Arrow, and 147 MB/s where they read 121 of a server that gives each of 8 connections
20 MB/s after 50 ms. But it knows three stores and HTTP, so fsspec and what is built around it would
stay; each try has the same timeout, 30 s for a whole answer by default, where ours may take longer
from one to the next; and a forked child that used it had no answer after 8 s.

Neither library can be asked to read an object only if it still is the one that was opened. So a
reader looks at the object's version (its ETag where the server has one) when it opens it, and again
after its bytes have come: equal versions before and after mean that nothing else came between.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError

__all__ = [
    "Listed",
    "NoAnswer",
    "PermanentError",
    "Remote",
    "RemoteOptions",
    "Version",
    "forbidden",
    "info_of",
    "remade",
    "remote_of",
    "split_options",
    "translated",
    "try_once",
    "within",
]

T = TypeVar("T")
_VERSION_KEYS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "Content-MD5", "Digest")
_TIME_KEYS = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created")
_KEPT_HANDLES = 1024
# What asking again does not change: no rights, no such thing, a request the server will not take.
_FINAL = re.compile(r"NO_SUCH|INVALID_|PermanentRedirect|HTTP status 4(?!08|29)\d\d")
_FORBIDDEN = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|EXPIRED|ExpiredToken|AccessDenied|Forbidden"
    r"|HTTP status 40[13]|[Cc]redentials",
)
_BUILTIN = (
    FileNotFoundError,
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
)
_LOCAL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE}
# What a caller did wrong, or a library lacks: asking again does not change it.
_NOT_THE_SERVER = (TypeError, ValueError, LookupError, NotImplementedError, AttributeError)


class Version(NamedTuple):
    """The version of an object's content; `tag` is empty where the store has none."""

    size: int
    tag: str

    def is_of(self, size: int, tag: str) -> bool:
        """Whether this is the content that a size and a tag were noted of."""
        return self.size == size and tag in ("", self.tag)


class Listed(NamedTuple):
    """What a listing says of an object; `tag` is empty where it does not tell contents apart."""

    info: pafs.FileInfo
    tag: str


class PermanentError(OSError):
    """An error of a server that asking again will not change."""


class NoAnswer(OSError):
    """A request that was given up because nothing came."""


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

    def read(self, path: str, start: int, size: int, whole: int, timeout: float) -> pa.Buffer:
        """Some of the `whole` bytes; fewer than asked if the server cuts them short."""
        ...

    def listing(self, path: str, timeout: float, *, deep: bool) -> list[Listed]:
        """What lies below a folder."""
        ...


class _ArrowRemote:
    """A server behind one of Arrow's own filesystems."""

    def __init__(self, filesystem: pafs.FileSystem) -> None:
        self._filesystem = filesystem
        self._handles: OrderedDict[str, tuple[int, pa.NativeFile]] = OrderedDict()
        self._lock = threading.Lock()

    def version(self, path: str, timeout: float) -> Version:
        """What the object is now; the handle that learned it serves reads from here on."""
        handle = within(timeout, lambda: self._filesystem.open_input_file(path))
        self._keep(path, int(handle.size()), handle)
        noted = {k: bytes(v).decode() for k, v in (handle.metadata() or {}).items()}
        return Version(int(handle.size()), _tag(noted))

    def _keep(self, path: str, size: int, handle: pa.NativeFile) -> None:
        with self._lock:
            self._handles[path] = size, handle
            self._handles.move_to_end(path)
            while len(self._handles) > _KEPT_HANDLES:
                self._handles.popitem(last=False)

    def read(self, path: str, start: int, size: int, whole: int, timeout: float) -> pa.Buffer:
        """Some of its bytes, in Arrow's own memory, which is used again and again.

        `read_at` would give Python's, fresh from the kernel each time: 0.65 s a GB for its pages.
        """
        with self._lock:
            known, handle = self._handles.get(path, (0, None))
        if handle is None or known != whole:  # Arrow asks for the size, though it is known
            handle = within(timeout, lambda: self._filesystem.open_input_file(path))
            self._keep(path, int(handle.size()), handle)
        return within(timeout, lambda: handle.get_stream(start, size).read_buffer(size))

    def listing(self, path: str, timeout: float, *, deep: bool) -> list[Listed]:
        """What lies below a folder. Arrow knows no ETags here, and times only in whole seconds."""
        selector = pafs.FileSelector(path, recursive=deep, allow_not_found=True)
        infos = within(timeout, lambda: self._filesystem.get_file_info(selector))
        return [Listed(info, "") for info in infos]


class _FsspecRemote:
    """A server behind an fsspec filesystem."""

    def __init__(self, filesystem: Any) -> None:
        from fsspec import AbstractFileSystem
        from fsspec.asyn import AsyncFileSystem

        try_once(filesystem)
        self._filesystem = filesystem
        kind, wraps = type(filesystem), hasattr(filesystem, "fs")
        theirs = (AbstractFileSystem.find, AsyncFileSystem._find)
        self._lists_deeply = not wraps and getattr(kind, "_find", kind.find) not in theirs

    def version(self, path: str, timeout: float) -> Version:
        """What the object is now, whatever a listing once said."""
        self._filesystem.invalidate_cache(path)
        info = self._call("info", timeout, path)
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        if info.get("size") is None:
            raise PermanentError(
                "the server does not say how large it is, so it cannot be read in parts"
            )
        return Version(int(info["size"]), _tag(info))

    def read(self, path: str, start: int, size: int, whole: int, timeout: float) -> pa.Buffer:
        """Some of its bytes."""
        data = self._call("cat_file", timeout, path, start=start, end=start + size)
        if len(data) > size:
            raise PermanentError(
                "the server sends the whole object where a part of it was asked for"
            )
        return pa.py_buffer(data)

    def listing(self, path: str, timeout: float, *, deep: bool) -> list[Listed]:
        """What lies below a folder, with ETags and the like where the listing has them."""
        listed = []
        for name, facts in self._find(path, time.monotonic() + timeout, deep=deep).items():
            if name.strip("/") != path.strip("/"):
                strong = {k: facts[k] for k in _VERSION_KEYS if k in facts}
                listed.append(Listed(_as_info(name, facts), _tag(strong)))
        return listed

    def _find(self, path: str, until: float, *, deep: bool) -> dict[str, Mapping[str, Any]]:
        """What lies below a folder, by name; in one listing where a library has its own.

        fsspec's own `find` leaves out every folder whose listing fails, and says nothing.
        """
        if deep and self._lists_deeply:
            self._filesystem.invalidate_cache(path)
            left = until - time.monotonic()
            return dict(self._call("find", left, path, withdirs=True, detail=True))
        found: dict[str, Mapping[str, Any]] = {}
        folders = [path]
        for folder in folders:
            self._filesystem.invalidate_cache(folder)
            try:
                entries = self._call("ls", max(0.0, until - time.monotonic()), folder, detail=True)
            except FileNotFoundError:  # nothing, or removed just now
                continue
            new = [e for e in entries if e["name"] not in found]
            found.update({facts["name"]: facts for facts in new})
            if deep:
                names = (e["name"].rstrip("/") for e in new if e["type"] == "directory")
                folders += [name for name in names if name != folder.rstrip("/")]
        return found

    def _call(self, name: str, timeout: float, *args: Any, **options: Any) -> Any:
        from fsspec.asyn import sync

        system = self._filesystem
        if not getattr(system, "async_impl", False):
            return within(timeout, lambda: getattr(system, name)(*args, **options))
        coroutine = getattr(system, f"_{name}")
        begun = time.monotonic()
        try:
            return translated(
                lambda: sync(system.loop, coroutine, *args, timeout=timeout, **options)
            )
        except TimeoutError as e:
            raise NoAnswer(f"no answer within {time.monotonic() - begun:.1f} s") from e


def try_once(filesystem: Any) -> None:
    """Have s3fs leave repetitions to us.

    Where a store says that it is busy, s3fs would try five times, pausing, before it says so: with
    a short deadline, all that could be reported is that no answer came.
    """
    if "s3" in filesystem.protocol:
        filesystem.retries = 1


def info_of(filesystem: pafs.FileSystem, path: str) -> pafs.FileInfo:
    """What a path is; ``FileNotFoundError``, in place of a guess, where fsspec says nothing."""
    handler = getattr(filesystem, "handler", None)
    if not isinstance(handler, pafs.FSSpecHandler):
        return filesystem.get_file_info(path)
    return _as_info(path, handler.fs.info(path))


def _as_info(path: str, facts: Mapping[str, Any]) -> pafs.FileInfo:
    """Arrow's description of an object from fsspec's."""
    kinds = {"file": pafs.FileType.File, "directory": pafs.FileType.Directory}
    kind = kinds.get(facts["type"], pafs.FileType.Unknown)
    size = facts["size"] if kind == pafs.FileType.File else None
    return pafs.FileInfo(path, kind, size=size, mtime=facts.get("mtime"))


def _tag(info: Mapping[str, Any]) -> str:
    """The best of what an object's description says of its version."""
    known = (f"{k}={info[k]}" for k in (*_VERSION_KEYS, *_TIME_KEYS) if info.get(k))
    return next(known, "")


def translated(call: Callable[[], T]) -> T:
    """Every library has its own tree of errors; here they become a few kinds of ``OSError``."""
    try:
        return call()
    except (*_BUILTIN, *_NOT_THE_SERVER, MemoryError, PermanentError) as e:
        cause = e.__cause__ if isinstance(e, FileNotFoundError) else None
        if not isinstance(cause, Exception) or isinstance(cause, _NOT_THE_SERVER):
            raise
        raise _as_os_error(cause) from e  # by HTTP, fsspec says so whatever went wrong
    except Exception as e:
        raise _as_os_error(e) from e


def _as_os_error(error: Exception) -> OSError:
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return TimeoutError(str(error) or "no answer")
    if isinstance(error, OSError) and (error.errno in _LOCAL_ERRORS or isinstance(error, _BUILTIN)):
        return error
    if isinstance(error.__cause__, Exception) and hasattr(
        error.__cause__, "response"
    ):  # botocore's, of which s3fs tells only a part
        error = error.__cause__
    text = str(error) or type(error).__name__
    status = getattr(error, "status", None)  # aiohttp's
    if not isinstance(status, int):  # botocore's
        status = (
            (getattr(error, "response", None) or {})
            .get("ResponseMetadata", {})
            .get("HTTPStatusCode", 0)
        )
    if status == 404:
        return FileNotFoundError(errno.ENOENT, text)
    if status in (401, 403) or forbidden(text):
        return PermissionError(errno.EACCES, text)
    if (400 <= status < 500 and status not in (408, 429)) or _FINAL.search(text):
        return PermanentError(text)
    return OSError(text)


def forbidden(text: str) -> bool:
    """Whether an error of a server says that it knows us not, or that we may not."""
    return bool(_FORBIDDEN.search(text))


def within(timeout: float, call: Callable[[], T]) -> T:
    """Call a library that knows no time limit; a call that outlasts it is left to itself."""
    outcome: list[Any] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(translated(call))
        except BaseException as e:
            outcome.append(e)
        done.set()

    threading.Thread(target=run, name="tabfeed-request", daemon=True).start()
    if not done.wait(timeout):
        raise NoAnswer(f"no answer within {timeout:.1f} s")
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
    handler = getattr(filesystem, "handler", None)
    filesystem = getattr(handler, "inner", filesystem)  # that of `tabfeed.io.storage.retry`
    key = (os.getpid(), pickle.dumps(filesystem))
    with _remotes_lock:
        found = _remotes.get(key)
        if found is None:
            forked = any(pid != key[0] for pid, _ in _remotes)
            found = _remotes[key] = _make(remade(filesystem) if forked else filesystem)
        return found


def remade(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """The same filesystem for a forked child."""
    if filesystem.type_name != "s3":
        return pickle.loads(pickle.dumps(filesystem))
    from tabfeed.io.storage.s3 import after_fork

    return after_fork(filesystem.__reduce__()[1][0])


def _make(filesystem: pafs.FileSystem) -> Remote:
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, pafs.FSSpecHandler):
        return _FsspecRemote(handler.fs)
    return _ArrowRemote(filesystem)


def _unlock() -> None:
    """Recreate the locks after a fork."""
    global _remotes_lock
    _remotes_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
