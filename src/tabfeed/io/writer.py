"""Write a dataset as Parquet: which rows go into which file, in which order.

A `Job` is one output file and the partitions that go into it. Jobs run in parallel;
within a job, partitions are read, shuffled if asked, cut into row groups and written. A full
shuffle is one stream through all files and runs on its own (see `tabfeed.io.scatter`).
Nothing appears under its final name before all of it is whole (see `tabfeed.io.commit`).
"""

from __future__ import annotations

import enum
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tabfeed.budget import free_memory, parse_bytes
from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.execute import Executor, LocalExecutor
from tabfeed.io.commit import Commit
from tabfeed.io.frames import TemporaryFolder
from tabfeed.io.partition import Partition
from tabfeed.io.scatter import draw_keys, shuffled, sort_rows
from tabfeed.io.sink import FileSink, HiveSink, PageOptions, Sink
from tabfeed.progress import progress

if TYPE_CHECKING:
    from tabfeed.io.dataset import Dataset

__all__ = ["Shuffle", "WriteOptions", "estimate", "write_parquet"]


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
        put(self, "partition_on", tuple(keys or ()))
        if self.seed < 0:
            raise ArgumentError(f"seed is {self.seed}; it must be 0 or more")
        if isinstance(self.output_files, int) and self.output_files < 1:
            raise ArgumentError(f"output_files is {self.output_files}; it must be 1 or more")
        if self.preserve_files and self.output_files is not None:
            raise ArgumentError("preserve_files takes its names from the input: no output_files")
        if self.preserve_files and self.shuffle is Shuffle.FULL:
            raise ArgumentError("a full shuffle moves rows between files: no preserve_files")
        if isinstance(self.output_files, Mapping) and self.shuffle is Shuffle.FULL:
            raise ArgumentError("a full shuffle moves rows between files: give names or a number")


def _as_shuffle(value: Shuffle | str) -> Shuffle:
    try:
        return Shuffle(value.lower()) if isinstance(value, str) else Shuffle(value)
    except (ValueError, AttributeError):
        choices = ", ".join(f"{s.name}" for s in Shuffle)
        raise ArgumentError(f"shuffle is {value!r}; it must be one of {choices}, or None") from None


@dataclass(frozen=True)
class Job:
    """One output file: its name, its partitions, and its place in the random stream."""

    name: str
    partitions: tuple[Partition, ...]
    numbers: tuple[int, ...]


def write_parquet(
    dataset: Dataset,
    path: str | os.PathLike[str],
    options: WriteOptions,
    *,
    overwrite: bool,
    storage_options: Mapping[str, Any] | None,
    executor: Executor,
) -> None:
    """Write `dataset` into the folder `path`."""
    _check_keys(dataset, options)
    _refuse_own_input(dataset, path, storage_options)
    with Commit(path, overwrite=overwrite, storage_options=storage_options) as commit:
        commit.schema = dataset.schema
        work = _Work(dataset, options, commit)
        if options.shuffle is Shuffle.FULL:
            work.write_shuffled()
        else:
            work.write_jobs(executor)


def _check_keys(dataset: Dataset, options: WriteOptions) -> None:
    keys = options.partition_on or ()
    for key in keys:
        if key not in dataset.schema:
            raise ColumnNotFoundError(key, dataset.column_names)
        if dataset.schema[key].is_list:
            raise ArgumentError(f"partition_on: column {key!r} holds lists; folders need one value")
    if keys and len(set(keys)) == len(dataset.schema):
        raise ArgumentError("partition_on names every column; nothing would be left in the files")


