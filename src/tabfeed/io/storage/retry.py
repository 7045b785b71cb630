"""One policy of retries for every request to a server, up to one deadline.

Listing, looking, opening, reading, writing, moving and deleting share one policy: errors that may
pass (no connection, no answer, a server that is overloaded or broken) are tried again after a pause
that doubles, with some chance in it so that a thousand readers do not come back at once. What
trying again does not change (no rights, no such object, expired credentials) is an error at once.

`with_retries` puts this policy in front of a filesystem. Output streams keep their own: Arrow's S3
repeats each part of an upload for as long, and what goes through fsspec is gathered in a temporary
file and sent once it is whole, so that sending can be repeated from its start.
"""

from __future__ import annotations

import errno
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import TabfeedWarning
from tabfeed.execute import LocalExecutor
from tabfeed.io.storage.remote import (
    NoAnswer,
    PermanentError,
    RemoteOptions,
    forbidden,
    info_of,
    remade,
    remote_of,
    translated,
    try_once,
    within,
)

__all__ = ["FIRST_SHARE", "Retrying", "reason", "remedy", "retry", "system_error", "with_retries"]

T = TypeVar("T")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
FIRST_SHARE = 1 / 8
"""Of the deadline, for the first try of a request that is short if all is well."""
_SHORTEST_TRY = 0.2
_WARN_AFTER = 10.0
_LEAST_SPEED = 2**20  # bytes a second; an upload that takes longer than the deadline may be so slow
_IN_MEMORY = 32 * 2**20
_PERMANENT = (
    FileNotFoundError,
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermanentError,
)
_FOLDER = pafs.FileType.Directory
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM = (*_FULL, errno.EFBIG, errno.EROFS)
_LOCAL = (*_FULL, errno.EROFS, errno.EMFILE, errno.ENFILE)


def retry(call: Callable[[float], T], deadline: float, *, first: float = 1.0, warn: str = "") -> T:
    """Call ``call(timeout)`` until it works, fails for good, or the deadline has come.

    Parameters
    ----------
    call
        Gets the seconds that this try may take.
    deadline
        Seconds for all tries together.
    first
        Part of the deadline that the first try may take; each further try gets twice as much.
    warn
        What to warn of, once, if it takes long.

    Raises
    ------
    OSError
        Permanent errors as they come; others with the number of tries and the seconds they took.
    """
    begun = time.monotonic()
    timeout, pause, tries = deadline * first, _FIRST_PAUSE, 0
    cause: OSError | None = None
    while True:
        tries += 1
        left = deadline - (time.monotonic() - begun)
        try:
            return call(max(_SHORTEST_TRY, min(timeout, left)))
        except OSError as e:
            if isinstance(e, _PERMANENT) or e.errno in _LOCAL:
                raise
            if cause is None or not isinstance(e, NoAnswer):  # what a server said tells more
                cause = e
            spent = time.monotonic() - begun
            wait = min(pause * random.uniform(0.5, 1.5), deadline - spent - _SHORTEST_TRY)
            if wait <= 0:
                times = "once" if tries == 1 else f"{tries} times"
                raise OSError(f"{reason(cause)}; tried {times} in {spent:.1f} s") from e
        if warn and spent > _WARN_AFTER:
            warnings.warn(
                f"{warn} does not work yet ({reason(cause)}); it is tried for {deadline:.0f} s in "
                "all. Interrupt it if the address is wrong",
                TabfeedWarning,
                stacklevel=2,
            )
            warn = ""
        time.sleep(wait)
        timeout, pause = timeout * 2, min(pause * 2, _LONGEST_PAUSE)


def reason(error: OSError) -> str:
    """What the system or the server says of an error."""
    return error.strerror or str(error) or type(error).__name__


def system_error(error: BaseException) -> OSError | None:
    """The system's error behind one of any library; Polars and DuckDB put it into their words.

    Examples
    --------
    >>> system_error(RuntimeError("parquet: underlying IO error: No space left on device"))
    OSError(28, 'No space left on device')
    >>> system_error(RuntimeError("parquet: a page is damaged"))
    """
    if isinstance(error, OSError):
        return error
    found = (code for code in _NO_ROOM if os.strerror(code) in str(error))
    return next((OSError(code, os.strerror(code)) for code in found), None)


