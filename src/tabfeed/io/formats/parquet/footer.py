"""Parquet footers: read once, kept for remote files, and checked before pyarrow looks at them.

pyarrow asks a column chunk's entry through C++ code that ends the process where the entry is
encrypted, or its statistics are not values of its type. So a footer is checked here, once and
before the first such question: every entry is walked over in its serialised form, which takes some
15 us each. That also finds sizes, counts and offsets that cannot be. Values are stepped over rather
than made into objects: a footer holds tens of thousands of them.

A remote footer costs two round trips. Those of a dataset's files are fetched side by side when it
is opened (`tabfeed.io.fileset`), and kept here up to 64 MiB, by the object's version: what has
changed is read anew.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.io.storage.files import FileRef

__all__ = [
    "LIST",
    "STRUCT",
    "EncryptedError",
    "Footer",
    "FooterError",
    "behind",
    "number",
    "read_footer",
]

_MOST_BYTES = 64 * 2**20
_TAIL = 2**16  # what most footers fit into
_MOST_DEPTH = 64  # pyarrow recurses into the schema: some 10,000 levels end the process
_FIXED = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_KINDS = [*_FIXED, "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"]  # by Parquet's numbers

# Kinds of values in Thrift's compact form.
INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, STRUCT = 4, 5, 6, 7, 8, 9, 10, 12
_BYTE = 3
_MOST_NESTED = 16
# Fields by number and kind; what has a known number and another kind is passed over, as in Arrow.
_SCHEMA, _GROUPS = 2 << 4 | LIST, 4 << 4 | LIST
_ENCRYPTION, _SIGNING_KEY = 8 << 4 | STRUCT, 9 << 4 | BINARY
_CHUNKS, _ROWS = 1 << 4 | LIST, 3 << 4 | INT64
_PATH, _META, _CRYPTO, _SECRET = 1 << 4 | BINARY, 3 << 4 | STRUCT, 8 << 4 | STRUCT, 9 << 4 | BINARY
_TYPE, _VALUES, _PLAIN, _STORED = 1 << 4 | INT32, 5 << 4 | INT64, 6 << 4 | INT64, 7 << 4 | INT64
_DATA, _DICTIONARY, _STATISTICS = 9 << 4 | INT64, 11 << 4 | INT64, 12 << 4 | STRUCT
_BOUNDS = [n << 4 | BINARY for n in (1, 2, 5, 6)]
_SIZES, _TEXT_BYTES, _HISTOGRAMS = 16 << 4 | STRUCT, 1 << 4 | INT64, [2 << 4 | LIST, 3 << 4 | LIST]
_CODEC, _CODECS = 4 << 4 | INT32, 8
_CHILDREN = 5 << 4 | INT32
_LONGEST_TEXT = 2**31


class FooterError(ValueError):
    """What a footer says cannot be; `row_group` and `leaf` tell where, as far as that is known."""

    def __init__(self, message: str, row_group: int | None = None) -> None:
        self.row_group = row_group
        self.leaf: int | None = None
        super().__init__(message)


class EncryptedError(FooterError):
    """The file, or a column of it, is encrypted."""


class Footer:
    """A footer and, until they have been checked, its bytes.

    Attributes
    ----------
    metadata
        As pyarrow knows it. Call `check` before reading its column chunks or pickling it.
    schema_bytes
        Its beginning, up to the end of the schema; empty if that is not known.
    text_bytes
        Bytes of all text of a row group's leaf column, decoded, where the footer notes them.
    checked
        Whether nothing is left to check.
    """

    def __init__(
        self, metadata: pq.FileMetaData, data: bytes | None, schema_bytes: bytes = b""
    ) -> None:
        self.metadata = metadata
        self.schema_bytes = schema_bytes
        self.text_bytes: dict[tuple[int, int], int] = {}
        self._data = data
        self.checked = data is None

    def check(self, size: int) -> None:
        """Raise `FooterError` unless all entries are sound, in a file of `size` bytes."""
        if self._data is None:
            return
        try:
            self.text_bytes = _check(self._data, self.metadata.schema, size)
        except FooterError:
            raise
        except (IndexError, ValueError) as e:
            raise FooterError(f"an entry cannot be read: {e}") from e
        self._data, self.checked = None, True

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.metadata, self.text_bytes)


def _rebuild(metadata: pq.FileMetaData, text_bytes: dict[tuple[int, int], int]) -> Footer:
    footer = Footer(metadata, None)
    footer.text_bytes = text_bytes
    return footer


# -- Thrift's compact form ------------------------------------------------------------------


def number(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    raw, at = length(data, at)
    return (raw >> 1) ^ -(raw & 1), at


def length(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number that is never negative, and where it ends."""
    raw = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            return raw, at
        shift += 7
    raise ValueError("a number too long")


