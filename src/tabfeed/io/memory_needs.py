"""What memory reading takes that neither the sizes of rows nor those of partitions tell.

Some units can only be decoded whole: blocks of Avro, compressed record batches of Arrow IPC. Any of
their rows takes the memory of all of them. The same holds for a page of Parquet, and a row cannot
be cut either. What cannot fit within a limit of memory is refused before it is read.

A file tells how much its rows take in memory, and nothing tells what a function of a user makes of
them. So the first rows of a few units go through the functions before partitions are cut. What is
found is an estimate: rows elsewhere may grow more. A function that fails on these rows fails
again when they are read, and is reported then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from tabfeed.display import megabytes
from tabfeed.errors import ArgumentError, BadFileError, TabfeedError, UnreadableFileError
from tabfeed.execute import Executor, LocalExecutor
from tabfeed.io.fileset import FileSet
from tabfeed.io.formats.base import DataFile
from tabfeed.io.partition import Partition, Piece
from tabfeed.lazy import cached_property
from tabfeed.schema.dtypes import is_list_type

__all__ = ["MapSizes", "few_readers", "refuse_large_rows", "refuse_large_units", "sample_maps"]

_UNITS = 4
_ROWS = 256  # of each
_BYTES = 2**20  # of each, before the functions
_LEAST = 2**25  # bytes of a row that are not refused: less than what Arrow takes by itself


# -- units that are decoded whole -----------------------------------------------------------


def refuse_large_units(
    files: FileSet,
    pieces: Sequence[Piece],
    columns: Sequence[str],
    limit: int,
    *,
    most: int,
    option: str,
    error: type[TabfeedError] = ArgumentError,
) -> int:
    """The most bytes that reading a few rows takes at once; an error if it is over `most`.

    Parameters
    ----------
    files, pieces, columns
        What will be read.
    limit, option
        The user's limit of memory, and its name.
    most
        The part of it that reading may take.
    error
        What is raised.
    """
    largest = 0
    for index, unit in _units(files, pieces, lambda file: bool(file.indivisible)):
        name, file, own = files.names[index], files.files[index], files.own_columns(index, columns)
        with suppress(BadFileError, UnreadableFileError):  # reading says so
            needed = file.bytes_at_once(unit, own, most)
            if needed > most:
                raise error(
                    f"{name} has a {file.indivisible} (in unit {unit}) that takes about "
                    f"{needed / 1e6:,.1f} MB while it is read, since it can only be decoded "
                    f"whole: raise {option}, which is {limit / 1e6:,.1f} MB, to at least "
                    f"{needed * limit / most / 1e6:,.0f} MB, or write the file with fewer "
                    f"rows in each {file.indivisible}"
                )
            largest = max(largest, needed)
    return largest


def refuse_large_rows(
    files: FileSet,
    pieces: Sequence[Piece],
    columns: Sequence[str],
    limit: int,
    *,
    readers: int = 1,
) -> int:
    """The same for rows and pages of Parquet, of which one may take half of `memory_limit`.

    Those so small that `readers` of them fit at once count as 0.
    """
    most = max(limit // 2, _LEAST)
    largest, above = 0, most // readers
    for index, unit in _units(files, pieces, lambda file: file.row_groups is not None):
        file, own = files.files[index], files.own_columns(index, columns)
        with suppress(BadFileError, UnreadableFileError):  # reading says so
            parquet = file.row_groups
            if parquet is None or parquet.nbytes(unit, own) <= above // 2:  # nor is a page larger
                continue
            where = f"row group {unit} of {files.names[index]}"
            row, nbytes = _largest_row(file, unit, own, above)
            if nbytes > most:
                column = max(own, key=lambda c: _largest_row(file, unit, [c], 0)[1])
                raise ArgumentError(
                    f"row {row:,} of {where} takes {megabytes(nbytes)}, most of it in column "
                    f"{column!r}, and is there twice while it is read: raise memory_limit, "
                    f"which is {megabytes(limit)}, to {megabytes(2 * nbytes)}"
                )
            largest = max(largest, nbytes)
            for column in own:
                nbytes = parquet.largest_page(unit, column, above)
                if nbytes > most:
                    raise ArgumentError(
                        f"column {column!r} in {where} has a page that takes "
                        f"{megabytes(nbytes)}, and is decoded whole: raise memory_limit, which "
                        f"is {megabytes(limit)}, to {megabytes(2 * nbytes)}, or "
                        "write the file with smaller pages"
                    )
                largest = max(largest, nbytes)
    return largest


def _units(
    files: FileSet, pieces: Sequence[Piece], concerned: Callable[[DataFile], bool]
) -> list[tuple[int, int]]:
    """The file and number of each unit that is read, of those files alone."""
    chosen = {index for index, file in enumerate(files.files) if concerned(file)}
    return sorted({(p.file, p.unit) for p in pieces if p.file in chosen})


def _largest_row(file: DataFile, unit: int, columns: list[str], above: int) -> tuple[int, int]:
    """The row of a unit that takes most memory, and its bytes; 0 where the unit is not larger."""
    rows, total = file.unit_rows[unit], file.nbytes(unit, columns) or 0
    if not rows or total <= above:
        return 0, 0
    sizes = file.row_bytes(unit, columns)
    if sizes is None:  # all are about alike
        return 0, total // rows
    row = int(sizes.argmax())
    return row, int(sizes[row])


def few_readers(
    files: FileSet,
    pieces: Sequence[Piece],
    columns: Sequence[str],
    limit: int,
    executor: Executor,
) -> Executor:
    """As many threads as can each read what cannot be cut within half the limit.

    An error if not even one can.
    """
    most = limit // 2
    readers = executor.threads if isinstance(executor, LocalExecutor) else 1
    at_once = max(
        refuse_large_units(files, pieces, columns, limit, most=most, option="memory_limit"),
        refuse_large_rows(files, pieces, columns, limit, readers=readers),
    )
    fits = max(1, most // max(1, at_once))
    if isinstance(executor, LocalExecutor) and executor.threads > fits:
        return LocalExecutor(fits)
    return executor


# -- functions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class MapSizes:
    """Rows before and after functions.

    Attributes
    ----------
    source
        Bytes of a row as it is read.
    made
        Bytes of what the functions make of it.
    added
        Those of them that it does not share with the row as it was read.
    schema
        What they make.
    columns
        Bytes of it by column.
    """

    source: float
    made: float
    added: float
    schema: pa.Schema
    columns: dict[str, float]

    @cached_property
    def varying(self) -> frozenset[str]:
        """The columns made whose rows differ in size."""
        from tabfeed.io.formats.parquet.row_sizes import varies

        return frozenset(f.name for f in self.schema if varies(f.type))

    @cached_property
    def widths(self) -> dict[str, int]:
        """Bytes of a value of the lists made, where these are numbers."""
        lists = [f for f in self.schema if is_list_type(f.type)]
        found = {f.name: f.type.value_type for f in lists}
        return {n: max(1, t.bit_width // 8) for n, t in found.items() if pa.types.is_primitive(t)}

    @property
    def growth(self) -> float:
        """How many times as large rows become."""
        return self.made / max(1.0, self.source)


def sample_maps(
    partitions: Sequence[Partition],
    nbytes: Callable[[Piece], int | None],
    run: Callable[[Piece, Partition], tuple[pa.Table, pa.Table]],
) -> MapSizes | None:
    """What functions make of the first rows of a few units; None if none can tell.

    Parameters
    ----------
    partitions
        Where the rows are.
    nbytes
        What a row slice takes in memory, if that is known.
    run
        Gives a row slice of a partition before the functions and after them.
    """
    units = {(p.file, p.unit): (p, part) for part in partitions for p in part.pieces}
    some = list(units.values())[:: max(1, len(units) // _UNITS)]
    rows = source = made = added = 0
    schema = pa.schema([])
    by_column: dict[str, int] = {}
    for piece, part in some[:_UNITS]:
        with suppress(Exception):  # raised again where the rows are read, with the place
            before, after = run(_first_of(piece, nbytes(piece)), part)
            if after.num_rows:
                schema = after.schema
                rows += before.num_rows
                source += before.nbytes
                made += after.nbytes
                added += _added_bytes(before, after)
                for name, column in zip(after.column_names, after.columns, strict=True):
                    by_column[name] = by_column.get(name, 0) + column.nbytes
    if not rows:
        return None
    columns = {name: nbytes / rows for name, nbytes in by_column.items()}
    return MapSizes(source / rows, made / rows, added / rows, schema, columns)


def _added_bytes(before: pa.Table, after: pa.Table) -> int:
    """Bytes of the columns that are not views of what was there before."""
    known = {address for column in before.columns for address in _addresses(column)}
    return sum(c.nbytes for c in after.columns if not known.issuperset(_addresses(c)))


def _addresses(column: pa.ChunkedArray) -> set[int]:
    found = [buffer for chunk in column.chunks for buffer in chunk.buffers()]
    return {buffer.address for buffer in found if buffer is not None}


def _first_of(piece: Piece, nbytes: int | None) -> Piece:
    """The first rows of a row slice."""
    rows = piece.rows
    most = _ROWS if not rows or not nbytes else max(1, min(_ROWS, _BYTES * rows // nbytes))
    if rows is not None and rows <= most:
        return piece
    return replace(piece, rows=most, whole=False)