def remedy(error: OSError, *, writing: bool = False) -> str:
    """What to do about an error of the system or of a server.

    Examples
    --------
    >>> remedy(OSError(errno.ENOSPC, "No space left on device"), writing=True)
    'Free some space or choose another folder'
    >>> remedy(PermissionError(errno.EACCES, "AWS Error ACCESS_DENIED (HTTP status 403)"))
    'Check the credentials and what they allow'
    """
    text, local = (
        reason(error),
        # Arrow puts the system's words into a sentence of its own
        isinstance(error.errno, int) and os.strerror(error.errno) in str(error),
    )
    if error.errno in _FULL:
        return "Free some space or choose another folder"
    if error.errno == errno.EFBIG:
        return "Raise the limit of file sizes (ulimit -f) or choose another folder"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Raise the limit of open files (ulimit -n)"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS or forbidden(text):
        if not local:
            return "Check the credentials and what they allow"
        return "Change its permissions" + (" or choose another folder" if writing else "")
    if isinstance(error, PermanentError) or "NO_SUCH_BUCKET" in text:
        return "Check the address, the bucket and storage_options"
    if not local:
        return (
            "Check the server and the network, or have it tried for longer with deadline= in "
            "storage_options"
        )
    return "Mend the cause" + (" or choose another folder" if writing else ", then run it again")


def with_retries(
    filesystem: pafs.FileSystem, prefix: str, options: RemoteOptions
) -> pafs.FileSystem:
    """The same filesystem, all of whose operations are tried again until the deadline."""
    return pafs.PyFileSystem(Retrying(filesystem, prefix, options))


