"""Arrow IPC: files (Feather v2) and streams, distinguished by their first bytes.

A unit is a record batch. Rows and sizes come from the messages' metadata, so partitions
are cut without decoding anything. Local files are memory-mapped: columns of uncompressed
files are views of the page cache, never copied.

A stream has no footer; its messages are found by hopping from one to the next, which
reads their metadata only. One of its batches is read as a stream of its own: the schema,
the dictionaries in force, the batch.

A record batch is the smallest thing IPC decodes. Slices of a local, uncompressed one take
no memory but their own, since what is mapped can be given up at any time; others are in
memory whole while a slice is read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import BadFileError
from tabfeed.io.align import cast_columns, invalid_column, normalize_schema, rebatch
from tabfeed.io.formats.base import DataFile, ReadOptions, index_columns, refuse_names
from tabfeed.io.formats.ipc_messages import (
    DICTIONARY,
    MOST_EXPANSION,
    RECORD_BATCH,
    SCHEMA,
    Message,
    column_bytes,
    footer_blocks,
    message_at,
    messages,
    takes_bytes,
)
from tabfeed.io.storage.files import FileRef, bad_file, claims_more_than, reading, refuse_empty
from tabfeed.lazy import cached_property

__all__ = ["IpcFile", "IpcStream", "open_ipc"]

_MAGIC = b"ARROW1"
_MOST_EMPTY_ROWS = 2**31  # of a record batch whose columns take no bytes; Arrow advises fewer
_BROKEN = (
    pa.ArrowException,
    struct.error,
    EOFError,
    IndexError,
    OverflowError,
    UnicodeDecodeError,  # a name
)


def open_ipc(ref: FileRef, options: ReadOptions) -> IpcFile | IpcStream:
    """Read the schema of an Arrow IPC file or stream, whatever its name says."""
    refuse_empty(ref)
    if ref.compressed:
        raise bad_file(
            ref,
            "is an Arrow file compressed as a whole, which cannot be read by parts",
            remedy="Decompress it; Arrow files can be compressed inside instead",
        )
    with _opened(ref.just_pinned()) as file:
        start = bytes(file.read(8))
        kind = IpcFile if start.startswith(_MAGIC) else IpcStream
        if kind is IpcStream and start[:4] != b"\xff\xff\xff\xff" and not _old_stream(start):
            raise bad_file(ref, _foreign(start))
        file.seek(0)
        return kind(ref, file)


def _old_stream(start: bytes) -> bool:
    """Whether this may be a stream of before Arrow 0.15: the length of the schema comes first."""
    return len(start) == 8 and 8 < struct.unpack("<I", start[:4])[0] < 2**24 and start[4] < 64


def _foreign(start: bytes) -> str:
    if start.startswith(b"FEA1"):
        return "is a Feather file of version 1, which is no longer supported"
    return f"is not an Arrow file or stream: it starts with {start!r}"


@contextmanager
def _opened(ref: FileRef) -> Iterator[pa.NativeFile]:
    """The file, memory-mapped if it is on this machine; errors as tabfeed's own."""
    opened = ref.mapped if _is_local(ref) else ref.open
    try:
        with reading(ref, decoding=True), opened() as file:
            yield file
    except MemoryError as e:
        if claims_more_than(e, MOST_EXPANSION * ref.size):
            raise _damaged(ref, e) from e
        raise  # not the file's fault
    except _BROKEN as e:
        raise _damaged(ref, e) from e


def _is_local(ref: FileRef) -> bool:
    return isinstance(ref.filesystem, pafs.LocalFileSystem)


def _damaged(ref: FileRef, error: object, column: str | None = None) -> BadFileError:
    return bad_file(ref, f"is an Arrow file cut short or damaged: {error}", column=column)