def _refuse_own_input(
    dataset: Dataset, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> None:
    from tabfeed.io.filesystem import place_of

    target = place_of(path, storage_options).name.rstrip("/") + "/"
    inside = [f for f in dataset.files if f.startswith(target)]
    if inside:
        raise ArgumentError(
            f"{inside[0]} is read and {target} would be written: a dataset cannot be written over "
            "itself; write elsewhere"
        )


class _Work:
    """One writing: the dataset, the options, and the folder being filled."""

    def __init__(self, dataset: Dataset, options: WriteOptions, commit: Commit) -> None:
        self.dataset = dataset
        self.options = options
        self.commit = commit
        given = options.memory_limit
        self.limit = parse_bytes(given, name="memory_limit") if given else free_memory() // 4

    # -- a file at a time -----------------------------------------------------------

    def write_jobs(self, executor: Executor) -> None:
        """Write every job, in parallel; jobs that read one row group in turn go together."""
        groups = _group(self._jobs())
        threads = getattr(executor, "threads", 1)
        self._inner = LocalExecutor(max(1, threads // max(1, len(groups))))
        with progress("writing", _known_rows(self.dataset)) as bar:
            for rows in executor.map(groups, self._write_group):
                bar.advance(rows)

    def _jobs(self) -> list[Job]:
        parts = self.dataset.partitions
        numbered = list(enumerate(parts))
        if self.options.shuffle is Shuffle.PER_PARTITION:
            order = draw_keys(self.options.seed, 0, 0, len(parts)).argsort()
            numbered = [numbered[i] for i in order]
        wanted = self.options.output_files
        if self.options.preserve_files:
            return _jobs_by_file(self.dataset)
        if isinstance(wanted, Mapping):
            return _jobs_by_mapping(parts, wanted)
        names = _names(wanted, len(parts))
        bounds = [len(parts) * i // len(names) for i in range(len(names) + 1)]
        runs = [numbered[a:b] for a, b in pairwise(bounds)]
        return [
            Job(n, tuple(p for _, p in run), tuple(i for i, _ in run))
            for n, run in zip(names, runs, strict=True)
        ]

    def _write_group(self, group: list[Job]) -> int:
        parts = tuple(p for job in group for p in job.partitions)
        source = self.dataset._derive(partitions=parts)
        tables = source.iter_tables(executor=self._inner)
        total = 0
        for job in group:
            total += self._write_job(job, islice(tables, len(job.partitions)))
        return total

    def _write_job(self, job: Job, tables: Iterator[pa.Table]) -> int:
        seed = self.options.seed
        if self.options.shuffle is Shuffle.PER_PARTITION:
            tables = (
                sort_rows(t, draw_keys(seed, 1 + number, 0, t.num_rows))
                for number, t in zip(job.numbers, tables, strict=True)
            )
        if self.options.shuffle is Shuffle.PER_WORKER:
            with self._spill() as folder:
                return self._sink(job.name, self._shuffled(tables, job, folder.path))
        return self._sink(job.name, tables)

    def _shuffled(self, tables: Iterable[pa.Table], job: Job, folder: Path) -> Iterator[pa.Table]:
        return shuffled(
            tables,
            seed=self.options.seed,
            stream=1 + job.numbers[0] if job.numbers else 0,
            nbytes=estimate(self.dataset, job.partitions),
            memory_limit=self.limit,
            folder=folder,
        )

    # -- one stream through all files -----------------------------------------------

    def write_shuffled(self) -> None:
        """A full shuffle: one random permutation, cut into files of equal rows."""
        pieces = self.dataset.repartition(partition_size=max(1, self.limit // 16))
        rows = self.dataset.num_rows
        names = _names(self.options.output_files, self.dataset.npartitions)
        with self._spill() as folder, progress("shuffling", 2 * rows) as bar:
            whole = Job("", pieces.partitions, (0,))
            read = _counted(pieces.iter_tables(executor=LocalExecutor(1)), bar.advance)
            stream = _Cutter(_counted(self._shuffled(read, whole, folder.path), bar.advance))
            done = 0
            for i, name in enumerate(names):
                end = rows * (i + 1) // len(names)
                self._sink(name, stream.take(end - done))
                done = end

    # -- writing --------------------------------------------------------------------

    def _spill(self) -> _Spill:
        place = self.commit.staging
        return _Spill(place.path if place.local else None)

    def _sink(self, name: str, tables: Iterator[pa.Table]) -> int:
        """Write tables into one file, or one file for each folder key."""
        sink: Sink
        schema = self.dataset.schema.to_arrow()
        if self.options.partition_on:
            sink = HiveSink(
                self.commit, name, schema, self.options.pages, self.options.partition_on
            )
        else:
            sink = FileSink(self.commit, name, schema, self.options.pages)
        with sink:
            for table in tables:
                sink.write(table)
        return sink.rows


class _Spill:
    """A temporary folder beside the output, removed at once when done."""

    def __init__(self, parent: str | None) -> None:
        self._parent = parent

    def __enter__(self) -> TemporaryFolder:
        self._folder = TemporaryFolder(self._parent)
        return self._folder

    def __exit__(self, *exc: object) -> None:
        self._folder.remove()


class _Cutter:
    """Takes a number of rows at a time from a stream of tables."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._rest: pa.Table | None = None

    def take(self, rows: int) -> Iterator[pa.Table]:
        """The next `rows` rows."""
        while rows > 0:
            table = self._rest if self._rest is not None else next(self._tables, None)
            if table is None:
                return
            yield table.slice(0, rows)
            self._rest = table.slice(rows) if table.num_rows > rows else None
            rows -= min(rows, table.num_rows)


def _counted(tables: Iterable[pa.Table], advance: Any) -> Iterator[pa.Table]:
    for table in tables:
        yield table
        advance(table.num_rows)


def _known_rows(dataset: Dataset) -> int | None:
    counts = [p.rows for p in dataset.partitions]
    return None if None in counts else sum(c or 0 for c in counts)


def estimate(dataset: Dataset, partitions: Sequence[Partition]) -> int:
    """About how many bytes these partitions take in memory."""
    files, columns = dataset._files, dataset._source_columns
    total = 0.0
    for piece in (p for part in partitions for p in part.pieces):
        rows = files.files[piece.file].unit_rows[piece.unit]
        share = 1.0 if piece.whole or not rows else (piece.rows or 0) / rows
        total += files.nbytes(piece, columns) * share
    return int(total) + 1


def _names(wanted: Any, default: int) -> list[str]:
    if wanted is None:
        wanted = max(1, default)
    names = [f"part_{i}" for i in range(wanted)] if isinstance(wanted, int) else list(wanted)
    names = [n if n.endswith(".parquet") else f"{n}.parquet" for n in map(str, names)]
    if len(set(names)) < len(names) or not names:
        raise ArgumentError(f"output_files must name each file once: {names}")
    for name in names:
        if name.startswith(("/", "_", ".")) or ".." in name.split("/"):
            raise ArgumentError(
                f"output_files: {name!r} is not a plain name; names that start with '_' or '.' are "
                "passed over when a folder is read"
            )
    return names


def _jobs_by_mapping(parts: Sequence[Partition], wanted: Mapping[str, Sequence[int]]) -> list[Job]:
    used = sorted(i for ids in wanted.values() for i in ids)
    if used != list(range(len(parts))):
        raise ArgumentError(
            f"output_files must place each of the {len(parts)} partitions once; it places {used}"
        )
    names = _names(list(wanted), 1)
    return [
        Job(name, tuple(parts[i] for i in ids), tuple(ids))
        for name, ids in zip(names, wanted.values(), strict=True)
    ]


def _jobs_by_file(dataset: Dataset) -> list[Job]:
    """One job an input file, under the file's own name."""
    by_file: dict[int, list[tuple[int, Partition]]] = {}
    for number, part in enumerate(dataset.partitions):
        for index in part.files:
            own = replace(part, pieces=tuple(p for p in part.pieces if p.file == index))
            by_file.setdefault(index, []).append((number, own))
    stems = {i: posixpath.basename(dataset.files[i]).split(".")[0] for i in by_file}
    if len(set(stems.values())) < len(stems):
        raise ArgumentError(
            "preserve_files: two input files have the same name; name the outputs with output_files"
        )
    return [
        Job(f"{stems[i]}.parquet", tuple(p for _, p in parts), tuple(n for n, _ in parts))
        for i, parts in by_file.items()
    ]


def _group(jobs: list[Job]) -> list[list[Job]]:
    """Jobs that go on inside the row group where the one before stopped, together."""
    from tabfeed.io.dataset import _continues

    groups: list[list[Job]] = []
    for job in jobs:
        before = groups[-1][-1].partitions if groups else ()
        if before and job.partitions and _continues(before[-1], job.partitions[0]):
            groups[-1].append(job)
        else:
            groups.append([job])
    return groups