class Retrying(pafs.FileSystemHandler):  # type: ignore[misc]
    """A server's filesystem, each operation tried again. Threads may share it; it pickles.

    Parameters
    ----------
    filesystem
        That of the server.
    prefix
        What precedes a path in messages.
    options
        How to read from it.
    """

    def __init__(self, filesystem: pafs.FileSystem, prefix: str, options: RemoteOptions) -> None:
        self._filesystem, self._prefix, self._options = filesystem, prefix, options
        self._process = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())

    @property
    def inner(self) -> pafs.FileSystem:
        """The server's filesystem; a forked child has another, with connections of its own."""
        if self._process != os.getpid():
            self._filesystem, self._process = remade(self._filesystem), os.getpid()
        handler = getattr(self._filesystem, "handler", None)
        if isinstance(handler, pafs.FSSpecHandler):  # also one that was unpickled
            try_once(handler.fs)
        return self._filesystem

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Retrying) and bool(self.inner == other.inner)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def _ask(self, path: str, call: Callable[[pafs.FileSystem], T], *, first: float = 1.0) -> T:
        return retry(
            lambda timeout: within(timeout, lambda: call(self.inner)),
            self._options.deadline,
            first=first,
            warn=f"{self._prefix}{path}",
        )

    # -- looking ------------------------------------------------------------------------

    def get_type_name(self) -> str:
        """As that of the server."""
        return str(self.inner.type_name)

    def normalize_path(self, path: str) -> str:
        """As the server has it."""
        return str(self.inner.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """What each path is, requested in parallel."""
        executor = LocalExecutor(threads=max(1, min(self._options.connections, len(paths))))
        return list(executor.map(paths, self._info))

    def _info(self, path: str) -> pafs.FileInfo:
        self._forget(path)
        try:
            return self._ask(path, lambda system: info_of(system, path), first=FIRST_SHARE)
        except FileNotFoundError:
            return pafs.FileInfo(path, pafs.FileType.NotFound)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """The contents of a folder."""
        folder = selector.base_dir
        handler = getattr(self.inner, "handler", None)
        if not isinstance(handler, pafs.FSSpecHandler):
            return self._ask(folder, lambda system: system.get_file_info(selector))
        # pyarrow takes a folder whose look-up fails for one that is not there.
        remote = remote_of(self.inner)
        listed = retry(
            lambda timeout: remote.listing(folder, timeout, deep=selector.recursive),
            self._options.deadline,
            warn=f"{self._prefix}{folder}",
        )
        if not listed and not selector.allow_not_found and self._info(folder).type != _FOLDER:
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", folder)
        return [entry.info for entry in listed]

    def _forget(self, path: str) -> None:
        """Have fsspec look anew, whatever a listing once said."""
        handler = getattr(self.inner, "handler", None)
        if isinstance(handler, pafs.FSSpecHandler):
            handler.fs.invalidate_cache(path)

    # -- changing -----------------------------------------------------------------------

    def create_dir(self, path: str, recursive: bool) -> None:
        """Make a folder."""
        self._ask(path, lambda system: system.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        """Remove a folder and all in it."""
        self._ask_once_done(path, lambda system: system.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Remove all in a folder."""
        self._ask(
            path, lambda system: system.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)
        )

    def delete_root_dir_contents(self) -> None:
        """Remove everything."""
        self.inner.delete_dir_contents("", accept_root_dir=True)

    def delete_file(self, path: str) -> None:
        """Remove a file."""
        self._ask_once_done(path, lambda system: system.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        """Give a file another name."""
        self._ask_once_done(src, lambda system: system.move(src, dest), dest)

    def copy_file(self, src: str, dest: str) -> None:
        """Copy a file."""
        self._ask(src, lambda system: system.copy_file(src, dest))

    def _ask_once_done(
        self, path: str, call: Callable[[pafs.FileSystem], T], becomes: str | None = None
    ) -> None:
        """What finds nothing left to do on a further try was done by one whose answer was lost."""
        tries = 0

        def attempt(system: pafs.FileSystem) -> None:
            nonlocal tries
            tries += 1
            try:
                call(system)
            except FileNotFoundError:
                done = becomes is None or system.get_file_info(becomes).is_file
                if tries == 1 or not done:
                    raise

        self._ask(path, attempt)

    # -- opening ------------------------------------------------------------------------

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """A file, to be read from its start."""
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        """A file for random access."""
        from tabfeed.io.storage.files import FileRef
        from tabfeed.io.storage.remote_file import open_remote

        remote, options = remote_of(self.inner), self._options
        self._forget(path)
        deadline = options.deadline
        now = retry(lambda timeout: remote.version(path, timeout), deadline, first=FIRST_SHARE)
        ref = FileRef(f"{self._prefix}{path}", path, self.inner, now.size, remote=options)
        return open_remote(ref)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        """A new file, to be written."""
        deadline = self._options.deadline
        handler = getattr(self.inner, "handler", None)
        if isinstance(handler, pafs.FSSpecHandler):
            return pa.PythonFile(_Upload(handler.fs, path, deadline), mode="w")
        writer = self.inner
        if writer.type_name == "s3":
            from tabfeed.io.storage.s3 import patient_writer

            writer = patient_writer(writer, deadline)
        return self._ask(
            path, lambda _: writer.open_output_stream(path, compression=None, metadata=metadata)
        )

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        """A file, to be written on."""
        return self._ask(
            path, lambda system: system.open_append_stream(path, None, metadata=metadata)
        )


class _Upload:
    """What `pyarrow.PythonFile` wraps: gathers a file on this machine, sends it when it is closed.

    An upload can only be repeated from its start, whatever the library behind it does with parts.
    """

    closed = False

    def __init__(self, system: Any, path: str, deadline: float) -> None:
        from tabfeed.io.storage.local import TemporaryFolder

        self._system, self._path, self._deadline = system, path, deadline
        self._folder = TemporaryFolder()  # which the next run removes if this process is killed
        self._file = tempfile.NamedTemporaryFile(dir=self._folder.path)  # noqa: SIM115

    def write(self, data: Any) -> int:
        """Gather some more."""
        return int(self._file.write(data))

    def tell(self) -> int:
        """Bytes gathered so far."""
        return int(self._file.tell())

    def flush(self) -> None:
        """Nothing is sent before the end."""

    def close(self) -> None:
        """Send it; an upload that was not closed is none."""
        if self.closed:
            return
        self.closed = True
        with self._file:
            size = self.tell()
            self._file.flush()
            patience = max(self._deadline, size / _LEAST_SPEED)
            retry(lambda _: translated(lambda: self._send(size)), patience, warn=self._path)
        self._folder.remove()

    def _send(self, size: int) -> None:
        if size > _IN_MEMORY:
            self._system.put_file(self._file.name, self._path)
            return
        self._file.seek(0)
        self._system.pipe_file(self._path, self._file.read())
