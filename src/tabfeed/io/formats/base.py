"""The interface of a file format.

A format is a module with a function ``open_x(ref, options) -> DataFile``. Opening reads as little
as the format allows (a Parquet footer, the first block of a CSV) and never the data. `DataFile` is
the opened file: it knows its columns and its units, and reads them. A unit is what can be read
without the rest: a row group, a record batch, a range of lines.

Every format has the abstract methods. The others are capabilities, each with a default for formats
that lack it: statistics (`bounds`, `facts`, `null_counts`, `stored`), row sizes (`row_bytes`,
`held`), a few columns at a time (`column_groups`, `read_by_column`), prefetching (`begin`),
dictionary-encoded text (`read_encoded`), checks (`check`, `verifying`), units that can only be
decoded whole (`indivisible`, `bytes_at_once`), and the entries of a Parquet footer (`row_groups`).
"""

from __future__ import annotations

import json
import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from tabfeed.io.storage.file_ref import FileRef

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from tabfeed.io.filters import Filter
    from tabfeed.io.storage.fetch import Fetch

__all__ = [
    "DEFAULT_NULLS",
    "HELD_BYTES",
    "STREAM_BYTES",
    "DataFile",
    "OpenFormat",
    "ReadOptions",
    "RowGroups",
    "StoredColumn",
    "StreamedFile",
    "block_size",
    "index_columns",
]

DEFAULT_NULLS = ("", "NULL", "null", "NaN", "nan", "NA", "N/A", "#N/A")
HELD_BYTES = 64 * 2**20  # of pages that are held at a time where columns are read in groups
_SMALLEST_BLOCK = 2**16
_UNNAMED = re.compile(r"__index_level_\d+__|__null_dask_index__")
STREAM_BYTES = 4 * 2**20  # of rows that are decoded at a time where a unit is streamed


@dataclass(frozen=True)
class ReadOptions:
    """How files are read. Each format uses the options that concern it.

    Parameters
    ----------
    sep
        CSV: the character between fields; a comma, or a tab for ``.tsv``, by default.
    names
        CSV: the columns' names, for files without a header line.
    header
        CSV: ``"infer"`` (a header line unless `names` is given), None (no header line) or 0.
    dtypes
        Types by column name; the rest are inferred from the first block.
    null_values
        CSV: texts that mean null, besides the empty field.
    newlines_in_values
        CSV: quoted fields may hold line ends. Such files are read from start to end, so their
        partitions cannot be read independently of each other.
    block_size
        Text formats: bytes a unit covers, in the file.
    """

    sep: str | None = None
    names: tuple[str, ...] | None = None
    header: int | str | None = "infer"
    dtypes: dict[str, pa.DataType] = field(default_factory=dict, hash=False)
    null_values: tuple[str, ...] = DEFAULT_NULLS
    newlines_in_values: bool = False
    block_size: int = 32 * 2**20


