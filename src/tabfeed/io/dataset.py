"""A table that may be larger than memory, and may lie in a thousand files.

A `Dataset` is a value: opening one reads footers, every method that changes something
returns another, and data moves only when it is asked for. Its unit of work is the
partition, which is never larger than ``part_size`` in memory, whatever the files look like.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from tabfeed.arguments import known_arguments
from tabfeed.dtypes import as_arrow_type, format_type
from tabfeed.errors import ArgumentError, ColumnNotFoundError, SchemaError
from tabfeed.execute import Executor, LocalExecutor, current_executor
from tabfeed.execute.tasks import Titled
from tabfeed.io import looking
from tabfeed.io.filters import parse_filters
from tabfeed.io.opening import open_source
from tabfeed.io.part_size import block_size, choose_part_size
from tabfeed.io.partition import Partition, Piece, cut_by_count, cut_by_size, runs
from tabfeed.io.remarks import noted, select_columns, types_of, with_remarks
from tabfeed.io.skipping import Skipped
from tabfeed.io.source import DEFAULT_NULLS, ReadOptions
from tabfeed.io.unify import combine, conform
from tabfeed.schema import Schema
from tabfeed.trace import span

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from tabfeed.io.fetch import Fetch
    from tabfeed.io.fileset import FileSet
    from tabfeed.io.filters import Filter
    from tabfeed.io.validate import Report
    from tabfeed.io.writer import Shuffle

__all__ = ["Dataset", "TableMap"]


@dataclass(frozen=True)
class TableMap:
    """A function applied to each partition as it is read.

    ``dictionary`` are text columns it would rather have dictionary-encoded. A ``numbered`` function
    is also given the number of the partition's first row.
    """

    fn: Callable[..., pa.Table]
    columns: tuple[str, ...]
    keeps_rows: bool
    dictionary: tuple[str, ...] = ()
    numbered: bool = False


class Dataset:
    """A table in files or in memory.

    Parameters
    ----------
    source
        A path, a list of paths, a glob, a folder (Hive-partitioned or not) or any fsspec URL;
        or a pandas, Polars (eager or lazy), Arrow or Dask frame, an Arrow dataset or record
        batch reader, or a dict of arrays.
    engine
        ``"parquet"``, ``"csv"``, ``"jsonl"``, ``"ipc"``, ``"avro"`` or ``"tfrecord"``; told from
        the names of the files, or their first bytes, when not given.
    part_size
        Most memory a partition may take: ``"128MiB"`` by default.
    part_mem_fraction
        The same as a share of the GPU's memory, or of the free memory where there is no GPU.
    npartitions
        Cut into this many partitions of equal rows instead.
    schema
        Tags and other remarks for the columns; a type given here is applied while reading.
    storage_options
        For URLs, passed to the filesystem; besides, ``connections`` (most requests at a time, 8 by
        default) and ``deadline`` (seconds after which one is given up, 300).
    columns
        Only these columns, in this order.
    filters
        Only rows for which these hold: ``[("day", ">=", 3)]``, or an Arrow expression.
    on_bad_file
        ``"raise"``, or ``"skip"`` to go on without what cannot be read; `skipped` lists it. Then
        a footer is no proof, and `num_rows` and `partition_lens` read everything once.
    sep, names, header, dtypes, null_values, newlines_in_values
        How text files are read; see `tabfeed.io.ReadOptions`.

    Examples
    --------
    >>> ds = Dataset({"x": [3, 1, 2], "y": ["a", None, "c"]}, npartitions=2)
    >>> ds.num_rows, ds.npartitions, ds.partition_lens
    (3, 2, [1, 2])
    >>> ds.select(["y"]).to_arrow().to_pydict()
    {'y': ['a', None, 'c']}
    >>> Dataset({"x": [1]}, columns=["z"])
    Traceback (most recent call last):
        ...
    tabfeed.errors.ColumnNotFoundError: there is no column 'z' in the data (1 columns: x)
    """

    @known_arguments
    def __init__(
        self,
        source: Any,
        engine: str | None = None,
        *,
        part_size: int | str | None = None,
        part_mem_fraction: float | None = None,
        npartitions: int | None = None,
        schema: Schema | None = None,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        on_bad_file: Literal["raise", "skip"] = "raise",
        sep: str | None = None,
        names: Sequence[str] | None = None,
        header: int | Literal["infer"] | None = "infer",
        dtypes: Mapping[str, Any] | None = None,
        null_values: Sequence[str] = DEFAULT_NULLS,
        newlines_in_values: bool = False,
    ) -> None:
        part_size_bytes = choose_part_size(part_size, part_mem_fraction, npartitions)
        types = {name: as_arrow_type(t) for name, t in (dtypes or {}).items()}
        options = ReadOptions(
            sep=sep,
            names=None if names is None else tuple(names),
            header=header,
            dtypes=types,
            newlines_in_values=newlines_in_values,
            null_values=tuple(null_values),
            block_size=block_size(part_size_bytes),
        )
        self._files, remarks = open_source(
            source,
            engine=engine,
            options=options,
            storage_options=storage_options,
            on_bad_file=on_bad_file,
        )
        self._part_size = part_size_bytes
        self._npartitions = npartitions
        self._maps: tuple[TableMap, ...] = ()
        self._files = self._files.with_types({**types, **types_of(schema)})
        self._filter = parse_filters(filters, self._files.schema)
        everything = with_remarks(Schema.from_arrow(self._files.schema), remarks, schema)
        self.schema = everything if columns is None else select_columns(everything, columns)
        self._cut_columns = tuple(self.column_names)
        for name in self._with_filter(self.column_names):
            if name in self._files.conflicts:
                raise self._files.conflicts[name]

    # -- looking --------------------------------------------------------------------

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return self.schema.column_names

    @property
    def files(self) -> list[str]:
        """The files it reads."""
        return list(self._files.names)

    @property
    def fileset(self) -> FileSet:
        """The files as one table; for the packages of tabfeed rather than for users."""
        return self._files

    @property
    def condition(self) -> Filter | None:
        """The filter, if there is one; for the packages of tabfeed rather than for users."""
        return self._filter

    @property
    def mapped(self) -> bool:
        """Whether functions are applied to what the files hold, as `map` or a workflow does."""
        return bool(self._maps)

    @property
    def skipped(self) -> list[Skipped]:
        """What could not be read and was left out, so far."""
        return list(self._files.skips.items)

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The runs of rows that one task reads at once; `select` and `map` keep them."""
        pieces: Sequence[Piece] = self._files.units()
        if self._filter is not None:
            pieces = self._files.prune(pieces, self._filter)
        if self._npartitions is not None:
            return tuple(cut_by_count(self._files.counted(pieces), self._npartitions))
        sized = ((p, self._files.nbytes(p, self._cut_columns)) for p in pieces)
        return tuple(cut_by_size(sized, self._part_size))

    @property
    def npartitions(self) -> int:
        """How many partitions there are."""
        return len(self.partitions)

    @cached_property
    def partition_lens(self) -> list[int]:
        """Rows of each partition, exactly. Free for Parquet; text is counted once, filters run."""
        if all(m.keeps_rows for m in self._maps):
            return self._lens_in_files
        count = Titled("count", self._count_mapped)
        return list(self._work().map(self.partitions, count))

    def _count_mapped(self, partition: Partition) -> int:
        return int(self.read(partition).num_rows)

    @cached_property
    def _lens_in_files(self) -> list[int]:
        """Rows of each partition as they come out of the files, before any map."""
        if self._lens_are_free:
            return [p.rows or 0 for p in self.partitions]
        return list(self._work().map(self.partitions, Titled("count", self._count)))

    @property
    def _lens_are_free(self) -> bool:
        sure = self._filter is None and not self._files.skips.allowed
        return sure and all(p.rows is not None for p in self.partitions)

    def _count(self, partition: Partition) -> int:
        if self._files.skips.allowed:  # what cannot be read in any column does not count
            columns = self._with_filter(self._source_columns)
        elif self._filter is not None:
            columns = list(self._filter.columns)
        else:
            return sum(p.rows or 0 for p in self._files.counted(partition.pieces))
        table = self._files.read(partition, columns)
        return int((self._filter.apply(table) if self._filter else table).num_rows)

    @property
    def is_plain_parquet(self) -> bool:
        """Whether its columns lie in local Parquet files just as they are given.

        No filter, no map, no column from folder names or of another type than in some file, and
        nothing to be left out: then any reader of Parquet may read them.
        """
        if self._maps or self._filter is not None or self._files.skips.allowed:
            return False
        return self._files.are_plain_parquet

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return sum(self.partition_lens)

    # -- reading --------------------------------------------------------------------

    def read(
        self,
        partition: int | Partition,
        columns: Sequence[str] | None = None,
        *,
        dictionary: Sequence[str] = (),
    ) -> pa.Table:
        """One partition, read on the calling thread.

        Parameters
        ----------
        partition
            Its number, or the partition itself.
        columns
            Only these, in this order; all by default.
        dictionary
            Text columns to leave dictionary-encoded where the file has them so.
        """
        part = partition if isinstance(partition, Partition) else self._partition(partition)
        wanted = self.column_names if columns is None else self._check_columns(columns)
        source = self._source_columns if self._maps else wanted
        encoded = self._maps[0].dictionary if self._maps else dictionary
        table = self._files.read(part, self._with_filter(source), encoded)
        return self._finish(table, wanted, part)

    def read_by_column(
        self,
        partition: int | Partition,
        columns: Sequence[str] | None = None,
        *,
        at_once: int = 2**20,
    ) -> Iterator[pa.Table]:
        """One partition as tables of a few columns each, together those that were asked for.

        For whoever copies columns elsewhere: local Parquet files are decoded faster so. In other
        cases there is one table with all columns.

        Parameters
        ----------
        partition
            Its number, or the partition itself.
        columns
            Only these, in this order; all by default.
        at_once
            About how many decoded bytes a table may have; one column at least.

        Examples
        --------
        >>> ds = Dataset({"a": [1, 2], "b": [3, 4]})
        >>> [table.column_names for table in ds.read_by_column(0)]
        [['a', 'b']]
        """
        part = partition if isinstance(partition, Partition) else self._partition(partition)
        wanted = self.column_names if columns is None else self._check_columns(columns)
        if self._maps or self._filter is not None or not wanted:
            yield self.read(part, wanted)
            return
        yield from self._files.read_by_column(part, wanted, at_once)

    def begin_read(
        self, partition: int | Partition, columns: Sequence[str] | None = None
    ) -> list[Fetch]:
        """Begin to fetch what `read` of the same will need, as long as the result is held.

        Nothing, and the list is empty, where the files are on this machine.
        """
        part = partition if isinstance(partition, Partition) else self._partition(partition)
        wanted = self.column_names if columns is None else self._check_columns(columns)
        source = self._source_columns if self._maps else wanted
        return self._files.begin(part, self._with_filter(source))

    def _partition(self, index: int) -> Partition:
        try:
            return self.partitions[operator.index(index)]
        except IndexError:
            raise ArgumentError(
                f"there is no partition {index}: the dataset has {self.npartitions}, from 0 on"
            ) from None
        except TypeError as e:
            raise ArgumentError(f"a partition is given by its number, not by {index!r}") from e

    def _finish(self, table: pa.Table, columns: Sequence[str], part: Partition) -> pa.Table:
        """What happens to a partition after it is decoded: filter, maps, choice of columns."""
        if self._filter is not None:
            table = combine(self._filter.apply(table))
        if not self._maps:
            return table if table.column_names == list(columns) else table.select(list(columns))
        table = table.select(self._source_columns)
        for step in self._maps:
            with span("transform", rows=table.num_rows):
                table = step.fn(table, self._first_row(part)) if step.numbered else step.fn(table)
        return self._as_declared(table, columns)

    def _as_declared(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """What a map gave, as its schema says: a partition of nulls must fit the others."""
        fields = []
        for name in columns:
            index = table.schema.get_field_index(name)
            if index < 0:
                raise SchemaError(
                    f"the function given to map returned no column {name!r}, which its schema "
                    f"promises; it returned {table.column_names}"
                )
            column, real = self.schema[name], table.schema.field(index)
            fields.append(real if column.dtype is None else real.with_type(column.dtype))
        return conform(table, pa.schema(fields), where="what map returned")

    def _first_row(self, part: Partition) -> int:
        """Rows of the partitions before this one, as they come out of the files."""
        return self._first_rows_of[part]

    @cached_property
    def _first_rows_of(self) -> dict[Partition, int]:
        starts = accumulate(self._lens_in_files, initial=0)
        return dict(zip(self.partitions, starts, strict=False))

    @property
    def _source_columns(self) -> list[str]:
        """The columns that must be read from the files."""
        if not self._maps:
            return self.column_names
        return list(self._maps[0].columns)

    def _with_filter(self, columns: Sequence[str]) -> list[str]:
        """These columns and the ones the filter looks at."""
        looked_at = self._filter.columns if self._filter else ()
        return list(dict.fromkeys([*columns, *looked_at]))

    def _check_columns(self, columns: Sequence[str]) -> list[str]:
        return select_columns(self.schema, columns).column_names

    def iter_tables(
        self, columns: Sequence[str] | None = None, *, executor: Executor | None = None
    ) -> Iterator[pa.Table]:
        """Every partition in order, a few read ahead on threads, memory bounded."""
        wanted = self.column_names if columns is None else self._check_columns(columns)
        work = self._work(executor)
        for sliced, group in groupby(runs(self.partitions), key=lambda run: len(run) > 1):
            group_runs = list(group)
            if sliced:  # slices of one unit follow each other: decode it once, from start to end
                for run in group_runs:
                    yield from self._stream(run, wanted)
            else:
                read = Titled("read", partial(self.read, columns=wanted))
                yield from work.map([r[0] for r in group_runs], read)

    def _stream(self, run: Sequence[Partition], wanted: list[str]) -> Iterator[pa.Table]:
        source = self._source_columns if self._maps else wanted
        tables = self._files.stream(run, self._with_filter(source))
        for part, table in zip(run, tables, strict=True):
            yield self._finish(table, wanted, part)

    def to_iter(
        self,
        columns: Sequence[str] | None = None,
        *,
        indices: Sequence[int] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        epochs: int = 1,
    ) -> Iterator[pa.Table]:
        """Partitions as Arrow tables, chosen by number, in random order if asked."""
        order = np.arange(self.npartitions) if indices is None else np.asarray(indices)
        for epoch in range(epochs):
            if shuffle:
                order = np.random.default_rng([seed, epoch]).permutation(order)
            if indices is None and not shuffle:
                yield from self.iter_tables(columns)
            else:
                yield from LocalExecutor().map(order, lambda i: self.read(int(i), columns))

    def to_arrow(self) -> pa.Table:
        """All of it in memory, as an Arrow table."""
        tables = [t for t in self.iter_tables() if t.num_rows]
        return pa.concat_tables(tables) if tables else self._empty()

    def to_polars(self) -> pl.DataFrame:
        """All of it in memory, as a Polars frame."""
        return looking.polars_frame(self, [self.to_arrow()])

    compute = to_polars

    def to_pandas(self) -> pd.DataFrame:
        """All of it in memory, as a pandas frame."""
        looking.need("pandas", "pandas", "pandas frames")
        return self.to_arrow().to_pandas()

    def to_ddf(self, columns: Sequence[str] | None = None) -> Any:
        """As a Dask DataFrame with the same partitions."""
        return looking.dask_frame(self if columns is None else self.select(columns))

    def head(self, n: int = 5) -> pl.DataFrame:
        """The first rows, to look at."""
        return looking.head(self, n)

    def sample(self, n: int = 5, *, seed: int = 0) -> pl.DataFrame:
        """`n` rows drawn without repetition, in the order they have in the data."""
        return looking.sample(self, n, seed)

    def _empty(self) -> pa.Table:
        if any(c.dtype is None for c in self.schema):
            return self.read(0).slice(0, 0)
        return self.schema.to_arrow().empty_table()

    # -- who reads it ---------------------------------------------------------------

    _executor: Executor | None = None

    def _on(self, executor: Executor | None) -> Dataset:
        """The same data, read by another executor where nobody says who is to."""
        return self if executor is self._executor else self._derive(_executor=executor)

    def _work(self, executor: Executor | None = None) -> Executor:
        return executor or self._executor or LocalExecutor()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_executor": None}  # elsewhere, whoever is there

    # -- other datasets made from it ------------------------------------------------

    def _derive(self, **changes: Any) -> Dataset:
        new = object.__new__(Dataset)
        lens = {"partition_lens", "_lens_in_files", "_first_rows_of"}
        vars(new).update({k: v for k, v in vars(self).items() if k not in lens})
        vars(new).update(changes)
        return new

    def select(self, columns: Sequence[str]) -> Dataset:
        """Only these columns, in this order."""
        return self._derive(schema=select_columns(self.schema, columns))

    def with_schema(self, schema: Schema) -> Dataset:
        """The same data with other tags and remarks."""
        for column in self.schema:
            if column.name not in schema:
                raise ColumnNotFoundError(column.name, schema.column_names, where="the new schema")
            given = schema[column.name].dtype
            if given is not None and column.dtype is not None and given != column.dtype:
                raise SchemaError(
                    f"column {column.name!r} is {format_type(column.dtype)}, and "
                    f"{format_type(given)} in the new schema; a type is given when the dataset is "
                    "opened, or made by map"
                )
        known = Schema(noted(c, schema[c.name]) for c in self.schema)
        return self._derive(schema=known)

    def map(
        self,
        fn: Callable[..., pa.Table],
        *,
        schema: Schema | None = None,
        columns: Sequence[str] | None = None,
        keeps_rows: bool = True,
        dictionary: Sequence[str] = (),
        numbered: bool = False,
    ) -> Dataset:
        """Apply a function to each partition as it is read.

        Parameters
        ----------
        fn
            From table to table.
        schema
            What comes out; found by trying `fn` on no rows when not given.
        columns
            The columns `fn` needs; all by default.
        keeps_rows
            False if `fn` may change the number of rows, so that it must run to count them.
        dictionary
            Text columns to hand to `fn` dictionary-encoded where the file has them so.
        numbered
            Call ``fn(table, n)``, n being the number of the partition's first row in the dataset.
        """
        needed = self.column_names if columns is None else self._check_columns(columns)
        if schema is None:
            nothing = self.select(needed)._empty()
            schema = Schema.from_arrow((fn(nothing, 0) if numbered else fn(nothing)).schema)
        encoded = () if self._maps else tuple(c for c in dictionary if c in needed)
        step = TableMap(
            _SelectThen(tuple(needed), fn) if self._maps else fn,
            tuple(needed),
            keeps_rows,
            encoded,
            numbered,
        )
        return self._derive(schema=schema, _maps=(*self._maps, step))

    def repartition(
        self, npartitions: int | None = None, partition_size: int | str | None = None
    ) -> Dataset:
        """The same rows cut into other partitions, by number or by size."""
        size = choose_part_size(partition_size, None, npartitions)
        if npartitions is None and partition_size is None:
            raise ArgumentError("say npartitions= or partition_size=")
        new = self._derive(_part_size=size, _npartitions=npartitions)
        vars(new).pop("partitions", None)
        new._cut_columns = tuple(self._source_columns)
        return new

    def persist(self) -> Dataset:
        """The same dataset, held in memory."""
        return Dataset(self.to_arrow(), schema=self.schema, npartitions=max(1, self.npartitions))

    def shuffle_by_keys(
        self,
        keys: Sequence[str] | str,
        *,
        npartitions: int | None = None,
        memory_limit: int | float | str | None = None,
        executor: Executor | None = None,
    ) -> Dataset:
        """Bring rows with equal keys into one partition; order within a key is kept.

        The result lies on disk in a temporary folder that goes with the dataset.

        Parameters
        ----------
        keys
            The columns whose equal values are to meet.
        npartitions
            How many partitions; as many as there are, or as the data would fill, by default.
        memory_limit
            What may be held in memory meanwhile; a quarter of what is free by default.
        executor
            Who does the work; see `tabfeed.execute.choice` for who does it by default.
        """
        from tabfeed.io.reshape import shuffle_by_keys

        who = executor or self._executor or current_executor()
        return shuffle_by_keys(
            self, keys, npartitions=npartitions, memory_limit=memory_limit, executor=who
        )

    @staticmethod
    def merge(
        left: Dataset,
        right: Dataset,
        *,
        on: Sequence[str] | str | None = None,
        left_on: Sequence[str] | str | None = None,
        right_on: Sequence[str] | str | None = None,
        how: Literal["inner", "left", "right", "outer", "semi", "anti"] = "inner",
        suffix: str = "_right",
        memory_limit: int | float | str | None = None,
    ) -> Dataset:
        """Join two datasets, out of core. The result lies in a temporary folder."""
        from tabfeed.io.join import JoinKeys, merge

        keys = JoinKeys.of(on, left_on, right_on)
        return merge(left, right, keys, how=how, suffix=suffix, memory_limit=memory_limit)

    # -- checking and writing -------------------------------------------------------

    def validate(self) -> Report:
        """Read every byte and say what is damaged or slow to read."""
        from tabfeed.io.validate import validate

        return validate(self)

    @known_arguments
    def to_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        shuffle: Shuffle | str | None = None,
        seed: int = 0,
        output_files: int | Sequence[str] | Mapping[str, Sequence[int]] | None = None,
        out_files_per_proc: int | None = None,
        preserve_files: bool = False,
        partition_on: Sequence[str] | str | None = None,
        row_group_size: int | None = None,
        compression: str | None = "snappy",
        layout: Literal["compact", "fast"] = "compact",
        overwrite: bool = False,
        memory_limit: int | float | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        executor: Executor | None = None,
    ) -> Dataset:
        """Write it as Parquet, all or nothing, and return what was written.

        Parameters
        ----------
        path
            The folder. If it holds a dataset already, `overwrite` must be True.
        shuffle
            ``PER_PARTITION``: partitions in random order, rows shuffled within each.
            ``PER_WORKER``: rows shuffled within each output file.
            ``FULL``: one random permutation of all rows, however many.
        seed
            Of the shuffle: the same seed, the same order, whatever the memory and the threads.
        output_files
            How many files, or their names, or which partitions go into which file. One file a
            partition by default. They are read back in the order given.
        out_files_per_proc
            How many files this process writes; the same as `output_files` here.
        preserve_files
            One output file for each input file, under its name.
        partition_on
            Columns that become folders, ``key=value``: numbers, text, booleans, dates, timestamps.
        row_group_size
            Rows in a row group; by default what makes about 64 MiB, 1 M rows at most.
        compression
            Any codec Parquet has, or None.
        layout
            ``"fast"`` writes plain, uncompressed pages that decode at the speed of a copy, for data
            that a loader reads many times. Columns without nulls come back declared so, and page
            checksums are verified by `validate` alone.
        overwrite
            Replace the dataset that is there.
        memory_limit
            What shuffling may hold in memory besides what reading itself takes; a quarter of what
            is free by default. What does not fit waits on disk, beside the output.
        storage_options
            For URLs, passed to the filesystem.
        executor
            Who reads the partitions and writes the files: by default the cluster of the workflow
            that made this dataset, else as `tabfeed.execute.choice` says: threads, unless a cluster
            was set.
        """
        from tabfeed.io.pages import PageOptions
        from tabfeed.io.writer import WriteOptions, write_parquet

        options = WriteOptions(
            shuffle=shuffle,
            seed=seed,
            output_files=output_files if output_files is not None else out_files_per_proc,
            preserve_files=preserve_files,
            partition_on=partition_on,
            pages=PageOptions(row_group_size, compression, layout),
            memory_limit=memory_limit,
        )
        if output_files is not None and out_files_per_proc is not None:
            raise ArgumentError("give output_files= or out_files_per_proc=, not both")
        write_parquet(
            self,
            path,
            options,
            overwrite=overwrite,
            storage_options=storage_options,
            executor=executor or self._executor or current_executor(),
        )
        return Dataset(path, engine="parquet", storage_options=storage_options)

    # -- text -----------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Dataset({self._summary()})\n{self.schema!r}"

    def _repr_html_(self) -> str:
        return f"<p><b>Dataset</b>: {escape(self._summary())}</p>{self.schema._repr_html_()}"

    def _summary(self) -> str:
        files = f"{len(self.files):,} files" if len(self.files) != 1 else self.files[0]
        free = self._lens_are_free and all(m.keeps_rows for m in self._maps)
        rows = f"{self.num_rows:,} rows" if free else "rows not counted"
        return f"{rows}, {len(self.schema)} columns, {self.npartitions:,} partitions, {files}"


@dataclass(frozen=True)
class _SelectThen:
    """A map that looks at some columns of the map before it."""

    columns: tuple[str, ...]
    fn: Callable[..., pa.Table]

    def __call__(self, table: pa.Table, *number: int) -> pa.Table:
        return self.fn(table.select(list(self.columns)), *number)
