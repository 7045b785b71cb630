"""Folders for work in progress, which go with the work.

A folder is removed when nobody holds it any more, and when the interpreter ends. A process that
is killed can do neither; its folder lies in the system's temporary folder under a name nobody
else uses, so that no later run trips over it, and the next run that needs one removes it:
each folder is locked while its process lives, and a lock ends with its process whatever happens.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

from tabfeed.errors import WriteError
from tabfeed.io.folder_lock import FolderLock

__all__ = ["TemporaryFolder", "make_locked", "remove_strays"]


class TemporaryFolder:
    """A folder that goes when nobody holds it any more, or when the interpreter ends.

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
    """Remove folders of processes that are gone: those that nobody has locked."""
    for path in parent.glob(pattern):
        lock = FolderLock(str(path))
        try:
            lock.take(needed=True)
        except (OSError, WriteError):  # somebody's, gone meanwhile, or no telling: leave it
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