def block_size(part_size: int) -> int:
    """Bytes of text to read at once: a number takes up to four times its digits in memory."""
    return max(_SMALLEST_BLOCK, min(ReadOptions.block_size, part_size // 4))


class StoredColumn(NamedTuple):
    """How a file stores one column.

    Attributes
    ----------
    nulls
        How many there are; None if the file does not say.
    nbytes
        What the column takes in the file, compressed.
    encodings
        How many of its chunks use each encoding; empty if the file has no rows of the column.
    codecs
        How its chunks are compressed.
    """

    nulls: int | None
    nbytes: int
    encodings: Counter[str]
    codecs: frozenset[str]


class DataFile(ABC):
    """One file of some format, or one frame in memory: opened, its data not yet read.

    Threads share it, and it pickles.

    Attributes
    ----------
    schema
        Its columns, without Hive keys.
    ref
        Where the file lies; None for what is in memory.
    index_columns
        The columns that are a pandas index.
    indivisible
        What the format calls a unit that can only be decoded whole; empty if slices of units can be
        read for less.
    """

    schema: pa.Schema
    ref: FileRef | None
    index_columns: tuple[str, ...]
    indivisible: str = ""

    def __init__(
        self, schema: pa.Schema, ref: FileRef | None = None, index_columns: tuple[str, ...] = ()
    ) -> None:
        self.schema = schema
        self.ref = ref
        self.index_columns = index_columns

    @property
    @abstractmethod
    def unit_rows(self) -> Sequence[int | None]:
        """Rows of each unit; None where they are known only once the unit is read."""

    @abstractmethod
    def count(self, unit: int) -> int:
        """Rows of a unit, read if need be."""

    @abstractmethod
    def nbytes(self, unit: int, columns: Sequence[str]) -> int | None:
        """Estimate of what these columns of a unit take in memory; None if unknown."""

    @abstractmethod
    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Whole units, one after the other; the columns in the order of `columns`."""

    @abstractmethod
    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """One unit as a stream of batches of about `rows` rows, never held whole."""

    # -- other ways to read ---------------------------------------------------------

    def read_encoded(
        self, units: Sequence[int], columns: Sequence[str], dictionary: Sequence[str]
    ) -> pa.Table:
        """The same as `read`, text columns of `dictionary` dictionary-encoded if that is cheap."""
        return self.read(units, columns)

    def read_by_column(
        self, units: Sequence[int], columns: Sequence[str], at_once: int
    ) -> Iterator[pa.Table]:
        """The same as `read`, about `at_once` bytes of columns at a time if that is cheaper."""
        yield self.read(units, columns)

    def column_groups(self, unit: int, columns: Sequence[str]) -> list[list[str]]:
        """The columns in groups that can be streamed together within bounds of memory."""
        return [list(columns)]

    @property
    def fetches_ahead(self) -> bool:
        """Whether it lies on a server and `begin` can fetch what `read` will need."""
        return False

    def begin(self, units: Sequence[int], columns: Sequence[str]) -> Fetch | None:
        """Begin to fetch what `read` of the same will need; None if there is nothing to fetch."""
        return None

    # -- sizes ----------------------------------------------------------------------

    def row_bytes(self, unit: int, columns: Sequence[str]) -> npt.NDArray[Any] | None:
        """What each row of a unit takes in memory; None if rows are about alike, or if unknown."""
        return None

    def held(self, unit: int, columns: Sequence[str]) -> int | None:
        """Bytes that a stream of these columns keeps beside its batches; None if unknown."""
        return None

    def bytes_at_once(self, unit: int, columns: Sequence[str], most: int) -> int:
        """About what reading a few rows of an indivisible unit takes.

        Nothing is decoded to find out whether that is over `most`.
        """
        return 0

    # -- statistics -----------------------------------------------------------------

    def facts(self, unit: int, condition: Filter, schema: pa.Schema) -> list[pc.Expression]:
        """Expressions that hold for all rows of a unit, in the columns of a filter."""
        return []

    def bounds(self, column: str) -> Iterator[tuple[Any, Any] | None]:
        """Smallest and largest value in each unit; None where they are unknown."""
        yield None

    def null_counts(self, unit: int, columns: Sequence[str]) -> list[int | None]:
        """Nulls in each of these flat columns of a unit; None where they are unknown."""
        return [None] * len(columns)

    def stored(self, column: str) -> StoredColumn | None:
        """How a column is stored; None if the format does not say."""
        return None

    # -- checks ---------------------------------------------------------------------

    def check(self) -> None:
        """Raise `BadFileError` if what was read when the file was opened is damaged."""
        return None

    def verifying(self) -> DataFile:
        """The same file, every checksum it has verified as it is read."""
        return self

    @property
    def row_groups(self) -> RowGroups | None:
        """The entries of a Parquet footer; None for other formats."""
        return None


class RowGroups(Protocol):
    """A Parquet file, for readers that look at its footer: units are row groups."""

    @property
    def ref(self) -> FileRef:
        """Where the file lies."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        ...

    @property
    def unit_rows(self) -> list[int]:
        """Rows of each row group."""
        ...

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer; call `check` before looking at column chunks."""
        ...

    @property
    def stored_as_given(self) -> bool:
        """Whether columns have the types of `schema` as soon as they are decoded."""
        ...

    @property
    def verifies_pages(self) -> bool:
        """Whether reading verifies the checksums of pages, where there are any."""
        ...

    def check(self) -> None:
        """Refuse a damaged footer."""
        ...

    def chunks(self, column: str) -> Iterator[pq.ColumnChunkMetaData]:
        """The footer's entries for a column, one or more a row group."""
        ...

    def chunks_in(
        self, unit: int, columns: Sequence[str]
    ) -> list[tuple[pq.ColumnChunkMetaData, bool]]:
        """The entries of flat columns of a row group, and whether each may have nulls."""
        ...

    def groups_of(
        self, units: Sequence[int], columns: Sequence[str], at_once: int
    ) -> Iterator[list[str]]:
        """The columns in groups that take about `at_once` bytes once decoded."""
        ...

    def columns(
        self, unit: int, groups: Sequence[list[str]]
    ) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Columns of one row group as they are stored, a group at a time."""
        ...


class StreamedFile(DataFile):
    """A file without a footer, whose units are found by reading it once, under a lock."""

    ref: FileRef
    _lock: threading.Lock

    def __init__(self, schema: pa.Schema, ref: FileRef) -> None:
        super().__init__(schema, ref)
        self._lock = threading.Lock()

    def _empty(self, columns: Sequence[str]) -> pa.Table:
        return pa.schema([self.schema.field(c) for c in columns]).empty_table()

    def _at_least_one(self, columns: Sequence[str]) -> list[str]:
        """No reader counts rows without reading a column; a table without one forgets them."""
        return list(columns) or self.schema.names[:1]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())


def index_columns(names: Iterable[str], metadata: Mapping[bytes, bytes] | None) -> tuple[str, ...]:
    """Those of the names that are a pandas index; none if there would be no column left.

    pandas and Dask store the index of a frame as columns beside the others, and note in the
    schema's metadata which they are. They number or name the rows; as features they would tell a
    model where a row lay. So they are left out of a dataset unless they are asked for by name.

    Examples
    --------
    >>> index_columns(["x", "id"], {b"pandas": b'{"index_columns": ["id"]}'})
    ('id',)
    >>> index_columns(["x", "__index_level_0__"], None)
    ('__index_level_0__',)
    """
    noted = _noted((metadata or {}).get(b"pandas", b""))
    everything = list(names)
    found = tuple(n for n in everything if n in noted or _UNNAMED.fullmatch(n))
    return found if len(found) < len(everything) else ()


@lru_cache(maxsize=64)
def _noted(metadata: bytes) -> frozenset[str]:
    """What pandas' metadata name; an index that only counts the rows is described, not named."""
    try:
        columns = json.loads(metadata)["index_columns"]
        return frozenset(c for c in columns if isinstance(c, str))
    except (ValueError, TypeError, KeyError):  # there is none, or it is not pandas'
        return frozenset()


OpenFormat = Callable[[FileRef, ReadOptions], DataFile]