def list_head(data: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """How many values a list has, of which kind, and where the first one begins."""
    head = data[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = length(data, at)
    if count > len(data) - at:
        raise ValueError(f"a list of {count} values")
    return count, head & 15, at


def behind(data: bytes | memoryview, at: int, kind: int, depth: int = 0) -> int:
    """Where a value of a list or a field that is not a truth value ends."""
    if kind == BINARY:
        size, at = length(data, at)
        return at + size
    if INT16 <= kind <= INT64:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BYTE:
        return at + 1
    if kind == DOUBLE:
        return at + 8
    if depth > _MOST_NESTED:
        raise ValueError("too deep")
    if kind == STRUCT:
        while byte := data[at]:
            at += 1
            if byte < 16:
                at = number(data, at)[1]
            kind = byte & 15
            if kind == BINARY and data[at] < 128:  # the least and the largest value, mostly
                at += 1 + data[at]
            elif kind > 2:  # up to there it is a truth value, and all is said
                at = behind(data, at, kind, depth + 1)
        return at + 1
    if kind in (LIST, SET):
        count, kind, at = list_head(data, at)
        if kind < 3:  # truth values of a list take a byte each
            return at + count
        for _ in range(count):
            at = behind(data, at, kind, depth + 1)
        return at
    raise ValueError(f"a field of kind {kind}")


def struct(
    data: bytes | memoryview,
    at: int,
    depth: int = 0,
    lists: Mapping[int, Callable[[int], tuple[Any, int]]] | None = None,
) -> tuple[dict[int, Any], int]:
    """The fields of a struct by number and kind (``number << 4 | kind``), and where it ends.

    Of whole numbers the value, of binaries the length, of structs their fields, of lists where
    they begin; of those in `lists` what its function makes of the list that begins there, which
    also returns where the list ends.
    """
    if depth > _MOST_NESTED:
        raise ValueError("too deep")
    found: dict[int, Any] = {}
    field = 0
    while byte := data[at]:
        at += 1
        kind = byte & 15
        if byte > 15:
            field += byte >> 4
        else:
            field, at = number(data, at)
        if INT16 <= kind <= INT64:
            raw = data[at]
            at += 1
            if raw > 127:
                raw, at = length(data, at - 1)
            found[field << 4 | kind] = (raw >> 1) ^ -(raw & 1)
        elif kind == BINARY:
            size, at = length(data, at)
            found[field << 4 | kind] = size
            at += size
        elif kind == STRUCT:
            found[field << 4 | kind], at = struct(data, at, depth + 1)
        elif lists is not None and (read := lists.get(field << 4 | kind)) is not None:
            found[field << 4 | kind], at = read(at)
        elif kind > 2:  # up to there it is a truth value, and all is said
            found[field << 4 | kind] = at
            at = behind(data, at, kind)
    return found, at + 1


# -- reading --------------------------------------------------------------------------------

_kept: OrderedDict[tuple[str, int, str], Footer] = OrderedDict()
_lock = threading.Lock()


def read_footer(ref: FileRef, file: pa.NativeFile) -> Footer:
    """The footer of a Parquet file, from memory if the same content was opened before."""
    if ref.remote is None or not ref.tag:
        return _read(file)
    key = (ref.name, ref.size, ref.tag)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    footer = _read(file)
    with _lock:
        _kept[key] = footer
        while sum(f.metadata.serialized_size for f in _kept.values()) > _MOST_BYTES:
            _kept.popitem(last=False)
    return footer


def _read(file: pa.NativeFile) -> Footer:
    size = file.size()
    tail = file.read_at(min(size, _TAIL), max(0, size - _TAIL))
    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] == b"PARE":
        raise EncryptedError("its footer is encrypted")
    if len(tail) - 8 < length <= size - 8:
        tail = file.read_at(length + 8, size - length - 8)
    data = tail[-8 - length : -8] if length <= len(tail) - 8 else b""
    start = _check_schema(data)
    footer = Footer(pq.read_metadata(pa.BufferReader(tail)), data, start)
    if footer.metadata.serialized_size != length:  # a signature, as of an encrypted file, or damage
        footer.check(size)
    return footer


# -- checking -------------------------------------------------------------------------------

_sound_start = b""  # of the footer opened last, up to its schema's end: most files have the same


def _check_schema(data: bytes) -> bytes:
    """A footer up to its schema's end; refuse one whose columns are nested too deep."""
    global _sound_start
    known = _sound_start
    if known and data.startswith(known):
        return known
    try:
        at = _begin_of_schema(data)
        start = data[: _depth_of_schema(data, at)] if at else b""
    except IndexError:
        return b""  # cut short, as pyarrow will say
    _sound_start = start
    return start


def _begin_of_schema(data: bytes) -> int:
    field, at = 0, 0
    while byte := data[at]:
        at += 1
        field, at = (field + (byte >> 4), at) if byte > 15 else number(data, at)
        if field << 4 | byte & 15 == _SCHEMA:
            return at
        if byte & 15 > 2:
            at = behind(data, at, byte & 15)
    return 0


def _depth_of_schema(data: bytes, at: int) -> int:
    count, kind, at = list_head(data, at)
    if kind != STRUCT:
        raise FooterError("its schema is not one")
    open_groups: list[int] = []  # how many children each still lacks
    for _ in range(count):
        element, at = struct(data, at)
        while open_groups and open_groups[-1] == 0:
            open_groups.pop()
        if open_groups:
            open_groups[-1] -= 1
        children = element.get(_CHILDREN, 0)
        if children:
            open_groups.append(children)
            if len(open_groups) > _MOST_DEPTH:
                raise FooterError(
                    f"its columns are structs or lists more than {_MOST_DEPTH} levels deep, which "
                    "tabfeed does not read"
                )
    return at


class _Leaf:
    """What the schema says of a leaf column."""

    def __init__(self, column: pq.ColumnSchema) -> None:
        kind = column.physical_type
        self.kind = _KINDS.index(kind)
        self.width = column.length if kind == _KINDS[-1] else _FIXED.get(kind, -1)
        self.levels = column.max_repetition_level + 1, column.max_definition_level + 1


def _check(data: bytes, schema: pq.ParquetSchema, size: int) -> dict[tuple[int, int], int]:
    """Walk over the whole footer, once; the bytes of text."""
    leaves = [_Leaf(schema.column(i)) for i in range(len(schema))]
    text_bytes: dict[tuple[int, int], int] = {}
    errors: list[FooterError] = []

    def read_group(at: int, unit: int) -> int:
        group, end = struct(data, at, lists={_CHUNKS: partial(_structs, data)})
        if not errors:
            try:
                _check_group(data, group, leaves, size, unit, text_bytes)
            except FooterError as e:
                errors.append(e)  # that the file is encrypted is said behind its row groups
        return end

    def read_groups(at: int) -> tuple[int, int]:
        count, at = _structs_head(data, at)
        for unit in range(count):
            at = read_group(at, unit)
        return count, at

    fields, _ = struct(data, 0, lists={_GROUPS: read_groups})
    if _ENCRYPTION in fields or _SIGNING_KEY in fields:
        raise EncryptedError("its columns are encrypted")
    if errors:
        raise errors[0]
    return text_bytes


def _structs_head(data: bytes, at: int) -> tuple[int, int]:
    """How many structs a list has, and where the first one begins."""
    count, kind, at = list_head(data, at)
    if count and kind != STRUCT:
        raise FooterError("its row groups are not what they should be")
    return count, at


def _structs(data: bytes, at: int) -> tuple[list[dict[int, Any]], int]:
    count, at = _structs_head(data, at)
    found = []
    for _ in range(count):
        fields, at = struct(data, at)
        found.append(fields)
    return found, at


def _check_group(
    data: bytes,
    group: dict[int, Any],
    leaves: list[_Leaf],
    size: int,
    unit: int,
    text_bytes: dict[tuple[int, int], int],
) -> None:
    """Refuse a row group that cannot be; note the bytes of its text."""
    chunks, rows = group.get(_CHUNKS, []), group.get(_ROWS, 0)
    if len(chunks) != len(leaves):
        raise FooterError(f"it has {len(chunks)} columns where the schema has {len(leaves)}", unit)
    for i, (chunk, leaf) in enumerate(zip(chunks, leaves, strict=True)):
        try:
            _check_chunk(data, chunk, leaf, rows, size)
        except FooterError as e:
            e.row_group, e.leaf = unit, i
            raise
        meta = chunk[_META]
        noted = (meta.get(_SIZES) or {}).get(_TEXT_BYTES, -1)
        if 0 <= noted <= _LONGEST_TEXT * meta.get(_VALUES, 0):
            text_bytes[unit, i] = noted


def _check_chunk(data: bytes, chunk: dict[int, Any], leaf: _Leaf, rows: int, size: int) -> None:
    """Refuse an entry that cannot be."""
    meta = chunk.get(_META)
    if _CRYPTO in chunk or _SECRET in chunk:
        raise EncryptedError("it is encrypted")
    if meta is None or _TYPE not in meta:
        raise FooterError("its entry in the footer is incomplete")
    if meta[_TYPE] != leaf.kind:
        raise FooterError("its type is not that of the schema")
    if chunk.get(_PATH):
        raise FooterError("its rows lie in another file: this is a footer by itself")
    if not 0 <= meta.get(_CODEC, 0) < _CODECS:
        raise FooterError(f"its compression codec is number {meta[_CODEC]}, which is unknown")
    values, stored, start = meta.get(_VALUES, 0), meta.get(_STORED, 0), meta.get(_DATA, 0)
    if values < rows or (leaf.levels[0] == 1 and values != rows):
        raise FooterError(f"it has {values} values where the row group has {rows} rows")
    if stored < 0 or meta.get(_PLAIN, 0) < 0:
        raise FooterError(f"its size is {min(stored, meta.get(_PLAIN, 0))} bytes")
    if values:
        first = meta.get(_DICTIONARY, 0)
        first = first if 0 < first < start else start
        if first < 4 or first + stored > size:
            raise FooterError(f"it claims bytes {first} to {first + stored} of a file of {size}")
    if sizes := meta.get(_SIZES):
        _check_sizes(data, sizes, leaf)
    statistics = meta.get(_STATISTICS, {})
    lengths = {statistics[b] for b in _BOUNDS if b in statistics} - {leaf.width}
    if lengths and leaf.width >= 0:
        raise FooterError(
            f"its statistics have {min(lengths)} bytes where a value has {leaf.width}"
        )


def _check_sizes(data: bytes, sizes: dict[int, Any], leaf: _Leaf) -> None:
    """Refuse size statistics of another type, or with histograms of other levels."""
    counts = [list_head(data, sizes[h])[0] if h in sizes else 0 for h in _HISTOGRAMS]
    if any(c not in (0, n) for c, n in zip(counts, leaf.levels, strict=True)):
        raise FooterError("its size statistics are not of its levels")
    if _TEXT_BYTES in sizes and _KINDS[leaf.kind] != "BYTE_ARRAY":
        raise FooterError("its size statistics are those of text")


def _unlock() -> None:
    """Recreate the lock after a fork."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
