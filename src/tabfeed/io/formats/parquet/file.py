"""Parquet files: units are row groups, rows and sizes come from the footer.

The footer is read once, when the file is opened, and kept; each later read opens the file anew with
that footer, so threads share nothing. Page checksums are verified where the file has them: without
that, a flipped bit in a compressed page can decode into plausible wrong numbers. Only files of the
fast layout are read without; see `tabfeed.io.formats.parquet.pages`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.errors import BadFileError, SchemaError, TabfeedError, UnreadableFileError
from tabfeed.io.align import cast_table, normalize_type
from tabfeed.io.filters import Filter, facts_of_chunk, known_bounds
from tabfeed.io.formats.base import (
    HELD_BYTES,
    STREAM_BYTES,
    DataFile,
    ReadOptions,
    StoredColumn,
    index_columns,
    refuse_names,
)
from tabfeed.io.formats.parquet.footer import EncryptedError, Footer, FooterError, read_footer
from tabfeed.io.formats.parquet.layout import (
    STREAM_BUFFER,
    Layout,
    arrow_schema,
    check_texts,
    known_nulls,
    layout_of,
)
from tabfeed.io.formats.parquet.pages import FAST
from tabfeed.io.formats.parquet.row_sizes import (
    dictionary_bytes,
    largest_page,
    sizes_in_group,
)
from tabfeed.io.partition import bounds_within
from tabfeed.io.storage.fetch import Fetch, Range, begin
from tabfeed.io.storage.files import FileRef, bad_file, claims_more_than, reading, refuse_empty
from tabfeed.lazy import cached_property
from tabfeed.trace import span

__all__ = [
    "ParquetFile",
    "open_parquet",
]

_MAGIC = b"PAR1"
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}
_OLD_ARROW = "Expected all lists to be of size"
_LOOK_ROWS = 65_536
_ABSURD_BYTES = 2**40
_ROWS_A_BYTE = 2**28  # a page, whose header alone takes 8 bytes, has fewer than 2**31 values
# Not the file's fault: skipping must never drop good rows for lack of memory.
_NOT_DAMAGE = (MemoryError, pa.ArrowCancelled)
_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)


def open_parquet(ref: FileRef, options: ReadOptions) -> ParquetFile:
    """Read the footer of a Parquet file."""
    with reading(ref), ref.just_pinned().open() as f:
        try:
            footer = read_footer(ref, f)
            schema = arrow_schema(footer)
        except _NOT_DAMAGE:
            raise
        except EncryptedError as e:
            raise _encrypted(ref, e) from e
        except FooterError as e:
            raise bad_file(ref, f"has a damaged footer: {e}") from e
        except _DAMAGE as e:
            if getattr(e, "errno", None):
                raise
            f.seek(0)
            raise _explain_bad_footer(ref, f.read(4)) from e
    refuse_names(ref, schema.names)
    file = ParquetFile(ref, footer, schema)
    rows = file.unit_rows
    if sum(rows) != footer.metadata.num_rows or min(rows, default=0) < 0:
        raise bad_file(ref, "has a damaged footer: its row groups do not add up")
    if max(rows, default=0) > ref.size * _ROWS_A_BYTE:
        claim = f"a row group of {max(rows):,} rows in a file of {ref.size:,} bytes"
        raise bad_file(ref, f"has a damaged footer: {claim}")
    return file


def _encrypted(ref: FileRef, error: EncryptedError) -> BadFileError:
    return bad_file(
        ref,
        f"cannot be read: {error}",
        remedy="Write it again without encryption (pyarrow.parquet.read_table with its "
        "decryption_properties, then write_table)",
    )


def _explain_bad_footer(ref: FileRef, start: bytes) -> BadFileError:
    """Tell a cut file and a foreign one apart."""
    refuse_empty(ref)
    if start == _MAGIC:
        what = f"is a Parquet file cut short or damaged at its end ({ref.size:,} bytes)"
    else:
        what = f"is not a Parquet file: it starts with {bytes(start)!r}, not {_MAGIC!r}"
    return bad_file(ref, what)


def _read_groups(reader: pq.ParquetFile, units: list[int], columns: list[str]) -> pa.Table:
    """Row groups in one call, or one by one: a dictionary inside a list must not be in chunks."""
    try:
        return reader.read_row_groups(units, columns=columns, use_threads=False)
    except pa.ArrowNotImplementedError:
        if len(units) < 2:
            raise
        parts = [_read_groups(reader, [unit], columns) for unit in units]
        return pa.concat_tables(parts)


def _grouped(sizes: Iterable[tuple[str, int]], most: int) -> Iterator[list[str]]:
    """Columns in groups of at most that size, or of one column."""
    group: list[str] = []
    total = 0
    for name, size in sizes:
        if group and total + size > most:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    yield group


def _is_absurd(error: Exception) -> bool:
    """Whether an allocation failed for a size that only damage explains."""
    return isinstance(error, MemoryError) and claims_more_than(error, _ABSURD_BYTES)


class ParquetFile(DataFile):
    """One Parquet file whose footer has been read."""

    ref: FileRef
    _verify = False  # also where the layout leaves that to `Dataset.validate`

    def __init__(self, ref: FileRef, footer: Footer, schema: pa.Schema) -> None:
        super().__init__(schema, ref, index_columns(schema.names, footer.metadata.metadata))
        self.metadata = footer.metadata  # its column chunks: by `_group`, which checks the footer
        self._footer = footer

    @cached_property
    def unit_rows(self) -> list[int]:
        """Rows of each row group."""
        groups = range(self.metadata.num_row_groups)
        return [int(self.metadata.row_group(i).num_rows) for i in groups]

    def count(self, unit: int) -> int:
        """Rows of a row group."""
        return self.unit_rows[unit]

    # -- the footer -----------------------------------------------------------------

    @cached_property
    def _layout(self) -> Layout:
        return layout_of(self.schema)

    def check(self) -> None:
        """Refuse a footer that is unsound in any entry; see `tabfeed.io.formats.parquet.footer`."""
        try:
            self._footer.check(self.ref.size)
        except FooterError as e:
            if isinstance(e, EncryptedError) and e.leaf is None:
                raise _encrypted(self.ref, e) from e
            column = None
            where = "" if e.row_group is None else f"row group {e.row_group}"
            if e.leaf is not None:
                column = self.metadata.schema.column(e.leaf).path
                where += f", column {column!r}"
            message = f"{self.ref.name}, {where}" if where else self.ref.name
            raise BadFileError(
                f"{message} is damaged or cannot be read, by its footer: {e}. Write the file "
                'again, or pass on_bad_file="skip" to go on without it',
                file=self.ref.name,
                row_group=e.row_group,
                column=column,
            ) from e

    def _group(self, unit: int) -> pq.RowGroupMetaData:
        """A row group of a checked footer, so its column chunks may be read."""
        if not self._footer.checked:
            self.check()
        return self.metadata.row_group(unit)

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Estimate of what these columns of a row group take in memory once decoded."""
        layout = self._layout
        varying = any(layout.widths[c] is None for c in columns)
        group = self._group(unit) if varying else self.metadata.row_group(unit)
        leaves = (i for c in columns for i in layout.texts.get(c, ()))
        return layout.nbytes(group, columns, {i: self._text_bytes(unit, i) for i in leaves})

    def row_bytes(self, unit: int, columns: Sequence[str]) -> npt.NDArray[np.float32] | None:
        """What each row of these columns takes once decoded; None if all rows are about alike.

        Reads page headers of text and lists, and where rows of lists begin. None for a file on a
        server, too, whose pages are not fetched for it.
        """
        layout, group = self._layout, self._group(unit)
        varying = [
            c
            for c in columns
            if layout.widths[c] is None and not pa.types.is_dictionary(layout.types[c])
        ]
        if not varying or self.ref.remote is not None:
            return None
        leaves = [
            (i, layout.value_bytes(c, group.column(i))) for c in varying for i in layout.leaves[c]
        ]
        try:
            with self.ref.open() as file:
                sizes = sizes_in_group(file, self.metadata, unit, leaves)
        except OSError:  # reading the data says what is wrong
            return None
        if sizes is None:
            return None
        others = [c for c in columns if c not in varying]
        sizes *= self.nbytes(unit, varying) / max(1.0, float(sizes.sum()))
        return sizes + np.float32(self.nbytes(unit, others) / len(sizes))

    def largest_page(self, unit: int, column: str, above: int) -> int:
        """What the largest page of a column takes to read; 0 if all take at most `above` bytes.

        A page is decoded whole, whichever of its rows are wanted. Reads page headers of chunks that
        are larger. 0 for a file on a server, too.
        """
        group = self._group(unit)
        chunks = [group.column(leaf) for leaf in self._layout.leaves[column]]
        large = [c for c in chunks if c.total_uncompressed_size > above // 2]
        if not large or self.ref.remote is not None:
            return 0
        try:
            with self.ref.open() as file:
                largest = max(largest_page(file, chunk) for chunk in large)
        except OSError:  # reading the data says what is wrong
            return 0
        return largest if largest > above else 0

    def _text_bytes(self, unit: int, leaf: int) -> int | None:
        """What the text of a column chunk takes once decoded, if its pages are few or say so."""
        chunk = self._group(unit).column(leaf)
        if chunk.physical_type != "BYTE_ARRAY":
            return None
        if not chunk.has_dictionary_page and _PLAIN.issuperset(chunk.encodings):
            return int(chunk.total_uncompressed_size)
        noted = self._footer.text_bytes.get((unit, leaf))
        if noted is not None:
            return noted + 4 * int(chunk.num_values)
        if self.ref.remote is not None:
            return None
        known = self._entries.get((unit, leaf))
        if known is None:
            try:
                with self.ref.open() as file:
                    known = dictionary_bytes(file, chunk) or (0, 0)
            except OSError:
                return None
            self._entries[unit, leaf] = known
        count, nbytes = known
        return int(chunk.num_values) * nbytes // count if count else None

    @cached_property
    def _entries(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Entries of dictionaries, and their bytes, by row group and leaf."""
        return {}

    def held(self, unit: int, columns: Sequence[str]) -> int:
        """What these columns keep in memory while a row group is streamed."""
        return sum(self._held(unit, columns, whole=False))

    def _held(self, unit: int, columns: Sequence[str], *, whole: bool) -> list[int]:
        """What each column keeps in memory while a row group is read whole, or streamed."""
        group = self._group(unit)
        whole = whole or self.fetches_ahead  # what is fetched is there as a whole
        return self._layout.held(group, columns, whole=whole)

    def column_groups(self, unit: int, columns: Sequence[str]) -> list[list[str]]:
        """The columns in groups that can be streamed one after the other.

        Arrow keeps the pages of every column of a call until the call ends: for a thousand columns
        that is more than the rows themselves. Reading a few at a time costs nothing.
        """
        return self._column_groups(unit, columns, whole=False)

    def _column_groups(self, unit: int, columns: Sequence[str], *, whole: bool) -> list[list[str]]:
        held = self._held(unit, columns, whole=whole)
        return list(_grouped(zip(columns, held, strict=True), HELD_BYTES))

    def chunks(self, column: str) -> Iterator[pq.ColumnChunkMetaData]:
        """The footer's entries for a column, one or more a row group."""
        for unit in range(self.metadata.num_row_groups):
            group = self._group(unit)
            yield from (group.column(i) for i in self._layout.leaves.get(column, ()))

    def bounds(self, column: str) -> Iterator[tuple[Any, Any] | None]:
        """Smallest and largest value in each row group; None where the footer does not say."""
        leaves = self._layout.leaves.get(column, range(0))
        for unit in range(self.metadata.num_row_groups):
            group = self._group(unit)
            chunk = group.column(leaves[0]) if len(leaves) == 1 else None
            yield None if chunk is None else known_bounds(chunk.statistics)

    def chunks_in(
        self, unit: int, columns: Sequence[str]
    ) -> list[tuple[pq.ColumnChunkMetaData, bool]]:
        """The footer's entries for flat columns of a row group, and whether each may have nulls."""
        group, schema = self._group(unit), self.metadata.schema
        leaves = [self._layout.leaves[c][0] for c in columns]
        return [(group.column(i), schema.column(i).max_definition_level > 0) for i in leaves]

    def null_counts(self, unit: int, columns: Sequence[str]) -> list[int | None]:
        """Nulls in flat columns of a row group, as far as the footer says."""
        found = self.chunks_in(unit, columns)
        return [known_nulls(chunk) if nullable else 0 for chunk, nullable in found]

    def stored(self, column: str) -> StoredColumn:
        """What the footer says of a column."""
        chunks = list(self.chunks(column))
        nulls = [known_nulls(c) for c in chunks]
        return StoredColumn(
            nulls=None if None in nulls else sum(n for n in nulls if n is not None),
            nbytes=sum(c.total_compressed_size for c in chunks),
            encodings=Counter(e for c in chunks for e in c.encodings),
            codecs=frozenset(c.compression for c in chunks),
        )

    @property
    def row_groups(self) -> ParquetFile:
        """Itself."""
        return self

    def _ranges(self, units: Sequence[int], columns: Sequence[str]) -> list[Range]:
        """Where the columns of these row groups lie, for a file that is fetched over a network."""
        if self.ref.remote is None:
            return []
        return self._layout.ranges([self._group(unit) for unit in units], columns)

    # -- reading --------------------------------------------------------------------

    @property
    def fetches_ahead(self) -> bool:
        """Whether it lies on a server."""
        return self.ref.remote is not None

    def begin(self, units: Sequence[int], columns: Sequence[str]) -> Fetch | None:
        """Begin to fetch what `read` of the same will need; None if the file is on this machine."""
        ranges = self._ranges(units, columns)
        return begin(self.ref, ranges) if ranges else None

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Whole row groups, decoded on the calling thread with the GIL released."""
        return self.read_encoded(units, columns, ())

    def read_encoded(
        self, units: Sequence[int], columns: Sequence[str], dictionary: Sequence[str]
    ) -> pa.Table:
        """The same, text columns of `dictionary` dictionary-encoded."""
        wanted = list(columns)
        with self._located(units, wanted):
            with self._reader(dictionary, ranges=self._ranges(units, wanted)) as reader:
                table = self._decode(reader, list(units), wanted)
            check_texts(table)
        self._check_rows(units, table.num_rows)
        return self._finish(table, wanted, dictionary)

    def read_by_column(
        self, units: Sequence[int], columns: Sequence[str], at_once: int
    ) -> Iterator[pa.Table]:
        """The same, a few columns at a time: about `at_once` bytes, at least one column.

        Decoding little at a time is faster: what is decoded is still in the processor's cache when
        it is used, and the memory it lies in is free again for the next columns.
        """
        wanted = list(columns)
        with (
            self._located(units, wanted),
            self._reader(ranges=self._ranges(units, wanted)) as reader,
        ):
            for group in self.groups_of(units, wanted, at_once):
                table = _read_groups(reader, list(units), group)
                self._check_rows(units, table.num_rows)
                check_texts(table)
                yield self._finish(table, group)

    def columns(
        self, unit: int, groups: Sequence[list[str]]
    ) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Columns of one row group, as they are stored (see `stored_as_given`), a group at a time.

        For loaders, which gather one column after the other: each column evicts Python's own data
        from the processor's cache, so every line here costs several times what it usually does.
        """
        wanted, rows = [name for group in groups for name in group], self.unit_rows[unit]
        with (
            self._located([unit], wanted),
            self._reader(ranges=self._ranges([unit], wanted)) as reader,
        ):
            for group in groups:
                with span("read", rows=rows if group is groups[0] else None):
                    table = reader.read_row_group(unit, columns=group, use_threads=False)
                if table.num_rows != rows:
                    self._check_rows([unit], table.num_rows)
                check_texts(table)
                if len(group) == 1:
                    yield group[0], table.column(0)
                else:  # the table has them in the order of the file
                    found = dict(zip(table.column_names, table.columns, strict=True))
                    for name in group:
                        yield name, found[name]

    @cached_property
    def stored_as_given(self) -> bool:
        """Whether columns have the types of `schema` as soon as they are decoded."""
        stored = self.metadata.schema.to_arrow_schema()
        return bool(stored.equals(self.schema))

    def groups_of(
        self, units: Sequence[int], columns: Sequence[str], at_once: int
    ) -> Iterator[list[str]]:
        """The columns in groups that take about `at_once` bytes once decoded."""
        sizes = ((name, sum(self.nbytes(u, [name]) for u in units)) for name in columns)
        return _grouped(sizes, at_once)

    def _decode(self, reader: pq.ParquetFile, units: list[int], columns: list[str]) -> pa.Table:
        largest = max(units, key=self.unit_rows.__getitem__, default=None)
        groups = [] if largest is None else self._column_groups(largest, columns, whole=True)
        if len(groups) < 2:
            return _read_groups(reader, units, columns)
        found: dict[str, pa.ChunkedArray] = {}
        for group in groups:
            part = _read_groups(reader, units, group)
            found.update(zip(part.column_names, part.columns, strict=True))
        return pa.table({c: found[c] for c in columns})

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A row group as a stream; only one batch of it is decoded at a time."""
        wanted = list(columns)
        count = 0
        with self._located([unit], wanted):
            ranges, buffer = self._ranges([unit], wanted), self._buffer(unit, wanted, 0)
            with self._reader(buffer_size=buffer, ranges=ranges) as reader:
                for batch in self._stream(reader, unit, wanted, rows):
                    count += batch.num_rows
                    table = self._finish(pa.Table.from_batches([batch]), wanted)
                    yield from table.to_batches()
        self._check_rows([unit], count)

    def _buffer(self, unit: int, columns: Sequence[str], least: int) -> int:
        """Bytes to read at a time from each column; 0 to read their pages whole.

        Arrow fills a buffer of the size that a page header claims, up to 2 GB, where it reads
        through one: so not where whole pages take no more memory, or at most `least` bytes.
        """
        group = self._group(unit)
        whole = sum(self._layout.held(group, columns, whole=True))
        streamed = sum(self._layout.held(group, columns, whole=False))
        return 0 if whole <= max(least, streamed) else STREAM_BUFFER

    def _stream(
        self, reader: pq.ParquetFile, unit: int, columns: list[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """At most `rows` rows at a time; fewer where they are far larger than others."""
        bounds = self._batch_bounds(unit, columns, rows)
        if bounds is None:
            batches = reader.iter_batches(
                rows, row_groups=[unit], columns=columns, use_threads=False
            )
            for batch in batches:
                check_texts(batch)
                yield batch
            return
        batches = reader.iter_batches(
            int(bounds[1]), row_groups=[unit], columns=columns, use_threads=False
        )
        row = 0
        while (batch := next(batches, None)) is not None:
            row += batch.num_rows
            check_texts(batch)
            yield batch
            if row < bounds[-1]:  # the decoder reads this limit before each batch
                after = bounds[np.searchsorted(bounds, row, side="right")]
                reader.reader.set_batch_size(int(after) - row)

    def _batch_bounds(
        self, unit: int, columns: list[str], rows: int
    ) -> npt.NDArray[np.int64] | None:
        """Where batches of a row group end, if they must not have `rows` rows each."""
        if self.nbytes(unit, columns) <= 2 * STREAM_BYTES:
            return None
        key = (unit, tuple(columns), rows)
        if key not in self._bounds:
            sizes = self.row_bytes(unit, columns)
            bounds = None
            if sizes is not None:
                at = np.arange(0, len(sizes), rows)
                if np.add.reduceat(sizes, at).max() > 2 * STREAM_BYTES:
                    bounds = np.union1d(bounds_within(sizes, STREAM_BYTES), at)
            self._bounds[key] = bounds
        return self._bounds[key]

    @cached_property
    def _bounds(self) -> dict[tuple[int, tuple[str, ...], int], npt.NDArray[np.int64] | None]:
        return {}

    def verifying(self) -> ParquetFile:
        """The same file, every page of it verified as it is read."""
        other = ParquetFile(self.ref, self._footer, self.schema)
        other._verify = True
        return other

    @property
    def verifies_pages(self) -> bool:
        """Whether reading verifies the checksums of pages, where there are any."""
        return self._verify or not self._fast

    @cached_property
    def _fast(self) -> bool:
        """Whether it was written to be read at the speed of a copy, which a checksum halves."""
        noted = self.metadata.metadata or {}
        return all(noted.get(k.encode()) == v.encode() for k, v in FAST.items())

    def _reader(
        self,
        dictionary: Sequence[str] = (),
        buffer_size: int = 0,
        ranges: Sequence[Range] = (),
    ) -> pq.ParquetFile:
        file = self.ref.open(ranges)
        size, known = file.size(), self.ref.size
        if size != known > 0:
            file.close()
            raise self._changed(f"it has {size:,} bytes now, not {known:,}")
        return pq.ParquetFile(
            file,
            metadata=self.metadata,
            read_dictionary=list(dictionary),
            buffer_size=buffer_size,
            pre_buffer=False,
            page_checksum_verification=self.verifies_pages,
        )

    def _finish(
        self, table: pa.Table, columns: list[str], dictionary: Sequence[str] = ()
    ) -> pa.Table:
        table = table.select(columns)
        fields = [
            table.schema.field(n) if n in dictionary else self.schema.field(n) for n in columns
        ]
        return cast_table(table, pa.schema(fields), where=self.ref.name)

    # -- damage ---------------------------------------------------------------------

    def _changed(self, how: str) -> UnreadableFileError:
        return UnreadableFileError(
            f"{self.ref.name} has changed since the dataset was opened: {how}. Open the "
            "dataset again"
        )

    def _check_rows(self, units: Sequence[int], rows: int) -> None:
        expected = sum(self.unit_rows[u] for u in units)
        if rows != expected:
            self.ref.check()
            error = ValueError(f"it holds {rows:,} rows where its footer says {expected:,}")
            raise self._damage(error, units[0] if len(units) == 1 else None, None)

    @contextmanager
    def _located(self, units: Sequence[int], columns: list[str]) -> Iterator[None]:
        """Say where the damage is, if reading these columns of row groups meets any."""
        try:
            yield
        except _NOT_DAMAGE as e:
            if _is_absurd(e):
                raise self._locate_damage(units, columns, e) from e
            raise
        except _DAMAGE as e:
            raise self._locate_damage(units, columns, e) from e

    def _locate_damage(
        self, units: Sequence[int], columns: list[str], error: Exception
    ) -> Exception:
        """Read row group by row group and column by column to say where the damage is."""
        if isinstance(error, TabfeedError):
            return error
        try:
            self.ref.check()  # what looks like damage may be another file
        except (UnreadableFileError, OSError) as e:
            error = e
        if isinstance(error, TabfeedError):
            return error
        if isinstance(error, OSError) and error.errno:  # the system's, not the decoder's
            return self._changed(f"it cannot be read any more ({error})")
        if _OLD_ARROW in str(error):
            return SchemaError(
                f"{self.ref.name} has a fixed-size list that is null, which pyarrow "
                f"{pa.__version__} cannot read; use pyarrow 26, or leave it out with columns="
            )
        for unit in units:
            for column in columns:
                if (found := self._try(unit, column)) is not None:
                    return self._damage(found, unit, column)
        return self._damage(error, units[0] if len(units) == 1 else None, None)

    def _try(self, unit: int, column: str) -> Exception | None:
        """Decode one column of a row group; what goes wrong, if anything does."""
        try:
            buffer = self._buffer(unit, [column], HELD_BYTES)
            with self._reader(buffer_size=buffer) as reader:
                for _ in self._stream(reader, unit, [column], _LOOK_ROWS):
                    pass
        except _NOT_DAMAGE as e:
            if _is_absurd(e):
                return e
            raise
        except _DAMAGE as e:
            return e
        return None

    def _damage(self, error: Exception, unit: int | None, column: str | None) -> BadFileError:
        where = "" if unit is None else f", row group {unit}"
        where += "" if column is None else f", column {column!r}"
        return BadFileError(
            f"{self.ref.name}{where} is damaged: {error}. Write the file again, or pass "
            'on_bad_file="skip" to go on without the row groups that cannot be read',
            file=self.ref.name,
            row_group=unit,
            column=column,
        )

    # -- filters --------------------------------------------------------------------

    def facts(self, unit: int, condition: Filter, schema: pa.Schema) -> list[pc.Expression]:
        """What the footer says of a row group, in the columns a filter looks at."""
        facts = []
        group = self._group(unit)
        for name in condition.columns:
            leaves = self._layout.leaves.get(name, range(0))
            if len(leaves) != 1:
                continue
            stored = normalize_type(self._layout.types[name])
            chunk = group.column(leaves[0])
            facts += facts_of_chunk(chunk, stored, schema.field(name), condition)
        return facts

    def __getstate__(self) -> dict[str, Any]:
        self.check()  # a footer that is unsound would end the process as it is pickled
        state = {"ref": self.ref, "schema": self.schema, "index_columns": self.index_columns}
        return {**state, "_footer": self._footer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.metadata = self._footer.metadata
