"""The interface of a file format, and the table of them all (`FORMATS`).

A format is a module with a function ``open_<format>(ref, options) -> DataFile``. Opening reads as
little as the format allows (a Parquet footer, the first block of a CSV) and never the data.
`DataFile` is the opened file: it knows its columns and its units, and reads them. A unit is what
can be read without the rest: a row group, a record batch, a range of lines.

Every format has the abstract methods. The others are capabilities, each with a default for formats
that lack it: statistics (`bounds`, `facts`, `null_counts`, `stored`), row sizes (`row_bytes`,
`held`), a few columns at a time (`column_groups`, `read_by_column`), prefetching (`begin`),
dictionary-encoded text (`read_encoded`), checks (`check`, `verifying`), units that can only be
decoded whole (`indivisible`, `bytes_at_once`), and the footer of a Parquet file (`row_groups`).

The formats share their helpers. To open a file: `refuse_empty`, `FileRef.just_pinned` for the
header, and `reading(ref, decoding=True)`, which turns errors into tabfeed's own; the rest of what a
decoder raises becomes a `bad_file` (`tabfeed.io.storage.files`). For its columns: `refuse_names`,
`index_columns`, and `normalize_schema`, since ``schema`` has tabfeed's types and not the file's.
For its rows: `cast_columns` to these types, and `rebatch` (`tabfeed.io.align`).
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
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tabfeed.errors import DuplicateColumnError, SchemaError
from tabfeed.io.storage.files import FileRef, bad_file

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow.compute as pc

    from tabfeed.io.filters import Filter
    from tabfeed.io.formats.parquet.file import ParquetFile
    from tabfeed.io.storage.fetch import Fetch

__all__ = [
    "DEFAULT_NULLS",
    "FORMATS",
    "HELD_BYTES",
    "STREAM_BYTES",
    "DataFile",
    "Format",
    "OpenFormat",
    "ReadOptions",
    "StoredColumn",
    "StreamedFile",
    "block_size",
    "engine_of",
    "index_columns",
    "refuse_duplicates",
    "refuse_names",
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

    def in_smaller_units(self, nbytes: int) -> tuple[DataFile, int]:
        """The same file in units of at most `nbytes`, and how many there are for each old one.

        Where units are cut by bytes and their rows are not counted; elsewhere slices are read.
        """
        return self, 1

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
    def row_groups(self) -> ParquetFile | None:
        """A Parquet file, for readers that look at its footer; None for other formats."""
        return None


OpenFormat = Callable[[FileRef, ReadOptions], DataFile]


class StreamedFile(DataFile):
    """A file without a footer, whose units are found by reading it once, under a lock."""

    ref: FileRef
    _lock: threading.Lock

    def __init__(self, schema: pa.Schema, ref: FileRef) -> None:
        super().__init__(schema, ref)
        self._lock = threading.Lock()

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


def refuse_duplicates(ref: FileRef, names: Sequence[str]) -> None:
    """Raise `DuplicateColumnError` if a name occurs twice."""
    if len(set(names)) == len(names):
        return
    twice = next(n for n in names if list(names).count(n) > 1)
    raise DuplicateColumnError(
        f"{ref.name} has more than one column named {twice!r}; rename them: a column is "
        "found by its name"
    )


def refuse_names(ref: FileRef, names: Sequence[str]) -> None:
    """Refuse a file whose columns cannot all be found by their names, or that has none."""
    if not names:
        raise bad_file(ref, "has no columns, so there is nothing to read")
    if "" in names:
        raise SchemaError(
            f"{ref.name} has a column without a name, as column {list(names).index('')} "
            "(counted from 0); write the file again with a name for it: a column is found by its "
            "name"
        )
    refuse_duplicates(ref, names)


# -- the formats --------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes
    ----------
    names
        What users call it; the first is its own name.
    suffixes
        How the names of its files end, before a compression's ending.
    module
        The module that defines ``open_<name>``; imported when first needed.
    first_bytes
        How its files start, if they all start the same.
    """

    names: tuple[str, ...]
    suffixes: tuple[str, ...]
    module: str
    first_bytes: bytes = b""

    @property
    def name(self) -> str:
        """Its own name."""
        return self.names[0]

    @property
    def open(self) -> OpenFormat:
        """The function that opens its files."""
        opening: OpenFormat = getattr(import_module(self.module), f"open_{self.name}")
        return opening


FORMATS = (
    Format(("parquet",), (".parquet", ".pq", ".parq"), "tabfeed.io.formats.parquet.file", b"PAR1"),
    Format(("csv",), (".csv", ".tsv"), "tabfeed.io.formats.text.csv"),
    Format(("jsonl", "json"), (".jsonl", ".ndjson", ".json"), "tabfeed.io.formats.text.jsonl"),
    Format(
        ("ipc", "feather", "arrow"),
        (".arrow", ".feather", ".ipc", ".arrows"),
        "tabfeed.io.formats.ipc",
        b"ARRO",
    ),
    Format(("avro",), (".avro",), "tabfeed.io.formats.avro", b"Obj\x01"),
    Format(
        ("tfrecord",),
        (".tfrecord", ".tfrecords", ".tfrecord.gzip", ".tfrecord.zlib"),
        "tabfeed.io.formats.tfrecord.file",
    ),
)

_COMPRESSION = (".gz", ".zst", ".bz2", ".lz4")
_SHARD = re.compile(r"-\d+-of-\d+$")  # train.tfrecord-00001-of-00010


def engine_of(path: str) -> str | None:
    """The format that a file's name says, or None."""
    name = _SHARD.sub("", path.lower())
    for ending in _COMPRESSION:
        name = name.removesuffix(ending)
    return next((f.name for f in FORMATS if name.endswith(f.suffixes)), None)
