"""How many bytes each row takes once decoded: of a Parquet row group, and of a table in memory.

Text and lists differ from row to row, so that a limit of bytes is no number of rows. What is in a
Parquet file says how: a page's header has its values and its bytes, a dictionary's header how long
its entries are, and the repetition levels where each row of a list begins. Only what is needed is
read: headers, and the levels of lists whose pages hold rows of unequal numbers.

Nothing here decodes a value. A page that cannot be understood makes its column count as even:
reading the data says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.io.formats.parquet.layout import chunk_range
from tabfeed.io.formats.parquet.pages import DATA, DATA_V2, DICTIONARY, Header, headers

__all__ = ["dictionary_bytes", "largest_page", "sizes_in_group", "sizes_in_table", "varies"]

_HEAD = 2**9  # bytes of a header, mostly
_LONGEST_HEAD = 2**20
_DICTIONARY_ENCODINGS = (2, 8)
_SAMPLED = 8  # pages whose levels say whether rows are alike
_LOOKED_AT = 2**14  # levels of each
_ALIKE = 1.5
_NOT_UNDERSTOOD = (ValueError, IndexError, pa.ArrowException, OSError, OverflowError)

Sizes = npt.NDArray[np.float32]
Starts = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


# -- tables ---------------------------------------------------------------------------------------


def sizes_in_table(table: pa.Table) -> Array | None:
    """Bytes of each row of a table, dictionaries as the values they stand for.

    None where all rows are of one size.

    Examples
    --------
    >>> sizes_in_table(pa.table({"x": ["abc", None, ""], "y": [1, 2, 3]})).tolist()
    [15.0, 12.0, 12.0]
    """
    varying = [c for c in table.columns if varies(c.type)]
    if not varying or not table.num_rows:
        return None
    fixed = sum(
        float(chunk.nbytes) for c in table.columns if not varies(c.type) for chunk in c.chunks
    )
    sizes = np.full(table.num_rows, fixed / table.num_rows)
    for column in varying:
        start = 0
        for chunk in column.chunks:
            sizes[start : start + len(chunk)] += _array_sizes(chunk)
            start += len(chunk)
    return sizes


def varies(dtype: pa.DataType) -> bool:
    """Whether values of this type differ in size: text, lists, and dictionaries of these."""
    if pa.types.is_dictionary(dtype):
        return varies(dtype.value_type)
    if pa.types.is_fixed_size_list(dtype):
        return varies(dtype.value_type)
    try:
        return dtype.bit_width is None
    except ValueError:
        return not pa.types.is_null(dtype)


def _array_sizes(array: pa.Array) -> Array:
    """Bytes of each value."""
    dtype = array.type
    if isinstance(array, pa.ExtensionArray):
        return _array_sizes(array.storage)
    if pa.types.is_dictionary(dtype):
        if not len(array.dictionary):
            return np.full(len(array), 4.0)
        lengths = _array_sizes(array.dictionary)
        codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        found: Array = np.take(lengths, codes, mode="clip")
        return found
    if not varies(dtype):
        return np.full(len(array), array.nbytes / max(1, len(array)))
    if pa.types.is_struct(dtype):
        parts: Array = sum((_array_sizes(p) for p in array.flatten()), np.zeros(len(array)))
        return parts
    if pa.types.is_fixed_size_list(dtype):
        width = dtype.list_size  # a null row has values too, which `flatten` would leave out
        values = array.values.slice(array.offset * width, len(array) * width)
        whole: Array = _array_sizes(values).reshape(len(array), width).sum(axis=1)
        return whole
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_map(dtype):
        offsets = array.offsets.to_numpy()
        inner = array.values if not pa.types.is_map(dtype) else _entries(array)
        inner = inner.slice(offsets[0], offsets[-1] - offsets[0])
        offsets = offsets - offsets[0]
        if not varies(inner.type):
            return np.asarray(np.diff(offsets) * (inner.nbytes / max(1, len(inner))) + 4.0)
        ends = np.concatenate([[0.0], np.cumsum(_array_sizes(inner))])
        return np.asarray(np.diff(ends[offsets]) + 4.0)
    try:
        lengths = pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths + 4.0)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return np.full(len(array), array.nbytes / max(1, len(array)))


def _entries(array: pa.MapArray) -> pa.StructArray:
    return pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])


# -- row groups -----------------------------------------------------------------------------------


def sizes_in_group(
    file: pa.NativeFile,
    metadata: pq.FileMetaData,
    unit: int,
    leaves: Sequence[tuple[int, int | None]],
) -> Sizes | None:
    """Bytes of each row of some leaves of a row group; None if all rows are about alike.

    Parameters
    ----------
    file
        The Parquet file.
    metadata
        Its footer.
    unit
        Which row group.
    leaves
        The number of each leaf, and the bytes of a value; None for text.
    """
    group = metadata.row_group(unit)
    total: Sizes | None = None
    even = 0.0
    for leaf, width in leaves:
        repeated = metadata.schema.column(leaf).max_repetition_level
        chunk = group.column(leaf)
        try:
            found = _chunk_sizes(file, chunk, int(group.num_rows), repeated, width)
        except _NOT_UNDERSTOOD:
            found = None
        if found is None:
            even += int(chunk.total_uncompressed_size) / max(1, int(group.num_rows))
        else:
            total = found if total is None else total + found
    return None if total is None else total + np.float32(even)


def dictionary_bytes(file: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> tuple[int, int] | None:
    """Entries of a chunk's dictionary, and their bytes; None if it has none."""
    if not chunk.has_dictionary_page:
        return None
    try:
        first = next(_walk(file, chunk), None)
    except _NOT_UNDERSTOOD:
        return None
    if first is None or first.kind != DICTIONARY or not first.values:
        return None
    return first.values, first.bytes


