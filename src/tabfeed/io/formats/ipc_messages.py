"""The frame of Arrow IPC: where its messages lie and how many rows each holds.

Arrow's reader gives a record batch by decoding it. Partitions are cut before anything is
decoded, so the few numbers that takes are read here from the messages' metadata, which are
flatbuffers: tables of 16-bit offsets into themselves. Only what is needed is looked at,
namely lengths and places; decoding stays Arrow's. ``pyarrow.ipc`` reads messages with their bodies
and says none of their rows; the flatbuffers package would spare `_Table`, some 30 lines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

__all__ = [
    "DICTIONARY",
    "MOST_EXPANSION",
    "RECORD_BATCH",
    "SCHEMA",
    "Message",
    "column_bytes",
    "footer_blocks",
    "message_at",
    "messages",
    "takes_bytes",
]

SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
MOST_EXPANSION = 50_000  # zstd makes 128 KiB of three bytes at most
_CONTINUATION = 0xFFFFFFFF
_END = b"\xff\xff\xff\xff\0\0\0\0"
_LOOKED_AT = 2**16


class _Table:
    """A flatbuffer table: fields by number, absent ones have their default."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position
        self.vtable = position - self._unpack("<i", position)
        self.fields = (self._unpack("<H", self.vtable) - 4) // 2

    @classmethod
    def root(cls, data: bytes) -> _Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def _unpack(self, code: str, position: int) -> int:
        return int(struct.unpack_from(code, self.data, position)[0])

    def _place(self, field: int) -> int:
        """Where a field's value lies; 0 if it is absent."""
        if field >= self.fields:
            return 0
        offset = self._unpack("<H", self.vtable + 4 + 2 * field)
        return self.position + offset if offset else 0

    def number(self, field: int, code: str) -> int:
        place = self._place(field)
        return self._unpack(code, place) if place else 0

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return _Table(self.data, place + self._unpack("<I", place)) if place else None

    def structs(self, field: int, code: str) -> list[tuple[int, ...]]:
        """A vector of structs, each as a tuple."""
        place = self._place(field)
        if not place:
            return []
        start = place + self._unpack("<I", place)
        end = start + 4 + self._unpack("<I", start) * struct.calcsize(code)
        if end > len(self.data):
            raise struct.error("a vector that does not fit into its message")
        return list(struct.iter_unpack(code, self.data[start + 4 : end]))


@dataclass(frozen=True)
class Message:
    """One message: what it is, where it lies, how many rows it has.

    ``buffers`` are the places and lengths of its buffers within the body; ``compressed``
    says that each starts with its length before compression.
    """

    kind: int
    start: int
    body: int
    end: int
    rows: int = 0
    buffers: tuple[tuple[int, int], ...] = ()
    variadic: tuple[int, ...] = ()
    compressed: bool = False
    dictionary: int = 0
    delta: bool = False


def message_at(file: pa.NativeFile, offset: int) -> Message | None:
    """The message that starts at `offset`; None at the end of a stream.

    Raises
    ------
    struct.error, EOFError
        If there is something else.
    """
    prefix = _read(file, offset, 8, short=True)
    if len(prefix) < 4:
        if prefix:
            raise EOFError("the file ends within a message")
        return None
    marker, length = struct.unpack("<Ii", prefix.ljust(8, b"\0"))
    skip = 8
    if marker != _CONTINUATION:  # before Arrow 0.15 there was no marker
        length, skip = marker, 4
    if length == 0:
        return None
    if length < 0 or length > 2**28:
        raise struct.error(f"a message of {length} bytes")
    return _parse(_read(file, offset + skip, length), offset, offset + skip + length)


def _parse(metadata: bytes, start: int, body: int) -> Message:
    root = _Table.root(metadata)
    kind = root.number(1, "<B")
    end = body + root.number(3, "<q")
    header = root.table(2)
    if header is None or end < body:
        raise struct.error("a message without a header")
    if kind == RECORD_BATCH:
        return _parse_batch(header, Message(kind, start, body, end))
    if kind == DICTIONARY:
        dictionary, delta = header.number(0, "<q"), bool(header.number(2, "<B"))
        return Message(kind, start, body, end, dictionary=dictionary, delta=delta)
    return Message(kind, start, body, end)


def _parse_batch(header: _Table, message: Message) -> Message:
    return Message(
        message.kind,
        message.start,
        message.body,
        message.end,
        rows=header.number(0, "<q"),
        buffers=tuple((a, b) for a, b in header.structs(2, "<qq")),
        variadic=tuple(n for (n,) in header.structs(4, "<q")),
        compressed=header.table(3) is not None,
    )


