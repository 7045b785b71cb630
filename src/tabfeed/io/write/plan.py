"""Which rows go into which file: the plan of a writing, made before a byte moves."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tabfeed.errors import ArgumentError
from tabfeed.io.commit.manifest import is_below
from tabfeed.io.formats.parquet.page_options import PageOptions
from tabfeed.io.partition import Partition, continues
from tabfeed.io.shuffle.local import draw_keys

if TYPE_CHECKING:
    from tabfeed.io.dataset import Dataset

__all__ = ["Shuffle", "WriteJob", "WriteOptions", "file_names", "group_jobs", "plan_jobs"]


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
class WriteJob:
    """One output file: its name, its partitions, and its place in the random stream.

    ``numbering`` is what a dataset of these partitions must know of the whole.
    """

    name: str
    partitions: tuple[Partition, ...]
    numbers: tuple[int, ...]
    numbering: Mapping[str, Any] = field(default_factory=dict)


def plan_jobs(dataset: Dataset, options: WriteOptions) -> list[WriteJob]:
    """One job an output file, in reading order."""
    wanted = options.output_files
    if options.preserve_files:
        jobs = _jobs_by_file(dataset)
    elif isinstance(wanted, Mapping):
        jobs = _jobs_by_mapping(dataset.partitions, wanted)
    else:
        dataset, jobs = _jobs_by_count(dataset, options)
    return _numbered(dataset, jobs)


def _jobs_by_count(dataset: Dataset, options: WriteOptions) -> tuple[Dataset, list[WriteJob]]:
    """Runs of partitions of equal length; of rows, where there are more files than partitions."""
    names = file_names(options.output_files, dataset.npartitions)
    if len(names) > dataset.npartitions:
        dataset = dataset.repartition(npartitions=len(names))
    parts = dataset.partitions
    numbered = list(enumerate(parts))
    if options.shuffle is Shuffle.PER_PARTITION:
        order = draw_keys(options.seed, 0, 0, len(parts)).argsort(kind="stable")
        numbered = [numbered[i] for i in order]
    bounds = [len(parts) * i // len(names) for i in range(len(names) + 1)]
    runs = [numbered[a:b] for a, b in pairwise(bounds)]
    return dataset, [_job(name, run) for name, run in zip(names, runs, strict=True)]


def _job(name: str, run: Sequence[tuple[int, Partition]]) -> WriteJob:
    return WriteJob(name, tuple(p for _, p in run), tuple(i for i, _ in run))


def _jobs_by_mapping(
    parts: Sequence[Partition], wanted: Mapping[str, Sequence[int]]
) -> list[WriteJob]:
    used = sorted(i for ids in wanted.values() for i in ids)
    if used != list(range(len(parts))):
        raise ArgumentError(
            f"output_files must place each of the {len(parts)} partitions once; it places {used}"
        )
    names = file_names(list(wanted), 1)
    return [
        _job(name, [(i, parts[i]) for i in ids])
        for name, ids in zip(names, wanted.values(), strict=True)
    ]


def _jobs_by_file(dataset: Dataset) -> list[WriteJob]:
    """One job an input file, under the file's own name, also where no row of it is left."""
    runs: list[list[tuple[int, Partition]]] = [[] for _ in dataset.files]
    for number, part in enumerate(dataset.partitions):
        for index in part.files:
            own = replace(part, pieces=tuple(p for p in part.pieces if p.file == index))
            runs[index].append((number, own))
    if any(f.startswith("<") for f in dataset.files):
        raise ArgumentError("preserve_files: the data come from memory and have no files")
    stems = [_stem(f) for f in dataset.files]
    if len(set(stems)) < len(stems):
        twice = next(s for s in stems if stems.count(s) > 1)
        raise ArgumentError(
            f"preserve_files: two input files are named {twice!r}; name the outputs with "
            "output_files"
        )
    return [_job(n, run) for n, run in zip(file_names(stems, 1), runs, strict=True)]


def _stem(path: str) -> str:
    """A file's name without the ending that says its format."""
    from tabfeed.io.find_files import engine_of

    name = posixpath.basename(path)
    while engine_of(name) is not None and "." in name.strip("."):
        name = name.rpartition(".")[0]
    return name


def _numbered(dataset: Dataset, jobs: list[WriteJob]) -> list[WriteJob]:
    """Tell each job where its rows stand in the whole, if a map asks for that."""
    if not any(step.numbered for step in dataset._maps):
        return jobs
    known = dataset._first_rows_of
    if any(p not in known for job in jobs for p in job.partitions):
        parts = tuple(p for job in jobs for p in job.partitions)
        known = dataset._derive(partitions=parts)._first_rows_of
    return [
        replace(job, numbering={"_first_rows_of": {p: known[p] for p in job.partitions}})
        for job in jobs
    ]


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


def group_jobs(jobs: list[WriteJob]) -> list[list[WriteJob]]:
    """Jobs that go on inside the row group where the one before stopped, together."""
    groups: list[list[WriteJob]] = []
    for job in jobs:
        before = groups[-1][-1].partitions if groups else ()
        if before and job.partitions and continues(before[-1], job.partitions[0]):
            groups[-1].append(job)
        else:
            groups.append([job])
    return groups
