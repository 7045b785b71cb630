"""Decoded partitions kept for later epochs, in memory or on disk.

What fits is kept, what does not is read again: a budget is never exceeded, and the first
partitions read are the ones that stay, so that a second epoch finds as much as possible.

In memory a partition stays where Arrow decoded it, in memory that is new to the process. Arrow's
allocator already asks for huge pages, so this costs little where the machine has that memory: the
first epoch of 4 million rows of 12 columns, 304 MB, took 0.57 s, and 0.56 s without a cache. A
virtual machine that reports free memory to its host must first get it back, and touching 400 MB
in huge pages takes 0.7 to 1.8 s rather than 0.03 s: there the epoch took 0.9 to 2.3 s. Copies
in memory of the cache's own (huge pages or plain, so that Arrow's is used again) touch as much; in
two comparisons they were between as fast and 1.8 times as fast, with a slower best run in one.

On disk a partition is an Arrow file, uncompressed, that is mapped rather than read: later epochs
cost page cache look-ups. It stays for later runs, under a name that follows from what it was
decoded from (`PartNames`), in a bounded folder that processes share
(`tabfeed.loader.read.cache_folder`): ``TABFEED_CACHE_DIR``, of at most ``TABFEED_CACHE_SIZE``.

Two partitions have one name only if they would decode alike: the same rows of the same content of
the same files, the same columns in the same types, the same filter. Content is identified by an
object's version, or by a local file's size and times of change. Functions cannot be compared, so
what a transform made has no name, nor have frames in memory: these lie in a folder that is removed
with the loader.

Contents are not forced to disk, and a disk may give back other bytes than it was given. So a
file ends in a checksum of all of it, which is compared whenever the file is mapped: a CRC-32 of the
sums of its blocks, since NumPy adds ten times as fast as zlib reads. A file that is damaged is made
anew from its source, and the log says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import shutil
import struct
import tempfile
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import LoaderError, WriteError
from tabfeed.io.formats.base import DataFile
from tabfeed.io.storage.retry import reason
from tabfeed.lazy import cached_property
from tabfeed.loader.read.arrow_columns import Lists, Part, as_view
from tabfeed.loader.read.cache_folder import CacheFolder, default_folder, default_limit
from tabfeed.loader.read.partition_reader import PartReader, ReadsParts

_FORMAT = 2


class PartNames:
    """Names for the partitions of a reader."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    @cached_property
    def _common(self) -> Any:
        """What all partitions share; None if they cannot be named."""
        reader = self.reader
        if not isinstance(reader, PartReader) or reader.transforms or reader.dataset.mapped:
            return None
        if reader.dataset.fileset.skips.allowed:
            return None
        layout, schema = reader.layout, reader.dataset.schema
        types = {name: str(schema[name].dtype) for name in layout.columns}
        condition = reader.dataset.condition
        # As text an expression may be shortened; its serialised form is only hashed, never loaded.
        exact = "" if condition is None else pickle.dumps(condition.expression).hex()
        return [_FORMAT, repr(layout), types, exact]

    def name(self, number: int) -> str | None:
        """The name of a partition; None if it has none."""
        if self._common is None:
            return None
        files, contents = self.reader.dataset.fileset, []
        for piece in self.reader.partitions[number].pieces:
            content = _content(files.files[piece.file])
            if content is None:
                return None
            contents.append([*content, piece.unit, piece.start, piece.rows, piece.whole])
        text = json.dumps([self._common, contents, sorted(files.schema.names)], default=str)
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _content(file: DataFile) -> list[Any] | None:
    """What tells the content of a file from any other; None for what lies in memory."""
    ref = file.ref
    if ref is None:
        return None
    if ref.remote is not None:
        return [ref.name, ref.size, ref.tag] if ref.tag else None
    facts = os.stat(ref.path)
    # The last is set by the system alone: a file that another one was copied over, with that one's
    # time of change, has it too.
    times = [facts.st_mtime_ns, facts.st_ctime_ns]
    return [ref.name, facts.st_size, facts.st_ino, *times]


_log = logging.getLogger("tabfeed")
_END = struct.Struct("<8sQ")  # after the Arrow file: a mark, and the checksum
_MARK = b"tabfeed1"
_BLOCK = 2**12  # a page, which disks and systems write and may misplace as a whole
_OVERHEAD = 4096  # bytes a column may take in an Arrow file besides its values, and the footer