class _Ipc(DataFile):
    """The common part of files and streams: units are record batches."""

    ref: FileRef
    indivisible = "record batch"

    def __init__(self, ref: FileRef, file: pa.NativeFile) -> None:
        self._stored = self._read_schema(file)
        refuse_names(ref, self._stored.names)
        index = index_columns(self._stored.names, self._stored.metadata)
        super().__init__(normalize_schema(self._stored), ref, index)

    def _read_schema(self, file: pa.NativeFile) -> pa.Schema:
        raise NotImplementedError

    def _find(self, file: pa.NativeFile) -> list[Message]:
        raise NotImplementedError

    def _decode(
        self, file: pa.NativeFile, units: Sequence[int], options: pa.ipc.IpcReadOptions
    ) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    @cached_property
    def _batches(self) -> list[Message]:
        with _opened(self.ref) as file:
            found = self._find(file)
        if any(m.rows < 0 or m.end > self.ref.size for m in found):
            raise _damaged(self.ref, EOFError("a record batch does not fit into the file"))
        counted = any(takes_bytes(dtype) for dtype in self._stored.types)
        for unit, m in enumerate(found):
            held = 8 * (m.end - m.body) * (MOST_EXPANSION if m.compressed else 1)
            if m.rows > (held if counted else _MOST_EMPTY_ROWS):
                claim = f"record batch {unit} claims {m.rows:,} rows in {m.end - m.body:,} bytes"
                raise _damaged(self.ref, EOFError(claim))
        return found

    @cached_property
    def _widths(self) -> dict[str, float]:
        """Bytes a row of each column takes, in the first batch that has rows."""
        sample = next((m for m in self._batches if m.rows), None)
        if sample is None:
            return dict.fromkeys(self.schema.names, 0.0)
        with _opened(self.ref) as file:
            sizes = column_bytes(file, sample, self._stored)
        return {name: size / sample.rows for name, size in sizes.items()}

    @cached_property
    def unit_rows(self) -> Sequence[int]:
        """Rows of each record batch."""
        return [m.rows for m in self._batches]

    @cached_property
    def _compressed(self) -> bool:
        return any(m.compressed for m in self._batches)

    def count(self, unit: int) -> int:
        """Rows of a record batch."""
        return self._batches[unit].rows

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Estimate, by how wide the first batch is once decompressed."""
        return max(1, round(self._batches[unit].rows * sum(self._widths[c] for c in columns)))

    def bytes_at_once(self, unit: int, columns: Sequence[str], most: int) -> int:
        """Bytes held while a slice of a record batch is read: the batch twice, as measured."""
        return 0 if self._maps_all else 2 * self.nbytes(unit, columns)

    @property
    def _maps_all(self) -> bool:
        """Whether a record batch is read without a copy."""
        return _is_local(self.ref) and not self._compressed

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Whole record batches; only `columns` are decompressed."""
        wanted = list(columns) or self.schema.names[:1]
        stored = pa.schema([self._stored.field(c) for c in wanted]).remove_metadata()
        tables = [stored.empty_table(), *self._as_stored(units, wanted)]
        return self._small(pa.concat_tables(tables)).select(list(columns))

    def _as_stored(self, units: Sequence[int], columns: Sequence[str]) -> Iterator[pa.Table]:
        with _opened(self.ref) as file:
            decoded = self._decode(file, units, self._options(columns))
            for unit, batch in zip(units, decoded, strict=True):
                part = pa.Table.from_batches([batch.select(columns)])
                try:
                    part.validate(full=True)  # 4 GB/s; an offset gone wrong would crash the reader
                except pa.ArrowInvalid as e:
                    name, why = invalid_column(part) or (None, e)
                    where = f"record batch {unit}, column {name!r}"
                    raise _damaged(self.ref, f"{where}: {why}", name) from e
                yield part.replace_schema_metadata(None)

    def _small(self, table: pa.Table) -> pa.Table:
        return cast_columns(table, pa.schema([self.schema.field(c) for c in table.column_names]))

    def _options(self, columns: Sequence[str]) -> pa.ipc.IpcReadOptions:
        """Leave columns out, unless taking all of them costs nothing.

        Arrow copies when it reads a part of the columns, and does not when it maps them all.
        """
        if self._maps_all:
            return pa.ipc.IpcReadOptions(use_threads=False)
        indices = sorted({self.schema.get_field_index(c) for c in columns})
        return pa.ipc.IpcReadOptions(included_fields=indices, use_threads=False)

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A record batch in slices of `rows` rows; a compressed one is decompressed whole."""
        wanted = list(columns) or self.schema.names[:1]
        for table in self._as_stored([unit], wanted):
            parts = (table.slice(start, rows) for start in range(0, table.num_rows, rows))
            for batch in rebatch(map(self._small, parts), rows):
                yield batch.select(list(columns))

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


class IpcFile(_Ipc):
    """An Arrow IPC file, also called Feather v2."""

    def _read_schema(self, file: pa.NativeFile) -> pa.Schema:
        return pa.ipc.open_file(file).schema

    def _find(self, file: pa.NativeFile) -> list[Message]:
        found = [message_at(file, o) for o in footer_blocks(file, self.ref.size)]
        if any(m is None or m.kind != RECORD_BATCH for m in found):
            raise EOFError("the footer points to something that is not a record batch")
        return [m for m in found if m is not None]

    def _decode(
        self, file: pa.NativeFile, units: Sequence[int], options: pa.ipc.IpcReadOptions
    ) -> Iterator[pa.RecordBatch]:
        reader = pa.ipc.open_file(file, options=options)
        for unit in units:
            yield reader.get_batch(unit)


class IpcStream(_Ipc):
    """An Arrow IPC stream in a file."""

    def bytes_at_once(self, unit: int, columns: Sequence[str], most: int) -> int:
        """The bytes of the message twice, and its decoded columns."""
        message = self._batches[unit]
        decoded = super().bytes_at_once(unit, columns, most) if self._compressed else 0
        return 2 * (message.end - message.start) + decoded

    def _read_schema(self, file: pa.NativeFile) -> pa.Schema:
        return pa.ipc.open_stream(file).schema

    @cached_property
    def _messages(self) -> list[Message]:
        with _opened(self.ref) as file:
            return list(messages(file, self.ref.size))

    @cached_property
    def _dictionaries(self) -> dict[int, list[Message]]:
        """By their number, in the order they have in the file."""
        found: dict[int, list[Message]] = {}
        for m in self._messages:
            if m.kind == DICTIONARY:
                found.setdefault(m.dictionary, []).append(m)
        return found

    def _find(self, file: pa.NativeFile) -> list[Message]:
        return [m for m in self._messages if m.kind == RECORD_BATCH]

    def _decode(
        self, file: pa.NativeFile, units: Sequence[int], options: pa.ipc.IpcReadOptions
    ) -> Iterator[pa.RecordBatch]:
        for unit in units:
            parts = [*self._needed_for(self._batches[unit]), self._batches[unit]]
            stream = b"".join(_bytes_of(file, m) for m in parts)
            yield pa.ipc.open_stream(pa.py_buffer(stream), options=options).read_next_batch()

    def _needed_for(self, batch: Message) -> list[Message]:
        """The schema, and the dictionaries in force when the batch comes."""
        current: list[Message] = []
        for parts in self._dictionaries.values():
            last = bisect_left(parts, batch.start, key=lambda m: m.start)
            first = last - 1
            while first > 0 and parts[first].delta:
                first -= 1
            current += parts[max(0, first) : last]
        current.sort(key=lambda m: m.start)
        return [m for m in self._messages[:1] if m.kind == SCHEMA] + current


def _bytes_of(file: pa.NativeFile, message: Message) -> bytes:
    file.seek(message.start)
    return bytes(file.read(message.end - message.start))
