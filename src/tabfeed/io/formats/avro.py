"""Avro files: units are runs of blocks; rows are counted by hopping over block headers.

The container is read by `avro_container`, the columns by Polars. A block is the
smallest thing that can be read: writers that put a whole file into one block (Polars
does) make a file of one unit.

Neither Polars nor fastavro verifies what a block says of itself, so it is done here: rows must fit
into its bytes, what is compressed is unpacked up to a limit, and a row of our own is put after the
last one, which comes back unchanged only if the rows take exactly the bytes that are there. The
first time a block with unions is read, all its columns are decoded to check the branches.

fastavro alone would be simpler, but reads a tenth of the rows a second, one Python object a value;
its ``block_reader`` unpacks every block to count rows, which takes nine times as long, and it takes
branch -1 of a union for the last one.
"""

from __future__ import annotations

import io
import json
import lzma
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import BadFileError, SchemaError
from tabfeed.io.align import cast_columns, rebatch
from tabfeed.io.formats.avro_container import (
    CODECS,
    MOST_PLAIN,
    Block,
    Header,
    as_stored,
    count_bytes,
    count_encoded,
    decoded_exactly,
    find_blocks,
    plain_file,
    plain_header,
    read_header,
    walk,
)
from tabfeed.io.formats.avro_schema import AvroColumn, least_bytes, null_bytes, probe, translate
from tabfeed.io.formats.base import DataFile, ReadOptions, refuse_duplicates
from tabfeed.io.storage.files import FileRef, bad_file, reading, refuse_empty
from tabfeed.lazy import cached_property

__all__ = ["AvroFile", "open_avro"]

_SAMPLE_ROWS = 1000
_LONGEST_HEADER = 2**24
_REFUSED = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
_BROKEN = (ValueError, IndexError, EOFError, zlib.error, lzma.LZMAError)


def open_avro(ref: FileRef, options: ReadOptions) -> AvroFile:
    """Read the header of an Avro file."""
    refuse_empty(ref)
    if ref.compressed:
        raise bad_file(
            ref,
            "is an Avro file compressed as a whole, which cannot be read by parts",
            remedy="Decompress it; Avro files can be compressed inside instead",
        )
    header = _read_header(ref)
    if header.codec not in CODECS:
        raise bad_file(
            ref,
            f"is compressed with {header.codec!r}; tabfeed reads {', '.join(CODECS)}",
            remedy="Write it with one of these",
        )
    try:
        columns = translate(header.schema)
    except SchemaError as e:
        raise SchemaError(f"{ref.name}: {e}") from e
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise bad_file(ref, f"has a schema that is not an Avro schema: {e!r}") from e
    refuse_duplicates(ref, [c.name for c in columns])
    if not columns:
        raise bad_file(ref, "holds records without fields, so there is nothing to read")
    return AvroFile(ref, header, columns, options.block_size)


def _read_header(ref: FileRef) -> Header:
    size = 2**16
    while True:
        with reading(ref), ref.just_pinned().open() as file:
            data = bytes(file.read(size))
        try:
            return read_header(data)
        except IndexError as e:
            if size >= min(ref.size, _LONGEST_HEADER):
                raise bad_file(ref, "is an Avro file cut short within its header") from e
            size *= 16
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise bad_file(ref, f"is not an Avro file: {e}") from e


