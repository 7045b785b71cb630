"""Dataset: a table that may be larger than memory and span a thousand files.

A `Dataset` is immutable: opening one reads footers, every method that changes something returns
another, and data is read only when a method needs it. Its unit of work is the partition, which
takes at most ``part_size`` in memory, whatever the files look like.

The class is what users see. It holds one value, a `tabfeed.io.table.PartitionedTable`, and leaves
the work to the modules below: `tabfeed.io.open_table` opens, `tabfeed.io.table` reads,
`tabfeed.io.write` and `tabfeed.io.shuffle` write and shuffle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from tabfeed.arguments import known_arguments
from tabfeed.display import box
from tabfeed.errors import ArgumentError, ColumnNotFoundError, SchemaError
from tabfeed.execute import Executor, LocalExecutor, current_executor
from tabfeed.io.fileset import FileSet, Skipped
from tabfeed.io.formats.base import DEFAULT_NULLS, ReadOptions, block_size
from tabfeed.io.partition import DEFAULT_PART_SIZE, Partition, choose_part_size
from tabfeed.io.table import PartitionedTable, TableMap, call_map
from tabfeed.schema import Schema
from tabfeed.schema.column import counted
from tabfeed.schema.dtypes import as_arrow_type, format_type

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from tabfeed.io.filters import Filter
    from tabfeed.io.inspect import Report
    from tabfeed.io.storage.fetch import Fetch
    from tabfeed.io.write.writer import Shuffle

__all__ = ["Dataset", "convert_tfrecords_to_parquet"]

_COMPRESSIONS = (None, "", "GZIP", "ZLIB")


class Dataset:
    """A table in files or in memory.

    Parameters
    ----------
    source
        A path, a list of paths, a glob, a folder (Hive-partitioned or not) or any fsspec URL;
        or a pandas, Polars (eager or lazy), Arrow or Dask frame, an Arrow dataset or record
        batch reader, or a dict of arrays.
    engine
        ``"parquet"``, ``"csv"``, ``"jsonl"``, ``"ipc"``, ``"avro"`` or ``"tfrecord"``; by
        default it follows from the files' names or first bytes.
    part_size
        Most memory a partition may take: ``"128MiB"`` by default. A single row that is larger is a
        partition of its own. Reading a slice of a larger row group takes up to twice as much for a
        moment, and Arrow itself some 50 MB.
    part_mem_fraction
        The same as a share of the GPU's memory, or of the free memory where there is no GPU.
    npartitions
        Cut into this many partitions of equal rows instead.
    schema
        Tags and properties of the columns; a type given here is applied while reading.
    storage_options
        For URLs, passed to the filesystem; besides, ``connections`` (most requests at a time, 8 by
        default) and ``deadline`` (seconds after which one is given up, 300).
    columns
        Only these columns, in this order. By default all but those that pandas stored as an index,
        which come where they are named, here or in `schema`.
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
        from tabfeed.io.open_table import open_table  # all formats; derived datasets need none

        size = choose_part_size(part_size, part_mem_fraction, npartitions)
        options = ReadOptions(
            sep=sep,
            names=None if names is None else tuple(names),
            header=header,
            dtypes={name: as_arrow_type(t) for name, t in (dtypes or {}).items()},
            newlines_in_values=newlines_in_values,
            null_values=tuple(null_values),
            block_size=block_size(size),
        )
        self._table = open_table(
            source,
            engine=engine,
            options=options,
            part_size=size,
            npartitions=npartitions,
            schema=schema,
            storage_options=storage_options,
            columns=columns,
            filters=filters,
            on_bad_file=on_bad_file,
        )

    @classmethod
    def of(cls, table: PartitionedTable) -> Dataset:
        """The dataset with this value; for the packages of tabfeed rather than for users."""
        dataset = cls.__new__(cls)
        dataset._table = table
        return dataset

    @property
    def table(self) -> PartitionedTable:
        """What this dataset is; for the packages of tabfeed rather than for users."""
        return self._table

    # -- what it is -------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """The columns that come out."""
        return self._table.schema

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return self._table.schema.column_names

    @property
    def index_columns(self) -> list[str]:
        """Columns of a pandas index, which are left out unless ``columns=`` names them."""
        return [c.name for c in self._table.index if c.name not in self.schema]

    @property
    def files(self) -> list[str]:
        """The files it reads."""
        return list(self.fileset.names)

    @property
    def fileset(self) -> FileSet:
        """The files as one table; for the packages of tabfeed rather than for users."""
        return self._table.files

    @property
    def condition(self) -> Filter | None:
        """The filter, if there is one; for the packages of tabfeed rather than for users."""
        return self._table.condition

    @property
    def mapped(self) -> bool:
        """Whether functions are applied to what the files hold, as `map` or a workflow does."""
        return bool(self._table.maps)

    @property
    def skipped(self) -> list[Skipped]:
        """The files and row groups left out so far because they cannot be read."""
        return list(self.fileset.skips.items)

    @property
    def is_plain_parquet(self) -> bool:
        """Whether its columns are those of local Parquet files, unchanged.

        No filter, no map, no column from folder names or of another type than in some file, and
        nothing to be left out: then any reader of Parquet may read them.
        """
        if self.mapped or self.condition is not None or self.fileset.skips.allowed:
            return False
        return self.fileset.are_plain_parquet

    # -- partitions and rows ----------------------------------------------------------

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The runs of rows that one task reads at once; `select` and `map` keep them."""
        return self._table.partitions

    @property
    def npartitions(self) -> int:
        """How many partitions there are."""
        return self._table.npartitions

    @property
    def partition_lens(self) -> list[int]:
        """Rows of each partition, exactly. Free for Parquet; text is counted once, filters run."""
        return self._table.partition_lens

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return sum(self.partition_lens)

    @property
    def cut_by_default(self) -> bool:
        """Whether partitions have the default size."""
        cut = self._table.partitioning
        return cut.npartitions is None and cut.part_size == DEFAULT_PART_SIZE

    # -- reading ----------------------------------------------------------------------

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
        return self._table.read(partition, columns, dictionary=dictionary)

    def read_by_column(
        self,
        partition: int | Partition,
        columns: Sequence[str] | None = None,
        *,
        at_once: int = 2**20,
    ) -> Iterator[pa.Table]:
        """One partition as tables of a few columns each, which together are those named.

        For a caller that copies columns elsewhere: local Parquet files are decoded faster so. In
        other cases there is one table with all columns.

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
        >>> from tabfeed import Dataset
        >>> ds = Dataset({"a": [1, 2], "b": [3, 4]})
        >>> [table.column_names for table in ds.read_by_column(0)]
        [['a', 'b']]
        """
        return self._table.read_by_column(partition, columns, at_once)

    def begin_read(
        self, partition: int | Partition, columns: Sequence[str] | None = None
    ) -> list[Fetch]:
        """Begin to fetch what `read` of the same will need, as long as the result is held.

        The list is empty where the files are on this machine.
        """
        return self._table.begin_read(partition, columns)

    def columns_read(self, columns: Sequence[str] | None = None) -> list[str]:
        """The columns that are read from the files if these are to come out; all by default."""
        return self._table.columns_read(columns)

    def iter_tables(
        self, columns: Sequence[str] | None = None, *, executor: Executor | None = None
    ) -> Iterator[pa.Table]:
        """Every partition in order, a few read ahead on threads, memory bounded."""
        return self._table.iter_tables(columns, executor=executor)

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
        tables = [t for t in self._table.iter_tables() if t.num_rows]
        return pa.concat_tables(tables) if tables else self._table.empty()

    def to_polars(self) -> pl.DataFrame:
        """All of it in memory, as a Polars frame."""
        from tabfeed.io import frames

        return frames.polars_frame(self._table, [self.to_arrow()])

    compute = to_polars

    def to_pandas(self) -> pd.DataFrame:
        """All of it in memory, as a pandas frame."""
        from tabfeed.io import frames

        frames.need("pandas", "pandas", "pandas frames")
        return self.to_arrow().to_pandas()

    def to_ddf(self, columns: Sequence[str] | None = None) -> Any:
        """As a Dask DataFrame with the same partitions."""
        from tabfeed.io import frames

        return frames.dask_frame(self._table if columns is None else self._table.select(columns))

    def head(self, n: int = 5) -> pl.DataFrame:
        """The first rows, to look at."""
        from tabfeed.io import frames

        return frames.head(self._table, n)

    def sample(self, n: int = 5, *, seed: int = 0) -> pl.DataFrame:
        """`n` rows drawn without repetition, in the order they have in the data."""
        from tabfeed.io import frames

        return frames.sample(self._table, n, seed)

    def validate(self) -> Report:
        """Read every byte and say what is damaged or slow to read."""
        from tabfeed.io.inspect import validate

        return validate(self._table)

    # -- other datasets made from it ----------------------------------------------------

    def select(self, columns: Sequence[str]) -> Dataset:
        """Only these columns, in this order; a pandas index among them if it is named."""
        return self.of(self._table.select(columns))

    def with_schema(self, schema: Schema) -> Dataset:
        """The same data with other tags and properties."""
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
        from tabfeed.io.open_table import with_metadata

        return self.of(replace(self._table, schema=with_metadata(self.schema, schema, None)))

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

        A limit of memory (a loader's `host_memory`, or `memory_limit`) may cut partitions further.
        A function that must see them whole, such as one that compares rows of a group, says
        ``keeps_rows=False``. After `shuffle_by_keys` none is cut.

        Parameters
        ----------
        fn
            From table to table. How much memory its results take is estimated by running it on up
            to 256 rows of each of four row groups, wherever there is a limit.
        schema
            What comes out; found by trying `fn` on no rows when not given.
        columns
            The columns `fn` needs; all by default.
        keeps_rows
            False if `fn` may change the number of rows, so that it must run to count them, or if it
            must see partitions whole.
        dictionary
            Text columns to hand to `fn` dictionary-encoded where the file has them so.
        numbered
            Call ``fn(table, n)``, n being the number of the partition's first row in the dataset.
        """
        table = self._table
        needed = tuple(table.named(columns))
        if schema is None:
            nothing = table.select(needed).empty()
            made = call_map(fn, nothing, *((0,) if numbered else ()))
            schema = Schema.from_arrow(made.schema)
        encoded = () if table.maps else tuple(c for c in dictionary if c in needed)
        step = TableMap(fn, needed, keeps_rows, encoded, numbered)
        return self.of(replace(table, schema=schema, maps=(*table.maps, step)))

    def repartition(
        self, npartitions: int | None = None, partition_size: int | str | None = None
    ) -> Dataset:
        """The same rows cut into other partitions, by number or by size."""
        return self.of(self._table.repartition(npartitions, partition_size))

    def in_smaller_partitions(self, nbytes: int) -> Dataset:
        """The same rows in partitions of at most `nbytes`, unless a map may change their number.

        For the packages of tabfeed rather than for users, who have `repartition`.
        """
        return self.of(self._table.in_smaller_partitions(nbytes))

    def with_partitions(self, partitions: Sequence[Partition]) -> Dataset:
        """These partitions alone; for the packages of tabfeed rather than for users."""
        return self.of(self._table.with_partitions(partitions))

    def on(self, executor: Executor | None) -> Dataset:
        """The same data, read by another executor where a call does not say.

        For the packages of tabfeed rather than for users, who pass ``executor=``.
        """
        return self.of(self._table.on(executor))

    def at_random(self) -> Dataset:
        """The same data for partitions read in random order: no file stays open between two."""
        return self.of(self._table.at_random())

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

        The result is in a temporary folder on disk, which is removed with the dataset.

        Parameters
        ----------
        keys
            The columns whose equal values are to meet.
        npartitions
            How many partitions; as many as there are, or as the data would fill, by default.
        memory_limit
            What may be held in memory meanwhile; a quarter of what is free by default.
        executor
            Who does the work; by default `tabfeed.execute.current_executor`.
        """
        from tabfeed.io.shuffle.by_keys import shuffle_by_keys

        grouped = shuffle_by_keys(
            self._table,
            keys,
            npartitions=npartitions,
            memory_limit=memory_limit,
            executor=executor or self._table.executor or current_executor(),
        )
        return self.of(grouped)

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
        """Join two datasets, out of core. The result is in a temporary folder."""
        from tabfeed.io.shuffle.by_keys import JoinKeys, merge

        keys = JoinKeys.of(on, left_on, right_on)
        joined = merge(
            left.table, right.table, keys, how=how, suffix=suffix, memory_limit=memory_limit
        )
        return Dataset.of(joined)

    # -- writing ----------------------------------------------------------------------

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
            Most memory that partitions in work, shuffling and files being written may take
            together; a quarter of what is free by default. What does not fit waits on disk, beside
            the output. Arrow itself takes some 50 MB, however small it is. A small limit makes
            small row groups, unless `row_group_size` says how large. Partitions stay as they are
            (see `part_size`) for ``PER_PARTITION``, and where a function mapped over them needs
            them whole or numbered (see `map`). A row or page of Parquet that takes over half of it
            is refused before it is read.
        storage_options
            For URLs, passed to the filesystem.
        executor
            Who reads the partitions and writes the files: by default the cluster of the workflow
            that made this dataset, else `tabfeed.execute.current_executor`: threads, unless a
            cluster was set.
        """
        from tabfeed.io.formats.parquet.pages import PageOptions
        from tabfeed.io.write.writer import WriteOptions, write_parquet

        if output_files is not None and out_files_per_proc is not None:
            raise ArgumentError("give output_files= or out_files_per_proc=, not both")
        options = WriteOptions(
            shuffle=shuffle,
            seed=seed,
            output_files=output_files if output_files is not None else out_files_per_proc,
            preserve_files=preserve_files,
            partition_on=partition_on,
            pages=PageOptions(row_group_size, compression, layout),
            memory_limit=memory_limit,
        )
        write_parquet(
            self._table,
            path,
            options,
            overwrite=overwrite,
            storage_options=storage_options,
            executor=executor or self._table.executor or current_executor(),
        )
        return Dataset(path, engine="parquet", storage_options=storage_options)

    # -- text ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Dataset({', '.join(self._summary())})\n{self.schema!r}"

    def _repr_html_(self) -> str:
        return box("Dataset", self._summary(), self.schema.html_table())

    def _summary(self) -> list[str]:
        files = f"{len(self.files):,} files" if len(self.files) != 1 else self.files[0]
        free = self._table.partitioning.counted and self._table.keeps_rows
        rows = counted(self.num_rows, "row") if free else "rows not counted"
        return [
            rows,
            counted(len(self.schema), "column"),
            counted(self.npartitions, "partition"),
            files,
        ]


