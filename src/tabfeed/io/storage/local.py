"""Folders on this machine: what is in them, and temporary ones that are locked while in use.

Local folders are listed here (`walk`) rather than by Arrow, which follows a link to a folder above
until the path is too long, leaves out links to nothing, and stops at a named pipe when it is
opened.

A temporary folder is removed with its last reference, and when the interpreter ends. A process that
is killed can do neither; its folder stays in the system's temporary folder under a unique name, so
that no later run uses it by mistake, and the next run that needs a folder removes it: a lock ends
with its process whatever happens.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.fs as pafs

from tabfeed.errors import SourceNotFoundError, UnreadableFileError, WriteError

__all__ = [
    "FolderLock",
    "TemporaryFolder",
    "local_info",
    "make_locked",
    "refuse_special",
    "remove_strays",
    "walk",
]

# A network filesystem may have no locks, and Windows has none of this kind: then go without.
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


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


# -- local files ------------------------------------------------------------------------


def local_info(path: str) -> pafs.FileInfo:
    """What a path is: a file, a folder, nothing, or (Unknown) something that is no file."""
    if not _is_text(path):
        refuse_special(path)
    try:
        return _info(path, os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return pafs.FileInfo(path, pafs.FileType.NotFound)


def _info(path: str, facts: os.stat_result) -> pafs.FileInfo:
    kind = pafs.FileType.Unknown  # a pipe, a socket, a device
    if stat.S_ISREG(facts.st_mode):
        return pafs.FileInfo(path, pafs.FileType.File, size=facts.st_size)
    if stat.S_ISDIR(facts.st_mode):
        kind = pafs.FileType.Directory
    return pafs.FileInfo(path, kind)


def walk(
    folder: str, is_data: Callable[[str], bool], *, deep: bool = True
) -> Iterator[pafs.FileInfo]:
    """The files and folders in a folder; data that cannot be read is refused, the rest left out.

    Parameters
    ----------
    folder
        Where to look.
    is_data
        Whether a path is data by its name.
    deep
        Whether to look into the folders there.
    """
    facts = os.stat(folder)
    yield from _walk(folder, ((facts.st_dev, facts.st_ino),), is_data, deep)


def _walk(
    folder: str, above: tuple[tuple[int, int], ...], is_data: Callable[[str], bool], deep: bool
) -> Iterator[pafs.FileInfo]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda e: e.name)
    for entry in found:
        path = entry.path
        try:
            facts = os.stat(path)
        except PermissionError:
            raise
        except OSError:  # a link to nothing, or to itself; or it was removed just now
            if entry.is_symlink() and is_data(path):
                refuse_special(path)
            continue
        folder_there = stat.S_ISDIR(facts.st_mode)
        if not (folder_there or stat.S_ISREG(facts.st_mode)) or not _is_text(path):
            if is_data(path):
                refuse_special(path)
            continue
        here = facts.st_dev, facts.st_ino
        if folder_there and here in above:
            continue  # a link to a folder that it lies in
        yield _info(path, facts)
        if deep and folder_there:
            yield from _walk(path, (*above, here), is_data, deep)


def _is_text(path: str) -> bool:
    return os.fsencode(path).decode("utf-8", "replace") == path


def refuse_special(path: str) -> None:
    """Raise for data that cannot be read: a link to nothing, a pipe, a name that is not text."""
    shown = os.fsencode(path).decode("utf-8", "backslashreplace")
    if os.path.islink(path) and not os.path.exists(path):
        raise SourceNotFoundError(
            f"{shown} is a link to {os.readlink(path)}, which does not exist; restore that file, "
            "or remove the link"
        )
    try:
        facts = os.stat(path)
    except FileNotFoundError as e:
        raise SourceNotFoundError(f"there is no file or folder {shown}; check the path") from e
    kind = _KINDS.get(stat.S_IFMT(facts.st_mode))
    if kind is not None:
        raise UnreadableFileError(
            f"{shown} is {kind}, which cannot be read by parts; write what comes from it into a "
            "file, or remove it"
        )
    if shown != path:
        raise UnreadableFileError(f"the name of {shown} is not UTF-8; give the file another name")
