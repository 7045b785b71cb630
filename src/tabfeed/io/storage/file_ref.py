"""One file, local or remote: where it lies, how to open it, and its errors.

Arrow reports a vanished file, a forbidden one and a damaged compressed stream all as ``OSError``.
The difference matters to a user (fix the permissions, or write the file again) and to
``on_bad_file="skip"``, so `reading` tells them apart, once for every format.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import (
    BadFileError,
    DuplicateColumnError,
    SchemaError,
    TabfeedError,
    UnreadableFileError,
)
from tabfeed.io.storage.remote import RemoteOptions
from tabfeed.io.storage.retry import reason, remedy

if TYPE_CHECKING:
    from tabfeed.io.storage.fetch import Range

__all__ = [
    "FileRef",
    "bad_file",
    "claims_more_than",
    "reading",
    "refuse_duplicates",
    "refuse_empty",
    "refuse_names",
]

_REMEDY = 'Write it again, remove it, or pass on_bad_file="skip"'
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


@dataclass(frozen=True)
class FileRef:
    """One file: a filesystem, a path on it, its size, and its Hive keys.

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
        """Refuse a local file that has changed since it was opened; takes 2.5 µs.

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
            "it was rewritten with the same size"
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
        """The same, tied to the file's present content; reading refuses any other."""
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
    """An id of this machine or container: others may have files of the same name and time."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node().replace(" ", "_") or "here"


def _stamp(facts: os.stat_result) -> str:
    """When a file last changed, and its inode.

    Network and FUSE filesystems, which have no device, may give a file another inode at any time.
    """
    inode = facts.st_ino if hasattr(os, "major") and os.major(facts.st_dev) else 0
    return f"{facts.st_mtime_ns}:{inode}"


# -- errors -----------------------------------------------------------------------------


def bad_file(
    ref: FileRef, what: str, *, column: str | None = None, remedy: str = _REMEDY
) -> BadFileError:
    """The error for a damaged or foreign file: what is wrong with it, and what to do.

    Examples
    --------
    >>> import pyarrow.fs as pafs
    >>> print(bad_file(FileRef("a.csv", "a.csv", pafs.LocalFileSystem(), 0), "is empty"))
    a.csv is empty. Write it again, remove it, or pass on_bad_file="skip"
    """
    return BadFileError(f"{ref.name} {what}. {remedy}", file=ref.name, column=column)


@contextmanager
def reading(ref: FileRef, *, decoding: bool = False) -> Iterator[None]:
    """Turn the operating system's errors into `UnreadableFileError` or `BadFileError`.

    Parameters
    ----------
    ref
        The file.
    decoding
        Whether Arrow decodes meanwhile, whose complaints are ``OSError`` without a number.
    """
    try:
        yield
        ref.check()
    except TabfeedError as e:
        if isinstance(e, BadFileError):
            _confirm(ref)  # what looks like damage may be another file
        raise
    except PermissionError as e:
        raise UnreadableFileError(f"{ref.name} may not be read: {reason(e)}. {remedy(e)}") from e
    except FileNotFoundError as e:
        raise UnreadableFileError(
            f"{ref.name} was there when the dataset was opened and is gone now"
        ) from e
    except OSError as e:
        if (ref.compressed or decoding) and not e.errno:  # not the system's, then
            raise bad_file(ref, f"is cut short or damaged: {e}") from e
        raise UnreadableFileError(f"{ref.name} cannot be read: {reason(e)}. {remedy(e)}") from e


def _confirm(ref: FileRef) -> None:
    if ref.remote is None:
        ref.check()
    elif ref.tag:
        from tabfeed.io.storage.fetch import version_of

        version_of(ref)


def claims_more_than(error: MemoryError, nbytes: int) -> bool:
    """Whether Arrow wanted more memory at once than a sound file can ask for.

    Examples
    --------
    >>> claims_more_than(MemoryError("malloc of size 1152921504606846976 failed"), 2**40)
    True
    >>> claims_more_than(MemoryError("capacity too large"), 2**40)
    True
    """
    if "capacity too large" in str(error):  # more than an address can hold
        return True
    size = re.search(r"of size (\d+)", str(error))
    return size is not None and int(size[1]) > nbytes


def refuse_empty(ref: FileRef) -> None:
    """Raise `BadFileError` for a file of zero bytes."""
    if ref.size == 0:
        raise bad_file(ref, "is empty (0 bytes)")


def refuse_duplicates(ref: FileRef, names: Sequence[str]) -> None:
    """Raise `DuplicateColumnError` if a name occurs twice."""
    if len(set(names)) == len(names):
        return
    twice = next(n for n in names if list(names).count(n) > 1)
    raise DuplicateColumnError(
        f"{ref.name} has more than one column named {twice!r}; rename them: a column is "
        "found by its name"
    )


def refuse_names(ref: FileRef, names: Sequence[str]) -> None:
    """Refuse a file whose columns cannot all be found by their names, or that has none."""
    if not names:
        raise bad_file(ref, "has no columns, so there is nothing to read")
    if "" in names:
        raise SchemaError(
            f"{ref.name} has a column without a name, as column {list(names).index('')} "
            "(counted from 0); write the file again with a name for it: a column is found by its "
            "name"
        )
    refuse_duplicates(ref, names)