def convert_tfrecords_to_parquet(
    filenames: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output_dir: str | os.PathLike[str],
    compression_type: Literal["", "GZIP", "ZLIB"] | None = None,
    *,
    chunks: int | None = None,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    on_bad_file: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
) -> Dataset:
    """Write TFRecord files of Examples as Parquet, and return what was written.

    Streams the data; the folder appears only once it is complete. TensorFlow is not needed. For
    other formats, and to choose files and a shuffle, use `Dataset.to_parquet`.

    Parameters
    ----------
    filenames
        A path, a list of paths, a glob, a folder or a URL.
    output_dir
        The folder to write.
    compression_type
        Accepted for old code and not needed: the files themselves say.
    chunks
        Rows in a row group; by default what makes about 64 MiB.
    columns
        Only these features, in this order.
    dtypes
        Types by feature; the rest are inferred from the first records of each file.
    on_bad_file
        ``"raise"``, or ``"skip"`` to go on without what cannot be read.
    overwrite
        Replace the dataset that is there.

    Examples
    --------
    >>> convert_tfrecords_to_parquet("train*.tfrecord", "train", "BZIP2")
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: compression_type is 'BZIP2'; it must be "", "GZIP" or "ZLIB"
    """
    if compression_type not in _COMPRESSIONS:
        raise ArgumentError(
            f'compression_type is {compression_type!r}; it must be "", "GZIP" or "ZLIB"'
        )
    records = Dataset(
        filenames, engine="tfrecord", columns=columns, dtypes=dtypes, on_bad_file=on_bad_file
    )
    return records.to_parquet(output_dir, row_group_size=chunks, overwrite=overwrite)
