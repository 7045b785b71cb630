"""TFRecord files of ``tf.train.Example``, read without TensorFlow.

A unit is a run of whole records of about ``block_size`` bytes. Units are found by one pass over
the frames (`records`), made when they are first needed, which counts the records as well;
in a compressed file that pass decompresses. A unit is read in blocks of some thousand records:
their checksums are verified, all of them are walked in step to find the features
(`walk`), and the values of each feature are decoded at once (`values`). Records that are laid out
in an unusual way are read one by one (`values.parse_example`), with the same result. The types are
fixed by the first records (`columns`).

What this gives up: sequences of features (``SequenceExample``) are refused, and a damaged record
costs its unit under ``on_bad_file="skip"``, as a damaged row group does in Parquet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import pyarrow as pa

from tabfeed.io.align import normalize_type, rebatch
from tabfeed.io.formats.base import ReadOptions, StreamedFile
from tabfeed.io.formats.text.stream import Text, changed_length
from tabfeed.io.formats.tfrecord.columns import Columns, infer_columns
from tabfeed.io.formats.tfrecord.records import (
    FOOTER,
    HEADER,
    Records,
    Unit,
    bad_length,
    cut_short,
    find_units,
    frame_starts,
    is_header,
    records_of,
    refuse_bomb,
    unpacked,
)
from tabfeed.io.storage.files import FileRef, bad_file
from tabfeed.lazy import cached_property

__all__ = ["TFRecordFile", "open_tfrecord"]

INFER_BYTES = 2**20
_SMALLEST_PIECE = 2**16


def open_tfrecord(ref: FileRef, options: ReadOptions) -> TFRecordFile:
    """Read the first records of a TFRecord file, and fix the types of its features.

    A file without records has no columns but those of `dtypes`.
    """
    text = Text(unpacked(ref))
    sample = next(_pieces(text, 0, None, INFER_BYTES), b"")
    given = {n: normalize_type(t) for n, t in options.dtypes.items()}
    blocks = list(records_of(text.ref, sample, 0))
    columns = tuple(infer_columns(text.ref, blocks, given))
    if blocks and not columns:
        raise bad_file(
            ref,
            "holds Examples without features, and so no columns",
            remedy="Name a feature in dtypes= to read them as nulls",
        )
    form = Columns(text.ref, columns, frozenset(given))
    return TFRecordFile(text, form, blocks, options.block_size)


def _pieces(text: Text, start: int, end: int | None, size: int) -> Iterator[bytes]:
    """Whole frames, about `size` bytes at a time, up to `end` or the end of the file."""
    held = b""
    with text.at(start) as read:
        while end is None or start + len(held) < end:
            more = max(size - len(held), _missing(text, held, start))
            data = read(more if end is None else min(more, end - start - len(held)))
            held += data
            starts, following = frame_starts(held)
            if following > len(held):
                following = int(starts[-1])
            if following:
                yield held[:following]
                held, start = held[following:], start + following
            if not data:
                break
    if held:
        raise cut_short(text.ref, start)


def _missing(text: Text, held: bytes, offset: int) -> int:
    """Bytes that the first frame of `held` lacks; its length is believed if its checksum is."""
    if len(held) < HEADER:
        return HEADER - len(held)
    if not is_header(held):
        raise bad_length(text.ref, offset)
    length = int.from_bytes(held[:8], "little")
    refuse_bomb(text.ref, offset, length)
    return length + HEADER + FOOTER - len(held)


class TFRecordFile(StreamedFile):
    """A TFRecord file of Examples; a `DataFile`."""

    def __init__(
        self, text: Text, form: Columns, sample: Sequence[Records], block_size: int
    ) -> None:
        super().__init__(form.schema, text.ref)
        self._text = text
        self._form = form
        self._block_size = block_size
        self._found: list[Unit] | None = None
        self._measure(sample)

    def _measure(self, sample: Sequence[Records]) -> None:
        """How much memory each column takes for a byte of the file, and how long a record is."""
        names = self.schema.names
        tables = [self._form.table(block, names) for block in sample]
        size = max(1, sum(block.nbytes for block in sample))
        self._widths: dict[str, float] = {
            n: sum(t.column(n).nbytes for t in tables) / size for n in names
        }
        self._row_bytes = size / max(1, sum(len(block) for block in sample))

    # -- units ------------------------------------------------------------------------

    @property
    def _units(self) -> list[Unit]:
        if self._found is None:
            with self._lock:
                if self._found is None:
                    self._found = find_units(self._text, self._block_size)
        return self._found

    @cached_property
    def unit_rows(self) -> Sequence[int | None]:
        """Records of each unit; None for what follows the damage in a damaged file."""
        return [None if u.error else u.rows for u in self._units]

    def count(self, unit: int) -> int:
        """Records of a unit."""
        return self._sound(unit).rows

    def _sound(self, unit: int) -> Unit:
        found = self._units[unit]
        if found.error is not None:
            raise copy(found.error)  # threads may raise it at the same time
        return found

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Estimate: the unit's bytes, times the memory that those of the first records took."""
        found = self._units[unit]
        return max(1, int((found.end - found.start) * sum(self._widths[c] for c in columns)))

    # -- reading ----------------------------------------------------------------------

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Whole units, decoded on the calling thread, mostly without the GIL."""
        wanted = list(columns) or self.schema.names[:1]  # a table without a column has no rows
        empty = pa.schema([self.schema.field(c) for c in wanted]).empty_table()
        found = [self._sound(u) for u in units]
        tables = [self._decode(self._bytes_of(u), u.start, empty) for u in found]
        return pa.concat_tables([empty, *tables]).select(list(columns))

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A unit in batches of `rows` rows; no more of it is in memory than a few of them."""
        wanted = list(columns) or self.schema.names[:1]
        found = self._sound(unit)
        size = max(_SMALLEST_PIECE, int(rows * self._row_bytes))
        for batch in rebatch(self._stream(found, size, wanted), rows):
            yield batch.select(list(columns))

    def _stream(self, unit: Unit, size: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        offset = unit.start
        for data in _pieces(self._text, unit.start, unit.end, size):
            yield from self._form.tables(data, offset, columns)
            offset += len(data)

    def _bytes_of(self, unit: Unit) -> bytes:
        if unit.rows == 1:
            refuse_bomb(self.ref, unit.start, unit.end - unit.start - HEADER - FOOTER)
        with self._text.at(unit.start) as read:
            data = read(unit.end - unit.start)
        if len(data) != unit.end - unit.start:
            raise changed_length(self.ref)
        return data

    def _decode(self, data: bytes, offset: int, empty: pa.Table) -> pa.Table:
        tables = self._form.tables(data, offset, empty.column_names)
        return pa.concat_tables([empty, *tables]).combine_chunks()