def messages(file: pa.NativeFile, size: int) -> Iterator[Message]:
    """The messages of a stream, by their metadata; bodies are passed over."""
    offset = 0
    while offset < size and (message := message_at(file, offset)) is not None:
        if message.end > size:
            raise EOFError(f"the file ends within the message at byte {offset:,}")
        yield message
        offset = message.end
    _refuse_more(file, offset, size)


def _refuse_more(file: pa.NativeFile, end: int, size: int) -> None:
    """Refuse a stream that ends before the file does: a damaged length reads like its end."""
    rest = _read(file, end, max(0, min(_LOOKED_AT, size - end)))
    if any(rest.replace(_END, b"")):  # more than marks of its end, and zeros
        raise EOFError(f"its stream ends at byte {end:,} of {size:,}, before more data")


def footer_blocks(file: pa.NativeFile, size: int) -> list[int]:
    """Where the record batches of an IPC file start."""
    tail = _read(file, size - 10, 10)
    length = struct.unpack("<i", tail[:4])[0]
    footer = _Table.root(_read(file, size - 10 - length, length))
    return [offset for offset, _, _ in footer.structs(3, "<qi4xq")]


def _read(file: pa.NativeFile, offset: int, nbytes: int, *, short: bool = False) -> bytes:
    if offset < 0 or nbytes < 0:
        raise struct.error("an offset outside the file")
    file.seek(offset)
    data = bytes(file.read(nbytes))
    if len(data) < nbytes and not short:
        raise EOFError("the file ends within a message")
    return data


def column_bytes(file: pa.NativeFile, message: Message, schema: pa.Schema) -> dict[str, int]:
    """What each column of a record batch takes in memory, by the lengths of its buffers."""
    variadic = list(message.variadic)
    sizes, first = {}, 0
    for field in schema:
        last = first + _buffer_count(field.type, variadic)
        sizes[field.name] = sum(
            _buffer_bytes(file, message, place, length)
            for place, length in message.buffers[first:last]
        )
        first = last
    return sizes


def _buffer_bytes(file: pa.NativeFile, message: Message, place: int, length: int) -> int:
    if not 0 <= length <= message.end - message.body:
        raise struct.error(f"a buffer of {length:,} bytes, which its message does not hold")
    if not message.compressed or length < 8:
        return length
    (plain,) = struct.unpack("<q", _read(file, message.body + place, 8))
    if plain > MOST_EXPANSION * length:
        raise struct.error(f"a buffer that claims {plain:,} bytes in {length:,}")
    return length - 8 if plain < 0 else int(plain)


def takes_bytes(dtype: pa.DataType) -> bool:
    """Whether each row of this type takes a bit or more, so that bytes bound the rows.

    Examples
    --------
    >>> takes_bytes(pa.bool_()), takes_bytes(pa.null()), takes_bytes(pa.struct({"a": pa.null()}))
    (True, False, False)
    """
    if isinstance(dtype, pa.BaseExtensionType):
        return takes_bytes(dtype.storage_type)
    if pa.types.is_null(dtype) or pa.types.is_run_end_encoded(dtype):
        return False
    if pa.types.is_struct(dtype):
        return any(takes_bytes(dtype.field(i).type) for i in range(dtype.num_fields))
    if pa.types.is_fixed_size_list(dtype):
        return bool(dtype.list_size) and takes_bytes(dtype.value_type)
    return not pa.types.is_fixed_size_binary(dtype) or bool(dtype.byte_width)


def _buffer_count(dtype: pa.DataType, variadic: list[int]) -> int:
    """How many buffers a column of this type has in a message."""
    if isinstance(dtype, pa.BaseExtensionType):
        return _buffer_count(dtype.storage_type, variadic)
    if pa.types.is_null(dtype) or pa.types.is_run_end_encoded(dtype):
        own = 0
    elif pa.types.is_struct(dtype) or pa.types.is_fixed_size_list(dtype):
        own = 1
    elif pa.types.is_union(dtype):
        own = 1 if dtype.mode == "sparse" else 2
    elif pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype):
        own = 2 + (variadic.pop(0) if variadic else 0)
    elif _has_three(dtype):
        own = 3
    else:
        own = 2
    if pa.types.is_dictionary(dtype):
        return own
    children = (dtype.field(i).type for i in range(dtype.num_fields))
    return own + sum(_buffer_count(child, variadic) for child in children)


def _has_three(dtype: pa.DataType) -> bool:
    checks = (
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_large_string,
        pa.types.is_large_binary,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(check(dtype) for check in checks)
