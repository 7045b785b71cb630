"""What lies in a folder of this machine, as Arrow would list it, and what Arrow does not say.

Arrow follows a link to a folder above it until the path is too long, leaves out links to nothing,
and stops at a named pipe when it is opened. Here a folder is not entered again below itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator

import pyarrow.fs as pafs

from tabfeed.errors import SourceNotFoundError, UnreadableFileError

__all__ = ["local_info", "refuse_special", "walk"]

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


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
