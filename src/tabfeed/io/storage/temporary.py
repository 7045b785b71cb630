"""Temporary folders, each locked while its process lives.

A folder is removed with its last reference, and when the interpreter ends. A process that is killed
can do neither; its folder stays in the system's temporary folder under a unique name, so that no
later run uses it by mistake, and the next run that needs a folder removes it: a lock ends with its
process whatever happens.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

from tabfeed.errors import WriteError

__all__ = ["FolderLock", "TemporaryFolder", "make_locked", "remove_strays"]

# A network filesystem may have no locks, and Windows has none of this kind: then go without.
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


class FolderLock:
    """Keeps a second process, or thread, from writing a folder at the same time.

    Nothing is left behind: the lock is on the folder itself, not a file in it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether the folder is locked; False on filesystems without locks."""
        return self._descriptor is not None

    def take(self, *, needed: bool = False) -> None:
        """Lock the folder; an error if another process has.

        Where there are no locks it goes without, unless one is `needed`: then that is an error.
        """
        try:
            import fcntl
        except ImportError as e:
            if needed:
                raise OSError(errno.ENOSYS, "there are no locks here", self._path) from e
            return
        self._descriptor = os.open(self._path, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
                raise BlockingIOError("the folder was made anew meanwhile")
        except BlockingIOError as e:
            self.release()
            raise WriteError(
                f"another process is writing {self._path} now; wait for it, or choose another "
                "folder"
            ) from e
        except OSError as e:
            self.release()
            if needed or e.errno not in _NO_LOCKS:
                raise

    def release(self) -> None:
        """Unlock it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class TemporaryFolder:
    """A folder that is removed with its last reference, or when the interpreter ends.

    Parameters
    ----------
    parent
        Where; the system's temporary folder by default.
    """

    def __init__(self, parent: str | None = None) -> None:
        prefix = f"tabfeed-{_machine()}-"
        if parent is None:
            remove_strays(Path(tempfile.gettempdir()), f"{prefix}*")
        self.path, lock = make_locked(lambda: Path(tempfile.mkdtemp(prefix=prefix, dir=parent)))
        self._remove = weakref.finalize(self, _remove_tree, self.path, lock, os.getpid())

    def remove(self) -> None:
        """Remove it now."""
        self._remove()

    def __reduce__(self) -> tuple[Callable[[Path], Path], tuple[Path]]:
        """A copy elsewhere is the path alone: who made the folder removes it."""
        return Path, (self.path,)


def make_locked(make: Callable[[], Path]) -> tuple[Path, FolderLock]:
    """A new folder, locked. One that was taken for a stray before it was locked is made again."""
    while True:
        path = make()
        lock = FolderLock(str(path))
        try:
            lock.take()
        except (FileNotFoundError, WriteError):
            continue
        return path, lock


def remove_strays(parent: Path, pattern: str) -> None:
    """Remove the folders of processes that have ended: those without a lock."""
    for path in parent.glob(pattern):
        lock = FolderLock(str(path))
        try:
            lock.take(needed=True)
        except (OSError, WriteError):  # in use, gone meanwhile, or unknown: leave it
            continue
        shutil.rmtree(path, ignore_errors=True)
        lock.release()


def _machine() -> str:
    """The machine's name: locks may not be seen from another one that shares the folder."""
    return re.sub(r"[^0-9A-Za-z]", "", platform.node())[:32]


def _remove_tree(path: Path, lock: FolderLock, owner: int) -> None:
    """Remove a folder, unless this is a forked copy of the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        lock.release()
