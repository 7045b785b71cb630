"""Paths and files, local or on a server: where they are, how to open them, and their errors.

Local paths use Arrow's own local filesystem, and ``s3://`` Arrow's own S3, which is the faster way
there (`tabfeed.io.storage.remote` has the figures). Every other URL, and S3 with options that Arrow
lacks, goes through fsspec, so that whatever a user has installed (s3fs, gcsfs, adlfs, ...) works
with the same ``storage_options`` as in pandas, Polars and Dask. Two of these are ours, not the
filesystem's: ``connections`` and ``deadline``; see `tabfeed.io.storage.remote.RemoteOptions`.

Arrow reports a vanished file, a forbidden one and a damaged compressed stream all as ``OSError``.
The difference matters to a user (fix the permissions, or write the file again) and to
``on_bad_file="skip"``, so `reading` tells them apart, once for every format.
"""

from __future__ import annotations

import os
import platform
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    MissingExtraError,
    TabfeedError,
    UnreadableFileError,
)
from tabfeed.io.storage.local import refuse_special
from tabfeed.io.storage.remote import RemoteOptions, split_options
from tabfeed.io.storage.retry import reason, remedy, with_retries

if TYPE_CHECKING:
    from tabfeed.io.storage.fetch import Range

__all__ = [
    "FileRef",
    "RemotePath",
    "bad_file",
    "claims_more_than",
    "natural_key",
    "path_of",
    "reading",
    "refuse_empty",
]

_REMEDY = 'Write it again, remove it, or pass on_bad_file="skip"'
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_EXTRAS = {"s3": "s3", "s3a": "s3"}


@dataclass(frozen=True)
class RemotePath:
    """A path on a filesystem, and how a person writes it.

    ``prefix`` is what precedes a path in messages: ``"s3://"``, or nothing for local files.
    ``remote`` says how to read from a server; None for local files. ``local`` says whether it is on
    this machine.
    """

    path: str
    filesystem: pafs.FileSystem
    prefix: str = ""
    remote: RemoteOptions | None = None
    local: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "local", isinstance(self.filesystem, pafs.LocalFileSystem))

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
        from tabfeed.io.storage.s3 import arrow_s3

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


# -- files ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRef:
    """One file: a filesystem, a path on it, its size, and its Hive keys.

    ``name`` is what a person would write: the path, or the URL of a remote object.
    ``keys`` are the Hive keys of the folders above it (``day=3/``), typed. ``remote`` says how to
    read it from a server; None if it is on this machine. ``tag`` tells this content from another:
    of a remote object its ETag or the like, of a local file what `_stamp` says. Reading compares
    it. ``crc32`` and ``etag`` are what the manifest says of the file; empty
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

    def open(self, ranges: Sequence[Range] = ()) -> pa.NativeFile:
        """The file, for random access; `ranges` of it are fetched at once if it is remote."""
        if self.remote is not None:
            from tabfeed.io.storage.remote_file import open_remote

            return open_remote(self, ranges)
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
        if facts.st_size == self.size and _same_content(tag, _stamp(facts)):
            return
        how = (
            "it was rewritten with the same size, or its times were set"
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
        with reading(self):
            if self.remote is not None:
                from tabfeed.io.storage.fetch import version_of

                return replace(self, tag=version_of(self).tag)
            if not isinstance(self.filesystem, pafs.LocalFileSystem):
                return self
            facts = os.stat(self.path)
            return replace(self, size=facts.st_size, tag=f"{_machine()} {_stamp(facts)}")

    def just_pinned(self) -> FileRef:
        """The same, for reading a header right after `pinned`.

        A server is not asked again whether the content is still the same: that would be one more
        request for each object. Whatever is read later is compared with what was pinned.
        """
        return self if self.remote is None else replace(self, tag="")

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
    """What tells a local file's content from another: times, inode and attributes.

    The time of the last write (mtime) can be set back; that of the last change of anything (ctime)
    cannot. But ctime also moves when a file is given other rights or another owner, which explains
    it (`_same_content`), and when a hard link to it comes or goes, as with backups: while a file
    has several, ctime is not compared. What is lost: a file that is rewritten in place, with its
    mtime set back, and has several links or was given other rights. What is refused though the
    content is the same: its times were set, an extended attribute was written, or its only further
    link was made and removed again since it was opened.

    Network and FUSE filesystems, which have no device, may give a file another inode or ctime at
    any time; there, mtime and size must do.
    """
    if not (hasattr(os, "major") and os.major(facts.st_dev)):
        return f"{facts.st_mtime_ns}:0"
    changed = facts.st_ctime_ns if facts.st_nlink == 1 else 0
    attributes = f"{facts.st_mode},{facts.st_uid},{facts.st_gid},{facts.st_nlink}"
    return f"{facts.st_mtime_ns}:{facts.st_ino}:{changed}:{attributes}"


def _same_content(noted: str, now: str) -> bool:
    """Whether two stamps are of one content, as far as they can tell.

    Examples
    --------
    >>> _same_content("5:1:7:33188,0,0,1", "5:1:9:33188,0,0,2")  # a hard link was made
    True
    >>> _same_content("5:1:7:33188,0,0,1", "5:1:9:33188,0,0,1")  # written, and mtime set back
    False
    """
    if noted == now:
        return True
    was, found = noted.split(":"), now.split(":")
    return was[:2] == found[:2] and was[3:] != found[3:]


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