class AvroFile(DataFile):
    """An Avro object container file; a `DataFile`."""

    ref: FileRef
    indivisible = "block"

    def __init__(
        self, ref: FileRef, header: Header, columns: Sequence[AvroColumn], block_size: int
    ) -> None:
        super().__init__(pa.schema([(c.name, c.type) for c in columns]), ref)
        self._header = header
        self._columns = {c.name: c for c in columns}
        self._block_size = block_size
        self._wires = {c.name: c.wire for c in columns if c.wire is not None}
        self._stored = {name: as_stored(wire) for name, wire in self._wires.items()}
        self._unions = '"null"' in json.dumps(list(self._wires.values()))
        self._inexact = {c for c, w in self._wires.items() if not decoded_exactly(w)}
        self._checked: set[int] = set()  # where the blocks start whose unions are right
        wires = list(self._wires.values())
        self._least = sum(map(least_bytes, wires))
        self._nulls = sum(map(null_bytes, wires))
        self._probe = b"".join(map(probe, wires))

    # -- units ------------------------------------------------------------------------

    @cached_property
    def _units(self) -> list[list[Block]]:
        """Runs of blocks of about ``block_size`` bytes."""
        local = isinstance(self.ref.filesystem, pafs.LocalFileSystem)
        window = 2**12 if local else 2**20
        units: list[list[Block]] = []
        try:
            with reading(self.ref), self.ref.open() as file:
                for block in find_blocks(file, self._header, self.ref.size, window, self._least):
                    if not units or block.end - units[-1][0].start > self._block_size:
                        units.append([])
                    units[-1].append(block)
        except _BROKEN as e:
            raise self._damaged(e) from e
        return units

    @cached_property
    def unit_rows(self) -> Sequence[int]:
        """Rows of each run of blocks."""
        return [sum(b.rows for b in unit) for unit in self._units]

    def count(self, unit: int) -> int:
        """Rows of a run of blocks."""
        return self.unit_rows[unit]

    @cached_property
    def _widths(self) -> dict[str, float]:
        """Bytes a row of each column takes, in the first rows."""
        block = next((b for unit in self._units for b in unit if b.rows), None)
        if block is None:
            return dict.fromkeys(self.schema.names, 0.0)
        rows = min(block.rows, _SAMPLE_ROWS)
        sample = self._decode(rows, self._data([block]), self.schema.names)
        return {n: sample.column(n).nbytes / rows for n in self.schema.names}

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Estimate, by how wide the first rows are."""
        return max(1, round(self.count(unit) * sum(self._widths[c] for c in columns)))

    def bytes_at_once(self, unit: int, columns: Sequence[str], most: int) -> int:
        """What decoding the largest block takes, as measured: its data twice, its rows thrice.

        Unions are checked by all columns, and with decimals or times the data are held once more.
        """
        largest = max(self._units[unit], key=lambda b: b.end - b.start)
        plain = largest.end - largest.start
        if 2 * plain > most:
            return 5 * plain
        share = largest.rows / max(1, self.count(unit))
        if self._header.codec != "null":
            plain = max(plain, int(self.nbytes(unit, self.schema.names) * share))
        held = 3 if self._unions and self._inexact else 2
        decoded = self.schema.names if self._unions else columns
        return held * plain + 3 * int(self.nbytes(unit, decoded) * share)

    # -- reading ----------------------------------------------------------------------

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Whole runs of blocks; only `columns` are kept."""
        wanted = list(columns) or self.schema.names[:1]
        tables = [pa.schema([self.schema.field(c) for c in wanted]).empty_table()]
        tables += [self._read_blocks(self._units[u], wanted) for u in units]
        return pa.concat_tables(tables).select(list(columns))

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A run of blocks in batches of `rows` rows; no more blocks are decoded than that takes."""
        wanted = list(columns) or self.schema.names[:1]
        runs = _runs_of_rows(self._units[unit], rows)
        for batch in rebatch((self._read_blocks(run, wanted) for run in runs), rows):
            yield batch.select(list(columns))

    def _read_blocks(self, blocks: Sequence[Block], columns: Sequence[str]) -> pa.Table:
        return self._decode(sum(b.rows for b in blocks), self._data(blocks), columns, blocks)

    def _data(self, blocks: Sequence[Block]) -> list[bytes]:
        """The blocks' data, decompressed; views where they were not compressed."""
        decompress = CODECS[self._header.codec]
        sync = self._header.sync
        parts = []
        left = most = max(MOST_PLAIN, 100 * sum(b.end - b.start for b in blocks))
        with reading(self.ref), self.ref.open() as file:
            file.seek(blocks[0].start)
            raw = memoryview(file.read(blocks[-1].end + len(sync) - blocks[0].start))
        for block in blocks:
            start, end = block.start - blocks[0].start, block.end - blocks[0].start
            if raw[end : end + len(sync)] != sync:
                raise self._damaged(f"the block at byte {block.start:,} has no end mark")
            try:
                parts.append(decompress(raw[start:end], left))
            except (*_BROKEN, OSError) as e:
                raise self._damaged(f"the block at byte {block.start:,}: {e}") from e
            left -= len(parts[-1])
            if left < 0 and self._header.codec != "null":
                raise bad_file(
                    self.ref,
                    f"unpacks to more than {most:,} bytes at byte {block.start:,}, over a hundred "
                    "times its size",
                    remedy="Write it with smaller blocks, if it is not meant to exhaust memory",
                )
            if block.rows * self._least > len(parts[-1]):
                raise self._damaged(
                    f"the block at byte {block.start:,} cannot hold the {block.rows:,} rows it "
                    "announces"
                )
        return parts

    def _decode(
        self, rows: int, data: list[bytes], columns: Sequence[str], blocks: Sequence[Block] = ()
    ) -> pa.Table:
        """The first rows of some data; of `blocks`, all the rows, and no bytes behind them."""
        asked = [c for c in columns if c in self._wires] or list(self._wires)[:1]
        if not asked:  # nothing but nulls: no bytes to decode
            return self._finish({}, rows, columns)
        wires = {name: self._wires[name] for name in asked}
        size = sum(map(len, data))
        if rows * self._nulls > 2 * MOST_PLAIN + 64 * size:
            raise self._damaged(f"{rows:,} rows, nearly all of them nulls, in {size:,} bytes")
        if not blocks:
            return self._finish(self._polars(rows, data, wires), rows, columns)
        check = self._unions and not self._checked.issuperset(b.start for b in blocks)
        if check:
            inexact = {c: self._stored[c] for c in asked if c in self._inexact}
            again = data.copy() if inexact else []
            wires = {**self._stored, **wires}
            counts = count_bytes(data)
        data.append(self._probe)
        arrays = self._polars(rows + 1, data, wires)
        probes = self._polars(1, [self._probe], wires)
        if any(not arrays[name][rows:].equals(probes[name]) for name in wires):
            raise self._damaged(f"{rows:,} rows do not take the {size:,} bytes that hold them")
        arrays = {n: a[:rows] for n, a in arrays.items()}
        if check:
            exact = self._polars(rows, again, inexact) if inexact else {}
            self._check_branches(blocks, counts, {**arrays, **exact})
        return self._finish(arrays, rows, columns)

    def _check_branches(
        self, blocks: Sequence[Block], counts: Any, arrays: dict[str, pa.Array]
    ) -> None:
        """Refuse blocks with wrong branches, by the counts of their bytes and all columns."""
        encoded = sum(count_encoded(a, self._stored[c]) for c, a in arrays.items())
        if (counts != encoded).any():
            fields = [{"name": c, "type": wire} for c, wire in self._stored.items()]
            for block, data in zip(blocks, self._data(blocks), strict=True):
                try:
                    walk(fields, block.rows, data)
                except (ValueError, IndexError) as e:
                    raise self._damaged(f"the block at byte {block.start:,}: {e}") from e
        self._checked.update(b.start for b in blocks)

    def _polars(self, rows: int, data: list[bytes], wires: dict[str, Any]) -> dict[str, pa.Array]:
        """Some columns by Polars; `data` is emptied, as soon as it was copied for Polars."""
        fields = [{"name": c, "type": wires.get(c, w)} for c, w in self._stored.items()]
        header = plain_header({"type": "record", "name": "row", "fields": fields})
        container = io.BytesIO(plain_file(header, rows, data))
        data.clear()
        try:
            frame = pl.read_avro(container, columns=list(wires))
        except _REFUSED as e:
            name = self._refused(container, wires)
            raise self._damaged(f"column {name!r}: {e}" if name else e, name) from e
        if frame.height != rows:
            raise self._damaged(f"{frame.height:,} rows came where {rows:,} were announced")
        # Column by column: a frame as a whole waits for threads that a forked child lacks.
        oldest = pl.CompatLevel.oldest()
        return {s.name: s.to_arrow(compat_level=oldest) for s in frame.iter_columns()}

    def _refused(self, container: io.BytesIO, wires: dict[str, Any]) -> str | None:
        """The column that Polars does not decode; None if it is not one of several."""
        refused = []
        for name in wires:
            container.seek(0)
            try:
                pl.read_avro(container, columns=[name])
            except _REFUSED:
                refused.append(name)
        if not refused or len(refused) == len(self._stored) > 1:
            return None
        return refused[0]

    def _finish(self, decoded: dict[str, pa.Array], rows: int, columns: Sequence[str]) -> pa.Table:
        arrays = {}
        schema = pa.schema([self.schema.field(c) for c in columns])
        try:
            for name in columns:
                column = self._columns[name]
                if column.wire is None:
                    arrays[name] = pa.chunked_array([pa.nulls(rows)])
                else:
                    arrays[name] = _named(pa.chunked_array([decoded[name]]), column)
            table = cast_columns(pa.table(arrays), schema)
            for array in table.columns:
                if pa.types.is_decimal(array.type) or pa.types.is_dictionary(array.type):
                    array.validate(full=True)
        except (pa.ArrowInvalid, IndexError) as e:
            raise self._damaged(e) from e
        return table

    def _damaged(self, what: object, column: str | None = None) -> BadFileError:
        what = f"is an Avro file cut short or damaged: {what}"
        return bad_file(self.ref, what, column=column)

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def _runs_of_rows(blocks: Sequence[Block], rows: int) -> Iterator[list[Block]]:
    """Consecutive blocks, as many as it takes for `rows` rows."""
    run: list[Block] = []
    count = 0
    for block in blocks:
        run.append(block)
        count += block.rows
        if count >= rows:
            yield run
            run, count = [], 0
    if run:
        yield run


def _named(column: pa.ChunkedArray, spec: AvroColumn) -> pa.ChunkedArray:
    """An enum's numbers as its symbols."""
    if spec.symbols is None:
        return column
    symbols = pa.array(spec.symbols, pa.string())
    chunks = [pa.DictionaryArray.from_arrays(c.cast(pa.int32()), symbols) for c in column.chunks]
    return pa.chunked_array(chunks, spec.type)
