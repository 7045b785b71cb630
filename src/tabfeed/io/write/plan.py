"""Decide which rows go into which output file, before anything is read or written."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tabfeed.errors import ArgumentError
from tabfeed.io.commit.manifest import is_below
from tabfeed.io.formats.parquet.pages import PageOptions
from tabfeed.io.partition import Partition, continues
from tabfeed.io.shuffle.local import draw_keys

if TYPE_CHECKING:
    from tabfeed.io.table import PartitionedTable

__all__ = ["OutputFile", "Shuffle", "WriteOptions", "file_names", "group_files", "plan_files"]


class Shuffle(str, enum.Enum):
    """How far rows move when a dataset is written."""

    PER_PARTITION = "per_partition"
    PER_WORKER = "per_worker"
    FULL = "full"


@dataclass(frozen=True)
class WriteOptions:
    """What a user may say about writing; checked when made. See `Dataset.to_parquet`."""

    shuffle: Shuffle | str | None = None
    seed: int = 0
    output_files: int | Sequence[str] | Mapping[str, Sequence[int]] | None = None
    preserve_files: bool = False
    partition_on: Sequence[str] | str | None = None
    pages: PageOptions = field(default_factory=PageOptions)
    memory_limit: int | float | str | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.shuffle is not None:
            put(self, "shuffle", _as_shuffle(self.shuffle))
        keys = [self.partition_on] if isinstance(self.partition_on, str) else self.partition_on
        put(self, "partition_on", tuple(dict.fromkeys(keys or ())))
        if self.seed < 0:
            raise ArgumentError(f"seed is {self.seed}; it must be 0 or more")
        self._check_files()

    def _check_files(self) -> None:
        files = self.output_files
        if isinstance(files, str):
            raise ArgumentError(f"output_files is {files!r}; give a list of names: [{files!r}]")
        if isinstance(files, int) and (files < 1 or isinstance(files, bool)):
            raise ArgumentError(f"output_files is {files}; it must be 1 or more")
        if self.preserve_files and files is not None:
            raise ArgumentError("preserve_files takes its names from the input: no output_files")
        if self.preserve_files and self.shuffle is Shuffle.FULL:
            raise ArgumentError("a full shuffle moves rows between files: no preserve_files")
        if isinstance(files, Mapping) and self.shuffle is Shuffle.FULL:
            raise ArgumentError("a full shuffle moves rows between files: give names or a number")


def _as_shuffle(value: Shuffle | str) -> Shuffle:
    try:
        return Shuffle(value.lower()) if isinstance(value, str) else Shuffle(value)
    except (ValueError, AttributeError):
        choices = ", ".join(f"{s.name}" for s in Shuffle)
        raise ArgumentError(f"shuffle is {value!r}; it must be one of {choices}, or None") from None


@dataclass(frozen=True)
class OutputFile:
    """An output file: its name, the partitions that go into it, and their numbers in the table.

    ``first_rows`` are the numbers of the partitions' first rows, where a map needs them.
    """

    name: str
    partitions: tuple[Partition, ...]
    numbers: tuple[int, ...]
    first_rows: Mapping[Partition, int] | None = None


def plan_files(table: PartitionedTable, options: WriteOptions) -> list[OutputFile]:
    """The output files, in reading order."""
    wanted = options.output_files
    if options.preserve_files:
        files = _as_input(table)
    elif isinstance(wanted, Mapping):
        files = _by_mapping(table.partitions, wanted)
    else:
        table, files = _by_count(table, options)
    return _numbered(table, files)


def _by_count(
    table: PartitionedTable, options: WriteOptions
) -> tuple[PartitionedTable, list[OutputFile]]:
    """Runs of partitions of equal length; of rows, where there are more files than partitions."""
    names = file_names(options.output_files, table.npartitions)
    if len(names) > table.npartitions:
        table = table.repartition(npartitions=len(names))
    parts = table.partitions
    numbered = list(enumerate(parts))
    if options.shuffle is Shuffle.PER_PARTITION:
        order = draw_keys(options.seed, 0, 0, len(parts)).argsort(kind="stable")
        numbered = [numbered[i] for i in order]
    bounds = [len(parts) * i // len(names) for i in range(len(names) + 1)]
    runs = [numbered[a:b] for a, b in pairwise(bounds)]
    return table, [_file(name, run) for name, run in zip(names, runs, strict=True)]


def _file(name: str, run: Sequence[tuple[int, Partition]]) -> OutputFile:
    return OutputFile(name, tuple(p for _, p in run), tuple(i for i, _ in run))


def _by_mapping(
    parts: Sequence[Partition], wanted: Mapping[str, Sequence[int]]
) -> list[OutputFile]:
    used = sorted(i for ids in wanted.values() for i in ids)
    if used != list(range(len(parts))):
        raise ArgumentError(
            f"output_files must place each of the {len(parts)} partitions once; it places {used}"
        )
    names = file_names(list(wanted), 1)
    return [
        _file(name, [(i, parts[i]) for i in ids])
        for name, ids in zip(names, wanted.values(), strict=True)
    ]


def _as_input(table: PartitionedTable) -> list[OutputFile]:
    """A file for each input file, under its name, even where no row of it is left."""
    names = table.files.names
    runs: list[list[tuple[int, Partition]]] = [[] for _ in names]
    for number, part in enumerate(table.partitions):
        for index in part.files:
            own = replace(part, pieces=tuple(p for p in part.pieces if p.file == index))
            runs[index].append((number, own))
    if any(f.startswith("<") for f in names):
        raise ArgumentError("preserve_files: the data come from memory and have no files")
    stems = [_stem(f) for f in names]
    if len(set(stems)) < len(stems):
        twice = next(s for s in stems if stems.count(s) > 1)
        raise ArgumentError(
            f"preserve_files: two input files are named {twice!r}; name the outputs with "
            "output_files"
        )
    return [_file(n, run) for n, run in zip(file_names(stems, 1), runs, strict=True)]


def _stem(path: str) -> str:
    """A file's name without the ending that says its format."""
    from tabfeed.io.formats.base import engine_of

    name = posixpath.basename(path)
    while engine_of(name) is not None and "." in name.strip("."):
        name = name.rpartition(".")[0]
    return name