class _ForkSafeLock:
    """A lock that a forked child finds open, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self._pid:
            self._lock, self._pid = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def with_cache(reader: ReadsParts, kind: str, budget: int) -> ReadsParts:
    """The reader, with a cache before it."""
    if kind == "device":
        raise LoaderError(
            'cache="device" keeps data on a GPU, which only the torch loaders do; use '
            'cache="memory" or "disk" here'
        )
    if kind == "memory":
        return MemoryCache(reader, budget)
    return DiskCache(reader)


class _Cache:
    """What caches share: reading ahead only what is not kept."""

    reader: Any

    @property
    def remote(self) -> bool:
        """Whether it helps to `begin` a partition before it is read."""
        return bool(getattr(self.reader, "remote", False))

    def begin(self, number: int) -> Sequence[Any]:
        """Begin to fetch a partition that is not kept."""
        return () if self._has(number) else self.reader.begin(number)

    def read(self, number: int) -> Part:
        """A partition."""
        raise NotImplementedError

    def pieces(self, number: int) -> Iterator[Part]:
        """The same in one piece."""
        yield self.read(number)

    def _has(self, number: int) -> bool:
        raise NotImplementedError


class MemoryCache(_Cache):
    """Keeps partitions in memory up to a budget.

    Parameters
    ----------
    reader
        Reads what is not kept.
    budget
        Most bytes to keep.
    """

    def __init__(self, reader: ReadsParts, budget: int) -> None:
        self.reader = reader
        self._left = budget
        self._kept: dict[int, Part] = {}
        self._lock = _ForkSafeLock()

    def read(self, number: int) -> Part:
        """A partition, from memory if it is there."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        part: Part = self.reader.read(number)
        self._keep(number, part)
        return part

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time: each is gathered while it is in the processor's cache.

        Decoding a partition whole before any column is gathered took up to 1.4 times as long.
        """
        kept = self._kept.get(number)
        if kept is not None:
            yield kept
            return
        whole: Part | None = None
        for piece in self.reader.pieces(number):
            whole = whole or Part(piece.rows)
            whole.scalars.update(piece.scalars)
            whole.lists.update(piece.lists)
            whole.extras.update(piece.extras)
            yield piece
        if whole is not None:
            self._keep(number, whole)

    def _keep(self, number: int, part: Part) -> None:
        """Keep a partition, if it is not kept and the budget allows it."""
        with self._lock:
            if number not in self._kept and part.nbytes <= self._left:
                self._left -= part.nbytes
                self._kept[number] = part

    def _has(self, number: int) -> bool:
        return number in self._kept

    def __getstate__(self) -> dict[str, Any]:
        # A pickled copy begins empty: shipping the data would cost more than reading it.
        left = self._left + sum(p.nbytes for p in self._kept.values())
        return {"reader": self.reader, "_left": left, "_kept": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=_ForkSafeLock())


class DiskCache(_Cache):
    """Keeps partitions as Arrow files, as long as the folder has room.

    Parameters
    ----------
    reader
        Reads what is not kept.
    """

    def __init__(self, reader: ReadsParts) -> None:
        self.reader = reader
        self._names = PartNames(reader)
        self._shared: CacheFolder | None = None
        self._own: CacheFolder | None = None
        self._lock = _ForkSafeLock()
        self._full = False

    def read(self, number: int) -> Part:
        """A partition, from the folder if it is there."""
        folder, name = self._where(number)
        kept = _load(folder, name)
        if kept is not None:
            return kept
        part: Part = self.reader.read(number)
        if self._where(number)[1] == name:  # else its source changed while it was read
            self._keep(part, folder, name)
        return part

    def _keep(self, part: Part, folder: CacheFolder, name: str) -> None:
        if self._full:
            return
        try:
            table = _as_table(part)
            size = table.nbytes + _OVERHEAD * (table.num_columns + 1)
            with folder.create(name, size) as file:
                _write(table, file)
        except OSError:  # no room: go on without keeping more
            self._full = True

    def _has(self, number: int) -> bool:
        folder, name = self._where(number)
        return (folder.path / name).exists()

    def _where(self, number: int) -> tuple[CacheFolder, str]:
        """The folder of a partition and its name there."""
        name = self._names.name(number)
        with self._lock:
            if name is not None:
                if self._shared is None:
                    self._shared = _opened(default_folder())
                return self._shared, f"{name}.arrow"
            if self._own is None:
                path = Path(tempfile.mkdtemp(prefix="tabfeed-cache-"))
                weakref.finalize(self, _remove, path, os.getpid())
                self._own = CacheFolder(path, default_limit(path))
        return self._own, f"{number}.arrow"

    def __getstate__(self) -> dict[str, Any]:
        return {"reader": self.reader}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["reader"])  # type: ignore[misc]


def _opened(path: Path) -> CacheFolder:
    """The shared folder, made if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        return CacheFolder(path, default_limit(path))
    except OSError as e:
        raise WriteError(
            f'cache="disk" needs the folder {path}, which cannot be made: {reason(e)}. Set '
            "TABFEED_CACHE_DIR to one that can be written, or leave out cache="
        ) from e


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked copy must not take its parent's files away
        shutil.rmtree(folder, ignore_errors=True)