def largest_page(file: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> int:
    """What the largest page of a chunk takes while it is read: as stored, and decompressed.

    0 if the chunk is damaged: reading it says so.
    """
    stored = chunk.compression != "UNCOMPRESSED"
    try:
        pages = list(_walk(file, chunk))
    except _NOT_UNDERSTOOD:
        return 0
    if any(page.bytes > chunk.total_uncompressed_size for page in pages):
        return 0
    return max((page.bytes + stored * page.stored for page in pages), default=0)


def _walk(file: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> Iterator[Header]:
    """The pages of a chunk, `at` counted from the start of the file; reads their headers alone."""
    where = chunk_range(chunk)
    at, end = where.start, where.start + where.size
    while at < end:
        size = _HEAD
        while True:
            data = file.read_at(min(size, end - at), at)
            try:
                header = next(headers(data, 0, len(data)))
                break
            except ValueError:  # it is longer: smallest and largest values are text
                size *= 8
                if len(data) == end - at or size > _LONGEST_HEAD:
                    raise
        yield header._replace(at=at + header.at)
        at += header.at + header.stored


def _chunk_sizes(
    file: pa.NativeFile, chunk: pq.ColumnChunkMetaData, rows: int, repeated: int, width: int | None
) -> Sizes | None:
    """Bytes of each row of one leaf; None if they are about alike."""
    entry = 0.0
    pages: list[tuple[Header, float]] = []
    for page in _walk(file, chunk):
        if page.kind == DICTIONARY:
            entry = page.bytes / max(1, page.values)
        elif page.kind in (DATA, DATA_V2) and page.values:
            pages.append((page, _value_bytes(page, width, entry)))
    if not repeated:
        if sum(page.values for page, _ in pages) != rows or _alike([v for _, v in pages]):
            return None
        return np.repeat(
            np.array([v for _, v in pages], np.float32), [page.values for page, _ in pages]
        )
    if not pages or not _uneven(file, chunk, pages, rows, repeated):
        return None
    return _list_sizes(file, chunk, pages, rows, repeated)


def _value_bytes(page: Header, width: int | None, entry: float) -> float:
    if width is not None:
        return float(width)
    if page.encoding in _DICTIONARY_ENCODINGS:
        return entry
    return page.bytes / page.values


def _alike(values: Sequence[float]) -> bool:
    return not values or max(values) <= _ALIKE * min(values)


def _uneven(
    file: pa.NativeFile,
    chunk: pq.ColumnChunkMetaData,
    pages: Sequence[tuple[Header, float]],
    rows: int,
    repeated: int,
) -> bool:
    """Whether some pages have far fewer rows for their bytes than others."""
    if not _alike([value for _, value in pages]):
        return True
    some = pages[:: max(1, len(pages) // _SAMPLED)]
    begun = [
        len(_row_starts(file, chunk, page, repeated, _LOOKED_AT)) / min(page.values, _LOOKED_AT)
        for page, _ in some
    ]
    begun.append(rows / max(1, int(chunk.num_values)))
    return not _alike(begun)


def _list_sizes(
    file: pa.NativeFile,
    chunk: pq.ColumnChunkMetaData,
    pages: Sequence[tuple[Header, float]],
    rows: int,
    repeated: int,
) -> Sizes | None:
    sizes: Sizes = np.zeros(rows, np.float32)
    row = 0  # the rows that have begun
    for page, value in pages:
        starts = _row_starts(file, chunk, page, repeated)
        ends = np.append(starts, page.values)
        if row:  # the last row of the page before goes on
            sizes[row - 1] += int(ends[0]) * value
        if row + len(starts) > rows:
            return None
        sizes[row : row + len(starts)] += (np.diff(ends) * value).astype(np.float32)
        row += len(starts)
    return sizes + np.float32(4) if row == rows else None


def _row_starts(
    file: pa.NativeFile,
    chunk: pq.ColumnChunkMetaData,
    page: Header,
    repeated: int,
    most: int | None = None,
) -> Starts:
    """Which entries of a page, of the first `most`, begin a row: their repetition level is 0."""
    count = page.values if most is None else min(most, page.values)
    if page.kind == DATA_V2:
        return _zeros(file.read_at(page.repetition, page.at), count, repeated)
    data: Any = file.read_at(page.stored, page.at)
    if chunk.compression != "UNCOMPRESSED":
        codec = "lz4_raw" if chunk.compression == "LZ4" else chunk.compression.lower()
        data = pa.Codec(codec).decompress(data, page.bytes)
    data = memoryview(data)
    length = int.from_bytes(data[:4], "little")
    return _zeros(bytes(data[4 : 4 + length]), count, repeated)


def _zeros(data: bytes, count: int, most: int) -> Starts:
    """Where the levels 0 stand among `count`, in Parquet's mixture of runs and packed bits."""
    width = most.bit_length()
    step = (width + 7) // 8
    found: list[int] = []
    at = place = 0
    while place < count:
        head, at = data[at], at + 1
        shift = 7
        more = head
        head &= 127
        while more > 127:
            more, at = data[at], at + 1
            head |= (more & 127) << shift
            shift += 7
        if head & 1:
            length = (head >> 1) * width
            if width == 1 and length < 4:  # most often: NumPy would take longer
                for byte in data[at : at + length]:
                    if byte != 255:
                        found += [place + i for i in range(8) if not byte >> i & 1]
                    place += 8
            else:
                packed = np.frombuffer(data[at : at + length], np.uint8)
                levels = np.unpackbits(packed, bitorder="little").reshape(-1, width)
                found += (np.flatnonzero(~levels.any(axis=1)) + place).tolist()
                place += (head >> 1) * 8
            at += length
        else:
            run = head >> 1
            if not run:
                raise ValueError("an empty run")
            if not any(data[at : at + step]):
                found += range(place, place + run)
            place += run
            at += step
    starts: Starts = np.array(found, np.int64)
    return starts[: np.searchsorted(starts, count)]
