"""A lock on a folder that dies with the process that holds it."""

from __future__ import annotations

import errno
import os

from tabfeed.errors import WriteError

__all__ = ["FolderLock"]

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
        """Whether the folder is locked; it is not where there are no locks."""
        return self._descriptor is not None

    def take(self, *, needed: bool = False) -> None:
        """Lock the folder, or say that somebody else has.

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
