"""Local paths and URLs, behind one interface: Arrow's filesystems.

Local paths use Arrow's own local filesystem, and ``s3://`` Arrow's own S3, which is the faster way
there (`tabfeed.io.storage.remote` has the figures). Every other URL, and S3 with options that Arrow
lacks, goes through fsspec, so that whatever a user has installed (s3fs, gcsfs, adlfs, ...) works
with the same ``storage_options`` as in pandas, Polars and Dask. Two of these are ours, not the
filesystem's: ``connections`` and ``deadline``; see `tabfeed.io.storage.remote.RemoteOptions`.

Local folders are listed here (`walk`) rather than by Arrow, which follows a link to a folder above
until the path is too long, leaves out links to nothing, and stops at a named pipe when it is
opened.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from tabfeed.errors import (
    ArgumentError,
    MissingExtraError,
    SourceNotFoundError,
    UnreadableFileError,
)
from tabfeed.io.storage.remote import RemoteOptions, split_options
from tabfeed.io.storage.retry import with_retries
from tabfeed.io.storage.s3 import arrow_s3

__all__ = [
    "HIVE_NULL",
    "RemotePath",
    "local_info",
    "natural_key",
    "path_of",
    "refuse_special",
    "walk",
]

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # the folder of rows whose key is null
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_EXTRAS = {"s3": "s3", "s3a": "s3"}


@dataclass(frozen=True)
class RemotePath:
    """A path on a filesystem, and how a person writes it.

    ``prefix`` is what precedes a path in messages: ``"s3://"``, or nothing for local files.
    ``remote`` says how to read from a server; None for local files.
    """

    path: str
    filesystem: pafs.FileSystem
    prefix: str = ""
    remote: RemoteOptions | None = None

    @property
    def local(self) -> bool:
        """Whether the path is on this machine."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    @property
    def name(self) -> str:
        """As a person writes it."""
        return self.prefix + self.path

    def child(self, *parts: str) -> RemotePath:
        """A path below this one."""
        return replace(self, path=posixpath.join(self.path, *parts))

    def info(self) -> pafs.FileInfo:
        """Whether it is a file, a folder or nothing."""
        return self.filesystem.get_file_info(self.path)

    @property
    def exists(self) -> bool:
        """Whether anything is there."""
        return bool(self.info().type != pafs.FileType.NotFound)

    def read_text(self) -> str:
        """The whole file as text; a pipe or a device is refused, since reading may not end."""
        if self.local and self.info().type == pafs.FileType.Unknown:
            refuse_special(self.path)
        with self.filesystem.open_input_stream(self.path, compression=None) as f:
            return bytes(f.read()).decode("utf-8")


def path_of(
    path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> RemotePath:
    """Find the filesystem of a path or URL.

    Examples
    --------
    >>> path_of("data/train").local, path_of("memory://train").name
    (True, 'memory:///train')
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"a path must be a non-empty string, not {path!r}")
    protocol, separator, _ = text.partition("://")
    if not separator:
        absolute = Path(os.path.abspath(os.path.expanduser(text))).as_posix()
        return RemotePath(absolute, pafs.LocalFileSystem())
    if protocol == "file":
        return path_of(text.removeprefix("file://"), storage_options)
    remote, options = split_options(storage_options)
    if protocol in ("s3", "s3a"):
        inner = text.partition("://")[2].strip("/")
        s3 = arrow_s3(inner.partition("/")[0], options, remote.deadline)
        if s3 is not None:
            prefix = f"{protocol}://"
            return RemotePath(inner, with_retries(s3, prefix, remote), prefix, remote)
    return _through_fsspec(text, remote, options)


def _through_fsspec(text: str, remote: RemoteOptions, options: dict[str, Any]) -> RemotePath:
    import fsspec

    protocol = text.partition("://")[0]
    if protocol in _EXTRAS:  # so that our deadline counts, not the library's many tries
        config = {"retries": {"total_max_attempts": 2}, **options.get("config_kwargs", {})}
        options = {**options, "config_kwargs": config}
    try:
        filesystem, inner = fsspec.core.url_to_fs(text, **options)
    except ImportError as e:
        if protocol in _EXTRAS:
            raise MissingExtraError(_EXTRAS[protocol], f"{protocol}:// URLs") from e
        raise ArgumentError(f"{text} needs a library that is not installed: {e}") from e
    except ValueError as e:
        raise ArgumentError(f"{text}: {e}") from e
    prefix = "" if "://" in inner else f"{protocol}://"  # HTTP paths are whole URLs
    arrow = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    return RemotePath(inner, with_retries(arrow, prefix, remote), prefix, remote)


def natural_key(path: str) -> list[tuple[int, str | int]]:
    """Sort numbers in names by value: part_2 before part_10."""
    parts = re.split(r"(\d+)", path)  # text and digits in turn
    return [(1, int(p)) if i % 2 else (0, p) for i, p in enumerate(parts)] + [(0, path)]


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
