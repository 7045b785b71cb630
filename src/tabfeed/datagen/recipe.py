"""A `Recipe` for a table, which can be made as Arrow tables or written as files.

A `Recipe` makes any range of its *units* (rows; for some tables groups of rows, such as a display
of several ads) from their numbers alone. So chunks are made by threads in any order, and written in
order by one thread: the same bytes on any number of threads, with only a few chunks in memory. One
encoding thread keeps up with one or two that draw; on many cores the encoding is the limit, the
price of files that don't depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.display import Bar, progress
from tabfeed.errors import ArgumentError
from tabfeed.execute import LocalExecutor
from tabfeed.io import Dataset
from tabfeed.io.commit.commit import Commit
from tabfeed.schema import ColumnSchema, Schema

Columns = Callable[[int, int], Mapping[str, Any]]

# Above this many distinct values a column's dictionary no longer pays for itself within a
# row group of 250,000: the page grows, and writing takes twice as long.
DICTIONARY_LIMIT = 100_000


@dataclass(frozen=True)
class Recipe:
    """How to make a table.

    Parameters
    ----------
    units
        How many there are to make.
    schema
        Of the table, tags and all.
    columns
        ``columns(start, stop)`` gives those units' rows, column by column, the same whenever
        it is called.
    plain
        Columns with so many distinct values that a dictionary would not make them smaller.
    rows_per_unit
        About how many rows a unit has.
    """

    units: int
    schema: Schema
    columns: Columns
    plain: frozenset[str] = field(default_factory=frozenset)
    rows_per_unit: int = 1

    def make(self, start: int, stop: int) -> pa.Table:
        """The rows of those units."""
        return pa.table(dict(self.columns(start, stop)), schema=self.schema.to_arrow())


@dataclass(frozen=True)
class FileLayout:
    """How rows are divided into files and row groups.

    Parameters
    ----------
    files
        How many; never more than there are rows.
    row_group_size
        Rows in a Parquet row group; also how much is made at a time.
    overwrite
        Whether to replace an existing dataset.
    """

    files: int = 4
    row_group_size: int = 250_000
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_count("files", self.files)
        check_count("row_group_size", self.row_group_size)


def tables(recipe: Recipe, layout: FileLayout) -> Generator[pa.Table]:
    """The rows of all files in order, a row group at a time; close it to end its threads."""
    spans = chain.from_iterable(_file_spans(recipe, layout))
    yield from LocalExecutor().map(spans, lambda span: recipe.make(*span))


def write(recipe: Recipe, path: str | os.PathLike[str], layout: FileLayout) -> Dataset:
    """Make the files, all of them or none, and open them."""
    with Commit(path, overwrite=layout.overwrite) as commit:
        _fill(commit, recipe, layout)
    return Dataset(path)


def write_all(
    recipes: Mapping[str, Recipe], path: str | os.PathLike[str], layout: FileLayout
) -> dict[str, Dataset]:
    """Make a folder of datasets: none gets its name before the last row of all is written."""
    paths = {name: f"{os.fspath(path).rstrip('/')}/{name}" for name in recipes}
    with ExitStack() as stack:
        commits = {
            name: stack.enter_context(Commit(paths[name], overwrite=layout.overwrite))
            for name in recipes
        }
        for name, recipe in recipes.items():
            _fill(commits[name], recipe, layout)
    return {name: Dataset(paths[name]) for name in recipes}


def _fill(commit: Commit, recipe: Recipe, layout: FileLayout) -> None:
    commit.schema = recipe.schema
    files = _file_spans(recipe, layout)
    width = len(str(len(files) - 1))
    with (
        closing(tables(recipe, layout)) as chunks,
        progress("making rows", recipe.units * recipe.rows_per_unit) as bar,
    ):
        for number, spans in enumerate(files):
            name = f"part_{number:0{width}d}.parquet"
            with commit.create(name) as sink:
                commit.rows[name] = _write_file(recipe, sink, islice(chunks, len(spans)), bar)


def _write_file(recipe: Recipe, sink: pa.NativeFile, chunks: Iterable[pa.Table], bar: Bar) -> int:
    rows = 0
    dictionary = [name for name in recipe.schema.column_names if name not in recipe.plain]
    with pq.ParquetWriter(
        sink, recipe.schema.to_arrow(), compression="snappy", use_dictionary=dictionary
    ) as writer:
        for table in chunks:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            rows += table.num_rows
            bar.advance(table.num_rows)
    return rows


def _file_spans(recipe: Recipe, layout: FileLayout) -> list[list[tuple[int, int]]]:
    """Units from and to of each row group of each file, files being of nearly equal size."""
    files = min(layout.files, recipe.units)
    step = max(1, layout.row_group_size // recipe.rows_per_unit)
    bounds = [recipe.units * i // files for i in range(files + 1)]
    return [
        [(low, min(low + step, last)) for low in range(first, last, step)]
        for first, last in pairwise(bounds)
    ]


def check_count(name: str, value: object, *, least: int = 1, most: int | None = None) -> None:
    """Raise unless `value` is an integer in the range."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value >= least and (most is None or value <= most):  # type: ignore[operator]
        return
    if most is not None:
        wanted = f"an integer from {least:,} to {most:,}"
    else:
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least:,}"
    raise ArgumentError(f"{name} is {value!r}; it must be {wanted}")


def column(
    name: str, dtype: str, *tags: str, nullable: bool = False, **properties: Any
) -> ColumnSchema:
    """A column, without nulls by default."""
    return ColumnSchema(name, dtype, tags=tags, nullable=nullable, **properties)
