"""Where one file lies, local or remote, and how to open it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import UnreadableFileError
from tabfeed.io.storage.ranges import Range
from tabfeed.io.storage.remote import RemoteOptions

__all__ = ["FileRef"]

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


@dataclass(frozen=True)
class FileRef:
    """One file: a filesystem, a path on it, its size, and what the folders say of it.

    ``name`` is what a person would write: the path, or the URL of a remote object.
    ``keys`` are the Hive keys of the folders above it (``day=3/``), typed. ``remote`` says how to
    read it from a server; None if it is on this machine. ``tag`` tells this content from another:
    of a remote object its ETag or the like, of a local file the time of its last change and its
    inode. Reading compares it. ``crc32`` and ``etag`` are what the manifest says of the file; empty
    where it says nothing.
    """

    name: str
    path: str
    filesystem: pafs.FileSystem
    size: int
    keys: tuple[tuple[str, Any], ...] = ()
    remote: RemoteOptions | None = None
    tag: str = ""
    crc32: str = ""
    etag: str = ""

    def open(self, ranges: Sequence[Range] = (), *, check: bool = True) -> pa.NativeFile:
        """The file, for random access; `ranges` of it are fetched at once if it is remote.

        Parameters
        ----------
        ranges
            What will be read.
        check
            Whether to ask the server, too, that the content is still the one that was opened.
        """
        if self.remote is not None:
            from tabfeed.io.storage.remote_file import open_remote

            return open_remote(self if check else replace(self, tag=""), ranges)
        if not isinstance(self.filesystem, pafs.LocalFileSystem):
            return self.filesystem.open_input_file(self.path)
        return self._unchanged(pa.OSFile(self.path, "rb"))

    def mapped(self) -> pa.NativeFile:
        """The local file, mapped into memory."""
        return self._unchanged(pa.memory_map(self.path))

    def _unchanged(self, file: pa.NativeFile) -> pa.NativeFile:
        try:
            self.check(os.fstat(file.fileno()))
        except BaseException:
            file.close()
            raise
        return file

    def check(self, facts: os.stat_result | None = None) -> None:
        """Refuse a local file that is not the one that was opened; a look costs 2.5 µs.

        Parameters
        ----------
        facts
            Of the file, or of a handle; by default they are looked up.
        """
        here, _, tag = self.tag.partition(" ")
        if self.remote is not None or not tag or here != _machine():
            return
        facts = os.stat(self.path) if facts is None else facts
        if (facts.st_size, _stamp(facts)) == (self.size, tag):
            return
        how = (
            "as many bytes were written anew"
            if facts.st_size == self.size
            else f"it has {facts.st_size:,} bytes now, not {self.size:,}"
        )
        raise UnreadableFileError(
            f"{self.name} has changed since the dataset was opened: {how}. Open the dataset again"
        )

    def stream(self) -> pa.NativeFile:
        """The file from its start, decompressed if its name ends in .gz, .zst, .bz2 or .lz4."""
        if self.remote is None and not isinstance(self.filesystem, pafs.LocalFileSystem):
            return self.filesystem.open_input_stream(self.path, compression="detect")
        codec = next((c for end, c in _CODECS.items() if self.path.lower().endswith(end)), None)
        return self.open() if codec is None else pa.CompressedInputStream(self.open(), codec)

    def pinned(self) -> FileRef:
        """The same, of the content that is there now; what comes later is noticed."""
        if self.tag:
            return self
        if self.remote is None:
            if not isinstance(self.filesystem, pafs.LocalFileSystem):
                return self
            facts = os.stat(self.path)
            return replace(self, size=facts.st_size, tag=f"{_machine()} {_stamp(facts)}")
        from tabfeed.io.storage.fetch import version_of

        return replace(self, tag=version_of(self).tag)

    @property
    def compressed(self) -> bool:
        """Whether `stream` decompresses."""
        return self.path.lower().endswith(tuple(_CODECS))


@cache
def _machine() -> str:
    """What tells this machine, or this container, from others that may have files alike."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node().replace(" ", "_") or "here"


def _stamp(facts: os.stat_result) -> str:
    """When a file was changed last, and which file it is.

    Network and FUSE filesystems, which have no device, may give a file another inode at any time.
    """
    inode = facts.st_ino if hasattr(os, "major") and os.major(facts.st_dev) else 0
    return f"{facts.st_mtime_ns}:{inode}"
