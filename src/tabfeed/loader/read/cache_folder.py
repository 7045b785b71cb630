"""A folder of files that several processes fill and read together, never larger than agreed.

A file is written under another name, the size it will have reserved beforehand, and renamed when it
is whole: whoever finds a name finds all of it. What a killed process was writing is known by
its lock, which died with it, and is cleared away by the next one who needs room.

When the folder is full, files that nobody has used for an hour and that were there before this
process opened the folder make room; if there are none, nothing more is kept. A plain
least-recently-used rule would be of no use here: an epoch uses every file once, so the one used
longest ago is the one needed next.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tabfeed.budget import parse_bytes

_PARTIAL = ".partial"
_LOCK = ".lock"
_UNUSED_SECONDS = 3600.0
_PATIENCE = 10.0  # for a process that counts and reserves, which takes a moment
_FREE_SHARE = 2  # of the free space of the disk, unless the user says otherwise


def default_folder() -> Path:
    """``TABFEED_CACHE_DIR``, or the user's cache folder."""
    given = os.environ.get("TABFEED_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "tabfeed"


def default_limit(folder: Path) -> int:
    """``TABFEED_CACHE_SIZE``, or half of what the disk has free, what the cache holds included."""
    given = os.environ.get("TABFEED_CACHE_SIZE")
    if given:
        return parse_bytes(given, name="TABFEED_CACHE_SIZE")
    held = sum(size for _, size, _ in _entries(folder))
    return (shutil.disk_usage(folder).free + held) // _FREE_SHARE


class CacheFolder:
    """A bounded folder of whole files.

    Parameters
    ----------
    path
        The folder; made if it is not there.
    limit
        Most bytes of all files in it.

    Examples
    --------
    >>> import tempfile
    >>> cache = CacheFolder(Path(tempfile.mkdtemp()), limit=100)
    >>> with cache.create("a", size=3) as file:
    ...     _ = file.write(b"abc")
    >>> cache.find("a").read_bytes(), cache.find("b")
    (b'abc', None)
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self._opened = time.time()
        path.mkdir(parents=True, exist_ok=True)

    def find(self, name: str) -> Path | None:
        """The file of that name, if it is here; its use is noted."""
        path = self.path / name
        try:
            os.utime(path)
        except OSError:
            return path if path.exists() else None  # of another user's: may be read, not touched
        return path

    def forget(self, name: str) -> None:
        """Remove a file that turned out to be of no use."""
        with suppress(OSError):
            (self.path / name).unlink()

    @contextmanager
    def create(self, name: str, size: int) -> Iterator[BinaryIO]:
        """Write a new file of at most `size` bytes; ``OSError`` (no space) if there is no room."""
        file = self._reserve(name, size)
        partial = Path(file.name)
        try:
            with file:
                yield file
                if file.tell() > size:
                    raise OSError(errno.EFBIG, f"{file.tell()} bytes where {size} were reserved")
                file.truncate()
                partial.rename(self.path / name)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    def _reserve(self, name: str, size: int) -> BinaryIO:
        """An empty file that counts as `size` bytes from now on, locked as long as it is open."""
        with self._alone():
            self._make_room(size)
            path = self.path / f"{name}.{os.getpid()}.{time.monotonic_ns()}{_PARTIAL}"
            file = path.open("xb")
            try:
                _lock(file.fileno(), wait=False)
                file.truncate(size)
            except BaseException:
                file.close()
                path.unlink()
                raise
            return file

    def _make_room(self, size: int) -> None:
        entries = list(_entries(self.path))
        total = sum(nbytes for _, nbytes, _ in entries)
        for path, nbytes, _ in entries:
            if total + size > self.limit and path.name.endswith(_PARTIAL) and _abandoned(path):
                path.unlink(missing_ok=True)
                total -= nbytes
        old = min(self._opened, time.time() - _UNUSED_SECONDS)
        unused = sorted((used, path, n) for path, n, used in entries if used < old)
        for _, path, nbytes in unused:
            if total + size > self.limit and not path.name.endswith(_PARTIAL):
                path.unlink(missing_ok=True)
                total -= nbytes
        if total + size > self.limit:
            raise OSError(errno.ENOSPC, f"{self.path} is full: {total:,} of {self.limit:,} bytes")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While one process counts and reserves, the others wait."""
        with (self.path / _LOCK).open("ab") as file:
            if not _lock(file.fileno(), wait=True):
                raise OSError(errno.EAGAIN, f"another process holds {file.name}")
            yield


def _entries(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """Every file with its size and when it was last used."""
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for entry in found:
            with suppress(FileNotFoundError):  # gone meanwhile
                facts = entry.stat(follow_symlinks=False)
                if entry.name != _LOCK and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), facts.st_size, facts.st_mtime


def _abandoned(partial: Path) -> bool:
    """Whether the process that was writing this is gone."""
    try:
        with partial.open("rb") as file:
            return _lock(file.fileno(), wait=False)
    except FileNotFoundError:
        return False


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file; False if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows: without locks, leftovers stay until they are old
        return wait
    end = time.monotonic() + (_PATIENCE if wait else 0)
    pause = 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        else:
            return True