def _as_table(part: Part) -> pa.Table:
    arrays: dict[str, pa.Array] = {}
    for name, array in part.scalars.items():
        arrays[f"scalar:{name}"] = _as_arrow(array)
    for name, lists in part.lists.items():
        arrays[f"list:{name}"] = pa.LargeListArray.from_arrays(
            lists.offsets, _as_arrow(lists.values)
        )
    arrays.update({f"extra:{name}": array for name, array in part.extras.items()})
    return pa.table(arrays, metadata={"rows": str(part.rows)})


def _write(table: pa.Table, file: BinaryIO) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    file.flush()
    written = np.memmap(file.name, np.uint8, "r", shape=(file.tell(),))
    file.write(_END.pack(_MARK, checksum(written)))


def checksum(data: npt.NDArray[np.uint8]) -> int:
    """A number that another byte, or another order of blocks, would change.

    Examples
    --------
    >>> data = np.zeros(100_000, np.uint8)
    >>> before = checksum(data)
    >>> data[70_000] = 1
    >>> checksum(data) == before
    False
    """
    whole = len(data) // _BLOCK * _BLOCK
    sums = data[:whole].view(np.uint64).reshape(-1, _BLOCK // 8).sum(axis=1)
    return zlib.crc32(data[whole:].tobytes(), zlib.crc32(sums.tobytes()))


def _verified(buffer: pa.Buffer) -> pa.Buffer:
    """The Arrow file within a file of the cache; an error if it is not what was written."""
    mark, known = _END.unpack(buffer.slice(max(0, buffer.size - _END.size)))
    content = buffer.slice(0, buffer.size - _END.size)
    if mark != _MARK or checksum(np.frombuffer(content, np.uint8)) != known:
        raise ValueError("its checksum is another")
    return content


def _as_arrow(array: npt.NDArray[Any]) -> pa.Array:
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(_as_arrow(array.ravel()), array.shape[1])
    return pa.array(array)


def _load(folder: CacheFolder, name: str) -> Part | None:
    """A partition, if it is there and whole."""
    path = folder.find(name)
    if path is None:
        return None
    try:
        with pa.memory_map(str(path)) as file:
            content = _verified(file.read_buffer())
        table = pa.ipc.open_file(content).read_all()
        rows = int((table.schema.metadata or {})[b"rows"])
    except FileNotFoundError:  # another process made room meanwhile
        return None
    except (pa.ArrowInvalid, OSError, KeyError, ValueError, struct.error) as e:
        _log.warning("a file of the cache is damaged, and is made anew: %s (%s)", path, e)
        folder.forget(name)
        return None
    return _from_table(table, rows)


def _from_table(table: pa.Table, rows: int) -> Part:
    part = Part(rows)
    for key in table.column_names:
        kind, _, name = key.partition(":")
        column = table.column(key)
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        if kind == "scalar":
            part.scalars[name] = _from_arrow(array)
        elif kind == "list":
            part.lists[name] = Lists(as_view(array.values), as_view(array.offsets))
        else:
            part.extras[name] = array
    return part


def _from_arrow(array: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        return as_view(array.flatten()).reshape(-1, width)
    return as_view(array)
