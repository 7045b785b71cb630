"""From a dataset and options to a `Pipeline`: which columns, which buffers, which plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tabfeed.arguments import explain
from tabfeed.errors import ArgumentError, LoaderError, NotFittedError
from tabfeed.io.dataset import Dataset
from tabfeed.io.partition import Partition
from tabfeed.loader.assemble.batch_ops import BatchOp, EmbeddingOperator, Padding
from tabfeed.loader.assemble.chunk import Chunk, ChunkMaker
from tabfeed.loader.host_memory import RowWeights, plan_host_memory
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Ahead, Pipeline, Stages
from tabfeed.loader.plan import Plan
from tabfeed.loader.read.arrow_columns import Group, Layout, numpy_dtype
from tabfeed.loader.read.blocks import BlockReader, block_dtypes
from tabfeed.loader.read.buffers import BufferPool
from tabfeed.loader.read.partition_reader import (
    PartReader,
    ReadsParts,
    TableFunction,
    columns_read,
    describe_partition,
    made_table,
)
from tabfeed.loader.row_sizes import RowSizes, with_lengths
from tabfeed.schema import ColumnSchema, Schema, Tags

B = TypeVar("B")
Assemble = Callable[[Stages[B], Plan, LoaderOptions], Pipeline[B]]
_ENDS = ("__values", "__offsets", "__mask")  # of the columns that a ragged one comes as


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


def table_steps(transforms: Any, loader: str) -> Steps:
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
            f"tabfeed.loader.torch and of tabfeed.loader.jax gives; for lists {loader} has "
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
    table, where = _first_rows(dataset)
    for step in steps.tables:
        try:
            table = step(table)
        except Exception as e:
            explain(e, f"a transform, on {where}, for the columns it makes")
            raise
        table = made_table(table, step)
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
            where = f"the first rows of {describe_partition(dataset, part, number)}"
            piece = part.pieces[0]
            if len(part.pieces) == 1 and (piece.rows or 0) > rows:
                part = Partition((replace(piece, rows=rows, whole=False),))
            table = dataset.read(part)
            if table.num_rows:  # a filter may leave nothing of so few rows
                return table.slice(0, rows), where
    return dataset.schema.to_arrow().empty_table(), "a table without rows"


def matrix_layout(
    schema: Schema, groups: Sequence[tuple[str, Sequence[str], np.dtype[Any]]]
) -> Layout:
    """A buffer for each group; list columns apart, with the dtype of their group."""
    flat: list[Group] = []
    lists: list[tuple[str, np.dtype[Any]]] = []
    for name, columns, dtype in groups:
        scalars = []
        for column in (schema[c] for c in columns):
            _refuse_text(column)
            if column.is_list:
                lists.append((column.name, dtype))
            else:
                scalars.append(column.name)
        if scalars:
            flat.append(Group(name, tuple(scalars), np.dtype(dtype)))
    return Layout(groups=tuple(flat), lists=tuple(lists), matrices=True)


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
    return numpy_dtype(leaf, column.name)


def build_pipeline(
    dataset: Dataset,
    layout: Layout,
    options: LoaderOptions,
    finish: Callable[[Chunk], list[B]],
    steps: Steps,
    assemble: Assemble[B] = Pipeline,
) -> Pipeline[B]:
    """Plan what is read, in which order and into which buffers; `assemble` makes it a pipeline.

    On a GPU another function than `Pipeline` does.
    """
    if not layout.columns:
        raise ArgumentError("a batch would have no columns; name some, or tag them in the schema")
    from tabfeed.io.memory_needs import refuse_large_units

    table, given = dataset.table, options.budget
    wanted = columns_read(layout, steps.tables)
    names = table.schema.column_names
    known = None if wanted is None else [c for c in wanted if c in names]
    own = table.files.schema.names
    read = [c for c in table.columns_read(known) if c in own]  # from the files
    at_once = refuse_large_units(
        table.files,
        [piece for partition in table.partitions for piece in partition.pieces],
        read,
        given,
        most=given * 2 // 3,
        option="host_memory",
        error=LoaderError,
    )
    seen, transformed = None, bool(table.maps or steps.tables)
    if transformed:
        seen = table.sampled(names if wanted is None else wanted, steps.tables)
    layout = with_lengths(layout, dataset, read, seen)
    if options.shuffle:
        dataset = dataset.at_random()
    sizes = RowSizes.of(dataset, read, layout, transformed=transformed, seen=seen)
    dataset, cut = sizes.cut(options)
    if cut.slices or at_once > given // 10:
        given_to_functions = given // 10 if transformed else 0  # and what they make
        options = options.streaming(max(at_once, sizes.held(cut.slices) + given_to_functions))
        dataset, cut = sizes.cut(options)
    weights = None
    if cut.nbytes is not None and not steps.tables:
        weights = RowWeights(tuple(cut.rows), tuple(cut.nbytes))
        sizes.refuse_large_rows(cut, given)
    elif seen is not None and sizes.uneven:  # on average: how made rows differ is not known
        batches = tuple(rows * sizes.row.batch for rows in cut.rows)
        weights = RowWeights(tuple(cut.rows), batches)
    memory = plan_host_memory(
        cut.rows,
        sizes.row,
        layout,
        options,
        weights=weights,
        largest_column=sizes.largest_column,
        given=given,
    )
    reader = PartReader(dataset, cut.partitions, cut.rows, layout, steps.tables)
    if not steps.tables:
        reader.nulls.warn_from_footers(dataset, layout, stacklevel=4)
    budget = options.budget  # less than was given, where row groups are read in slices
    parts: ReadsParts = reader
    if options.cache is not None:
        from tabfeed.loader.read.cache import with_cache

        parts = with_cache(reader, options.cache, budget)
    dtypes = block_dtypes(layout, None if transformed else table.schema)
    pool = BufferPool(keep=budget * 2 // 3)
    gives_back = bool((sizes.uneven or sizes.transformed) and cut.slices)
    stages = Stages(
        BlockReader(parts, layout, dtypes, pool, gives_back=gives_back),
        ChunkMaker(layout, pool),
        finish,
        steps.chunks,
        ahead=Ahead(memory.blocks_ahead),
        in_order=memory.in_order,
    )
    return assemble(stages, memory.plan, memory.options)


def target_names(schema: Schema, targets: Sequence[str] | None) -> list[str]:
    """The columns to be learned: as named, or as tagged."""
    if targets is None:
        return schema.select_by_tag(Tags.TARGET).column_names
    names = [targets] if isinstance(targets, str) else list(targets)
    return schema.select(names).column_names


def input_names(schema: Schema, columns: Sequence[str] | None, extras: Sequence[str]) -> list[str]:
    """The other columns: as named, or all, without those that pass through."""
    schema.select(list(extras))
    names = schema.column_names if columns is None else schema.select(list(columns)).column_names
    return [n for n in names if n not in extras]


@dataclass(frozen=True)
class DictColumns:
    """What is in a batch ``(inputs, targets)``.

    Attributes
    ----------
    schema
        All columns there are after the table functions.
    targets
        Those to be learned.
    layout
        The buffers they are gathered in.
    steps
        What happens between a table and a batch.
    """

    schema: Schema
    targets: tuple[str, ...]
    layout: Layout
    steps: Steps

    @classmethod
    def choose(
        cls,
        dataset: Dataset,
        transforms: Any,
        columns: Sequence[str] | None,
        targets: Sequence[str] | None,
        extras: Sequence[str],
    ) -> DictColumns:
        """The columns that a user's words mean."""
        steps = split_steps(transforms)
        schema = output_schema(dataset, transforms, steps)
        learned = target_names(schema, targets)
        names = input_names(schema, columns, extras)
        names += [t for t in learned if t not in names]
        return cls(schema, tuple(learned), dict_layout(schema, names, extras), steps)


def split_targets(columns: Mapping[str, Any], targets: Sequence[str]) -> tuple[list[str], Any]:
    """The names of the inputs, and how to find the targets: one name, several, or none.

    A ragged target has several columns: ``name__values`` and ``name__offsets``, for one.

    Examples
    --------
    >>> split_targets({"x": 0, "y": 0}, ["y"])
    (['x'], 'y')
    >>> split_targets({"x": 0, "y__values": 0, "y__offsets": 0}, ["y"])
    (['x'], ['y__values', 'y__offsets'])
    >>> split_targets({"x": 0}, [])
    (['x'], None)
    """
    learned = [n for t in targets for n in (t, *(t + end for end in _ENDS)) if n in columns]
    inputs = [n for n in columns if n not in learned]
    if not learned:
        return inputs, None
    return inputs, learned[0] if len(learned) == 1 else learned
