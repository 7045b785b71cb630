"""However a file is laid out and cut, its partitions laid end to end are the file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from tabfeed.io import Dataset

sizes = st.lists(st.integers(0, 40), max_size=8)
layouts = st.lists(sizes, min_size=1, max_size=3)  # files, of row groups, of rows
cuts = st.one_of(
    st.builds(lambda n: {"npartitions": n}, st.integers(1, 60)),
    st.builds(lambda n: {"part_size": n}, st.integers(1, 2000)),
)


def write(folder: str, layout: list[list[int]]) -> pa.Table:
    """Rows are numbered through, so that order and loss show."""
    start, tables = 0, []
    for number, groups in enumerate(layout):
        schema = pa.schema([pa.field("x", pa.int64(), False), pa.field("y", pa.int32())])
        with pq.ParquetWriter(f"{folder}/{number}.parquet", schema) as writer:
            for rows in groups:
                x = pa.array(range(start, start + rows), pa.int64())
                y = pc.if_else(pc.equal(pc.bit_wise_and(x, 3), 0), None, x).cast(pa.int32())
                tables.append(pa.table([x, y], schema=schema))
                writer.write_table(tables[-1])
                start += rows
        tables.append(schema.empty_table())
    return pa.concat_tables(tables)


@settings(max_examples=60)
@given(layout=layouts, cut=cuts, names=st.permutations(["x", "y"]))
def test_partitions_end_to_end_are_the_files(
    layout: list[list[int]], cut: dict[str, int], names: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = write(folder, layout).select(names)
        ds = Dataset(folder, columns=names, **cut)
        tables = list(ds.iter_tables())
        assert pa.concat_tables([table.slice(0, 0), *tables]).equals(table)
        assert [t.num_rows for t in tables] == ds.partition_lens
        for i, expected in enumerate(tables):
            assert ds.read(i).equals(expected)
            assert ds.read(i, names[:1]).equals(expected.select(names[:1]))
        if "npartitions" in cut:
            assert ds.npartitions == max(1, min(cut["npartitions"], table.num_rows))
            assert max(ds.partition_lens) - min(ds.partition_lens) <= 1
        else:
            for t in tables:
                # the null bits of a slice are rounded up to a byte
                assert t.num_rows <= 1 or t.nbytes <= cut["part_size"] + 1
        assert ds.head(7).rows() == [tuple(r.values()) for r in table.slice(0, 7).to_pylist()]


# -- filters: statistics must never lose a row ------------------------------------------

numbers = st.one_of(st.none(), st.integers(-5, 5))
floats = st.one_of(st.none(), st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("nan"), float("inf")]))
texts = st.one_of(st.none(), st.text(st.sampled_from("ab\u00e9\U0001f600"), max_size=3))
rows = st.lists(st.tuples(numbers, floats, texts), min_size=1, max_size=12)
literals = {
    "i": st.integers(-6, 6),
    "f": st.sampled_from([-1.5, 0.0, 1.0, 2.0]),
    "t": texts.filter(bool),
}


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> pc.Expression:
    kind = draw(st.sampled_from(["compare", "null", "in"] + ["and", "or", "not"] * (depth > 0)))
    if kind in ("and", "or"):
        left, right = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        return left & right if kind == "and" else left | right
    if kind == "not":
        return ~draw(conditions(depth - 1))
    name = draw(st.sampled_from(["i", "f", "t", "key"]))
    values = literals["i" if name == "key" else name]
    field = pc.field(name)
    if kind == "null":
        return draw(st.sampled_from([field.is_null(), field.is_valid()]))
    if kind == "in":
        return field.isin(draw(st.lists(values, min_size=1, max_size=3)))
    value = draw(values)
    return draw(
        st.sampled_from(
            [field < value, field <= value, field == value, field != value, field > value]
        )
    )


@settings(max_examples=150)
@given(
    files=st.lists(rows, min_size=1, max_size=3), group=st.integers(1, 5), condition=conditions()
)
def test_pruning_loses_no_row(
    files: list[list[tuple[Any, ...]]], group: int, condition: pc.Expression
) -> None:
    schema = pa.schema({"i": pa.int32(), "f": pa.float64(), "t": pa.string()})
    with tempfile.TemporaryDirectory() as folder:
        tables = []
        for key, values in enumerate(files):
            table = pa.Table.from_pylist([dict(zip("ift", v, strict=True)) for v in values], schema)
            (Path(folder) / f"key={key}").mkdir()
            pq.write_table(table, f"{folder}/key={key}/a.parquet", row_group_size=group)
            tables.append(table.append_column("key", pa.array([key] * len(values), pa.int64())))
        expected = pa.concat_tables(tables).filter(condition)
        ds = Dataset(folder, filters=condition)
        assert repr(ds.to_arrow().to_pydict()) == repr(expected.to_pydict())  # NaN equals nothing
        assert ds.num_rows == expected.num_rows
