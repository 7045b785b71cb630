"""From a dataset and options to a `Pipeline`: which columns, which buffers, which plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tabfeed.errors import ArgumentError, LoaderError, NotFittedError
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.io.formats.parquet.row_sizes import varies
from tabfeed.io.partition import Partition, Piece
from tabfeed.io.whole_units import refuse_large_units
from tabfeed.loader.assemble.batch_ops import BatchOp, EmbeddingOperator, Padding
from tabfeed.loader.assemble.chunk import Chunk, ChunkMaker
from tabfeed.loader.assemble.in_order import can_lay
from tabfeed.loader.cache.partitions import with_cache
from tabfeed.loader.options import LoaderOptions, RowBytes, blocks_ahead, make_plan, most_bytes
from tabfeed.loader.pipeline import Pipeline, Stages
from tabfeed.loader.plan.order import Plan
from tabfeed.loader.plan.sizing import RowWeights
from tabfeed.loader.read.arrow_columns import Group, Layout, numpy_dtype
from tabfeed.loader.read.block_window import Ahead
from tabfeed.loader.read.blocks import BlockReader, block_dtypes
from tabfeed.loader.read.buffers import BufferPool
from tabfeed.loader.read.partition_reader import (
    FineCut,
    PartReader,
    TableFunction,
    columns_read,
    cut_fine,
    place_of,
)
from tabfeed.schema import ColumnSchema, Schema, Tags
from tabfeed.user_functions import explain

__all__ = [
    "Steps",
    "build_pipeline",
    "dict_layout",
    "input_names",
    "matrix_layout",
    "output_schema",
    "split_steps",
    "table_steps",
    "target_names",
]

B = TypeVar("B")
_COLUMN_BYTES = 4 * 2**20  # of a column that is streamed, where the file does not tell
_LOOKED_AT = 16  # row groups, for how long lists are
_BATCH_BYTES = 12 * 2**20  # of rows that are decoded at a time, and put together


@dataclass(frozen=True)
class Steps:
    """What happens between a table and a batch: functions of tables, then of chunks."""

    tables: tuple[TableFunction, ...] = ()
    chunks: tuple[BatchOp, ...] = ()


def split_steps(transforms: Any) -> Steps:
    """Sort a callable or a list of them by what they work on."""
    if transforms is None:
        return Steps()
    given = list(transforms) if isinstance(transforms, list | tuple) else [transforms]
    tables, chunks = [], []
    for step in given:
        if isinstance(step, EmbeddingOperator | Padding):
            chunks.append(step)
        elif callable(step):
            if chunks:
                raise ArgumentError(
                    f"{step!r} works on tables and must come before Padding and EmbeddingOperator"
                )
            tables.append(_program(step))
        else:
            raise ArgumentError(f"a transform must be a function of tables, not {step!r}")
    return Steps(tuple(tables), tuple(chunks))


def table_steps(transforms: Any, door: str) -> Steps:
    """The same for a loader whose batches are not columns by name.

    Examples
    --------
    >>> table_steps(Padding(3), "TorchAsyncItr")
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: Padding works on columns by name, which the Loader of \
tabfeed.loader.torch and of tabfeed.loader.jax gives; for lists TorchAsyncItr has sparse_names, \
sparse_max and sparse_as_dense
    """
    steps = split_steps(transforms)
    for op in steps.chunks:
        raise ArgumentError(
            f"{type(op).__name__} works on columns by name, which the Loader of "
            f"tabfeed.loader.torch and of tabfeed.loader.jax gives; for lists {door} has "
            "sparse_names, sparse_max and sparse_as_dense"
        )
    return steps


def _program(step: TableFunction) -> TableFunction:
    """A fitted workflow as the function it runs, which says what it reads; others as they are."""
    try:
        found: TableFunction = getattr(step, "program", step)
    except NotFittedError:  # it may have nothing to learn, and will say so if it has
        return step
    return found


def output_schema(dataset: Dataset, transforms: Any, steps: Steps) -> Schema:
    """The columns there are after the table functions: declared, or found by trying a few rows."""
    if not isinstance(dataset, Dataset):
        raise ArgumentError(
            f"a loader reads a tabfeed.Dataset, not {type(dataset).__name__}; wrap it: "
            "Dataset(paths) or Dataset(frame)"
        )
    if not steps.tables:
        return dataset.schema
    given = transforms if isinstance(transforms, list | tuple) else [transforms]
    last = [step for step in given if not isinstance(step, EmbeddingOperator | Padding)][-1]
    declared = _declared(last)
    if (
        isinstance(declared, Schema)
        and len(declared)
        and all(c.dtype is not None for c in declared)
    ):
        return declared
    table, place = _first_rows(dataset)
    for step in steps.tables:
        try:
            table = step(table)
        except Exception as e:
            explain(e, f"a transform, on {place}, for the columns it makes")
            raise
        if not isinstance(table, pa.Table) and hasattr(table, "to_arrow"):
            table = table.to_arrow()
        if not isinstance(table, pa.Table):
            raise LoaderError(
                f"a transform must give an Arrow table; {step!r} gave {type(table).__name__}"
            )
    found = Schema.from_arrow(table.schema)
    known = declared if isinstance(declared, Schema) else dataset.schema
    return Schema(known[c.name].with_dtype(c.dtype) if c.name in known else c for c in found)


def _declared(step: TableFunction) -> Any:
    """The schema that a transform says comes out of it."""
    try:
        return getattr(step, "output_schema", None)
    except NotFittedError:  # it may have nothing to learn
        return None


def _first_rows(dataset: Dataset, rows: int = 64) -> tuple[pa.Table, str]:
    """A few rows, of the first partition that has any, and where they lie."""
    lens = zip(dataset.partitions, dataset.partition_lens, strict=True)
    for number, (part, count) in enumerate(lens):
        if count:
            place = f"the first rows of {place_of(dataset, part, number)}"
            piece = part.pieces[0]
            if len(part.pieces) == 1 and (piece.rows or 0) > rows:
                part = Partition((replace(piece, rows=rows, whole=False),))
            table = dataset.read(part)
            if table.num_rows:  # a filter may leave nothing of so few rows
                return table.slice(0, rows), place
    return dataset.schema.to_arrow().empty_table(), "a table without rows"


def matrix_layout(
    schema: Schema, groups: Sequence[tuple[str, Sequence[str], np.dtype[Any]]]
) -> Layout:
    """A buffer for each group; list columns apart, with the dtype of their group."""
    flat, lists = [], []
    for name, columns, dtype in groups:
        scalars = [c for c in columns if not schema[c].is_list]
        lists += [(c, dtype) for c in columns if schema[c].is_list]
        for column in columns:
            _refuse_text(schema[column])
        flat.append(Group(name, tuple(scalars), np.dtype(dtype)))
    kept = tuple(g for g in flat if g.columns)
    return Layout(groups=kept, lists=tuple(lists), matrices=True)


def dict_layout(schema: Schema, columns: Iterable[str], extras: Sequence[str] = ()) -> Layout:
    """A buffer for each dtype, in the dtypes the columns have."""
    by_dtype: dict[np.dtype[Any], list[str]] = {}
    lists: list[tuple[str, np.dtype[Any]]] = []
    fixed: list[tuple[str, int, np.dtype[Any]]] = []
    for name in columns:
        column = schema[name]
        dtype = _refuse_text(column)
        if not column.is_list:
            by_dtype.setdefault(dtype, []).append(name)
        elif column.is_ragged or column.value_count is None:
            lists.append((name, dtype))
        else:
            fixed.append((name, column.value_count[0], dtype))
    groups = tuple(Group(str(d), tuple(names), d) for d, names in by_dtype.items())
    return Layout(groups, tuple(lists), tuple(fixed), tuple(extras))


def _refuse_text(column: ColumnSchema) -> np.dtype[Any]:
    leaf = column.leaf_dtype
    if leaf is None:
        raise LoaderError(f"the type of column {column.name!r} is not known; give it in the schema")
    try:
        return numpy_dtype(leaf, column.name)
    except LoaderError as e:
        raise LoaderError(str(e)) from None


def build_pipeline(
    dataset: Dataset,
    layout: Layout,
    options: LoaderOptions,
    finish: Callable[[Chunk], list[B]],
    steps: Steps,
) -> Pipeline[B]:
    """Put the parts together."""
    if not layout.columns:
        raise ArgumentError("a batch would have no columns; name some, or tag them in the schema")
    read, budget = _columns_read(dataset, layout, steps), options.budget
    at_once = refuse_large_units(
        dataset.fileset,
        read,
        budget,
        most=budget * 2 // 3,
        option="host_memory",
        error=LoaderError,
    )
    if not dataset.mapped:
        layout = replace(layout, lengths=tuple(_lengths(dataset, layout)))
    given = options
    if options.shuffle:
        dataset = dataset.at_random()
    uneven = read if any(_differ(dataset, name) for name in read) else []
    row = RowBytes(_decoded_bytes(dataset, layout), layout.row_bytes)
    if uneven:  # what a transform makes of rows is there beside them
        row = RowBytes(_mean_bytes(dataset, uneven) * (1 + bool(steps.tables)), layout.row_bytes)
    cut = cut_fine(dataset, *_most(row, options, uneven), uneven)
    if cut.slices or at_once > budget // 10:
        options = options.streaming(max(at_once, _held_bytes(dataset, cut.slices, read)))
        cut = cut_fine(dataset, *_most(row, options, uneven), uneven)
    weights = None
    if cut.nbytes is not None and not steps.tables:
        weights = RowWeights(tuple(cut.rows), tuple(cut.nbytes))
        _refuse_large_rows(dataset, cut, read, given)
    reader = PartReader(dataset, cut.partitions, cut.rows, layout, steps.tables)
    if not steps.tables:
        reader.nulls.tell_from_footers(dataset, layout, stacklevel=4)
    cached = with_cache(reader, options.cache, options.budget)
    dtypes = block_dtypes(layout, None if steps.tables or dataset.mapped else dataset.schema)
    pool = BufferPool(keep=options.budget * 2 // 3)
    plan = make_plan(cut.rows, row, options, weights)
    if uneven:
        pieces = {(p.file, p.unit): p for part in dataset.partitions for p in part.pieces}
        largest = partial(_largest_column, dataset, pieces.values(), read)
        options = _few_chunks(plan, row, weights, options, given, largest)
    in_order = can_lay(plan, layout, row, options)
    stages = Stages(
        BlockReader(cached, layout, dtypes, pool, gives_back=bool(uneven and cut.slices)),
        ChunkMaker(layout, pool),
        finish,
        steps.chunks,
        ahead=Ahead(blocks_ahead(plan, row.wide if in_order else row, options)),
        in_order=in_order,
    )
    return Pipeline(stages, plan, options)


def _most(row: RowBytes, options: LoaderOptions, uneven: Sequence[str]) -> tuple[int, int]:
    """Rows and bytes that a partition may have: fewer where all of it is copied at once."""
    nbytes = options.budget // (10 if uneven else 6)
    return max(1, nbytes // row.decoded), nbytes


def _columns_read(dataset: Dataset, layout: Layout, steps: Steps) -> list[str]:
    """The columns that are read from files."""
    wanted = columns_read(layout, steps.tables)
    known = None if wanted is None else [c for c in wanted if c in dataset.schema]
    own = dataset.fileset.schema.names
    return [c for c in dataset.columns_read(known) if c in own]


def _differ(dataset: Dataset, name: str) -> bool:
    """Whether the values of a column differ in size once decoded."""
    dtype = dataset.fileset.schema.field(name).type
    return varies(dtype) and not pa.types.is_dictionary(dtype)


def _mean_bytes(dataset: Dataset, columns: Sequence[str]) -> int:
    """About what a row of these columns takes once decoded, by all row groups."""
    units = {(p.file, p.unit) for part in dataset.partitions for p in part.pieces}
    files = dataset.fileset.files
    counts = [files[file].unit_rows[unit] for file, unit in units]
    known = sum(count or 0 for count in counts)
    rows = dataset.num_rows if None in counts else known
    pieces = (Piece(file, unit, 0, None) for file, unit in units)
    return sum(dataset.fileset.nbytes(piece, columns) or 0 for piece in pieces) // max(1, rows)


def _refuse_large_rows(
    dataset: Dataset, cut: FineCut, columns: Sequence[str], options: LoaderOptions
) -> None:
    """Refuse rows that cannot be held: as decoded, and in a batch."""
    for part, rows, nbytes in zip(cut.partitions, cut.rows, cut.nbytes or [], strict=True):
        if rows == 1 and 2 * nbytes > options.budget:
            piece = part.pieces[0]
            name = _largest_column(dataset, [piece], columns)
            raise LoaderError(
                f"row {piece.start:,} of row group {piece.unit} of {dataset.files[piece.file]} "
                f"takes {nbytes / 1e6:,.1f} MB, most of it in column {name!r}, and is there twice "
                f"while it is read: raise host_memory, which is {options.budget / 1e6:,.1f} MB, to "
                f"at least {3 * nbytes / 1e6:,.0f} MB"
            )


def _largest_column(dataset: Dataset, pieces: Iterable[Piece], columns: Sequence[str]) -> str:
    """The column with the most bytes in the units of these pieces."""
    units = list(pieces)
    files = dataset.fileset
    return max(columns, key=lambda name: sum(files.nbytes(u, [name]) or 0 for u in units))


def _few_chunks(
    plan: Plan,
    row: RowBytes,
    weights: RowWeights | None,
    options: LoaderOptions,
    given: LoaderOptions,
    largest_column: Callable[[], str],
) -> LoaderOptions:
    """So many chunks ahead as fit, where one batch is large; refused where none does."""
    rows = plan.chunk * plan.batch // plan.ranks
    size = rows * row.batch if weights is None else most_bytes(plan, weights, plan.chunk)
    largest = 0 if weights is None else weights.largest
    if 2 * size + largest > given.budget:
        raise LoaderError(
            f"a batch of {plan.batch // plan.ranks:,} rows takes up to {size / 1e6:,.1f} MB, "
            f"most of it for column {largest_column()!r}, and two of them must be held: raise "
            f"host_memory, which is {given.budget / 1e6:,.1f} MB, to at least "
            f"{(3 * size + largest) / 1e6:,.0f} MB, or take a smaller batch_size"
        )
    fits = options.budget // 3
    if size <= fits // 6:
        return options
    return replace(options, depth=max(1, min(options.ahead, fits // size - 2)))


def _held_bytes(dataset: Dataset, slices: Iterable[Piece], columns: Sequence[str]) -> int:
    """What a thread holds while it reads a slice of a row group: some pages of each column."""
    most = 0
    for file, unit in {(piece.file, piece.unit) for piece in slices}:
        source = dataset.fileset.files[file]
        if isinstance(source, ParquetFile):
            most = max(most, sum(source.held(unit, columns)))
    return (most or _COLUMN_BYTES * len(columns)) + _BATCH_BYTES


def _decoded_bytes(dataset: Dataset, layout: Layout) -> int:
    """About what a row of the columns takes once decoded."""
    known = [dataset.schema.get(name) for name in layout.columns]
    found = (_width(column, layout) for column in known if column is not None)
    return sum(found) or layout.row_bytes


def _lengths(dataset: Dataset, layout: Layout) -> Iterator[tuple[str, int]]:
    """How many values a row of each ragged column has, or bytes one that rides along.

    By the sizes of some row groups.

    Transforms are taken to leave that as it is, for columns that there are before as well.
    """
    parts = dataset.partitions if layout.lists or layout.extras else []
    some = (part.pieces[0] for part in parts[:: max(1, len(parts) // _LOOKED_AT)])
    pieces = [piece for piece in some if piece.whole or _is_parquet(dataset, piece)]
    rows = sum(_unit_rows(dataset, piece) for piece in pieces)
    own = dataset.fileset.schema.names
    for name in layout.extras:
        if rows and name in own and _differ(dataset, name):
            nbytes = sum(dataset.fileset.nbytes(piece, [name]) or 0 for piece in pieces)
            yield name, max(1, nbytes // rows)
    for name, _ in layout.lists:
        width = _value_bytes(dataset.schema.get(name))
        if rows and width is not None:
            nbytes = sum(dataset.fileset.nbytes(piece, [name]) or 0 for piece in pieces)
            yield name, max(1, round(nbytes / rows / width))


def _value_bytes(column: ColumnSchema | None) -> int | None:
    """Bytes of a value of a list column; None if it is none, or its values differ in size."""
    if column is None or not column.is_list or column.leaf_dtype is None:
        return None
    try:
        return max(1, int(column.leaf_dtype.bit_width) // 8)
    except ValueError:  # text
        return None


def _is_parquet(dataset: Dataset, piece: Piece) -> bool:
    return isinstance(dataset.fileset.files[piece.file], ParquetFile)


def _unit_rows(dataset: Dataset, piece: Piece) -> int:
    """Rows of the row group that a piece is all or some of."""
    return (piece.rows or 0) if piece.whole else dataset.fileset.files[piece.file].count(piece.unit)


def _width(column: ColumnSchema, layout: Layout) -> int:
    leaf = column.leaf_dtype
    try:
        width = max(1, leaf.bit_width // 8) if leaf is not None else 8
    except ValueError:  # text and the like
        width = 32
    if not column.is_list:
        return width
    low, high = column.value_count or (0, None)
    many = layout.length(column.name) if high is None else -(-(low + high) // 2)
    return width * many + 8


def target_names(schema: Schema, targets: Sequence[str] | None) -> list[str]:
    """The columns to be learned: as named, or as tagged."""
    if targets is None:
        return schema.select_by_tag(Tags.TARGET).column_names
    names = [targets] if isinstance(targets, str) else list(targets)
    return schema.select(names).column_names


def input_names(schema: Schema, columns: Sequence[str] | None, extras: Sequence[str]) -> list[str]:
    """The other columns: as named, or all, without those that ride along."""
    schema.select(list(extras))
    names = schema.column_names if columns is None else schema.select(list(columns)).column_names
    return [n for n in names if n not in extras]