def _numbered(table: PartitionedTable, files: list[OutputFile]) -> list[OutputFile]:
    """The files with the numbers of their partitions' first rows, if a map needs them."""
    if not any(step.numbered for step in table.maps):
        return files
    known = table.first_rows
    parts = [p for file in files for p in file.partitions]
    if any(p not in known for p in parts):
        known = table.with_partitions(parts).first_rows
    return [replace(f, first_rows={p: known[p] for p in f.partitions}) for f in files]


def file_names(wanted: Any, default: int) -> list[str]:
    """The names of the output files, checked.

    Examples
    --------
    >>> file_names(2, 1), file_names(["a", "b.parquet"], 1)
    (['part_0.parquet', 'part_1.parquet'], ['a.parquet', 'b.parquet'])
    """
    if wanted is None:
        wanted = max(1, default)
    names = [f"part_{i}" for i in range(wanted)] if isinstance(wanted, int) else list(wanted)
    names = [n if n.endswith(".parquet") else f"{n}.parquet" for n in map(str, names)]
    if len(set(names)) < len(names) or not names:
        raise ArgumentError(f"output_files must name each file once: {names}")
    for name in names:
        _check_name(name)
    return names


def _check_name(name: str) -> None:
    parts = name.split("/")
    if not is_below(name) or "=" in posixpath.dirname(name):
        raise ArgumentError(f"output_files: {name!r} is not a name below the folder")
    if any(p.startswith(("_", ".")) for p in parts):
        raise ArgumentError(
            f"output_files: {name!r} is not a plain name; names that start with '_' or '.' are "
            "passed over when a folder is read"
        )


def group_files(files: list[OutputFile]) -> list[list[OutputFile]]:
    """The files in groups; one that continues inside the row group of the one before joins it."""
    groups: list[list[OutputFile]] = []
    for file in files:
        before = groups[-1][-1].partitions if groups else ()
        if before and file.partitions and continues(before[-1], file.partitions[0]):
            groups[-1].append(file)
        else:
            groups.append([file])
    return groups
