"""One schema for files that differ, as a dataset of them has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import SchemaError, SchemaMismatchError

TEXT = pa.string()
WORDS = pa.dictionary(pa.int8(), TEXT)


def files_of(folder: Path, *schemas: pa.Schema) -> list[str]:
    """Files that keep every type as it is, and hold no rows."""
    paths = [str(folder / f"{number}.arrow") for number in range(len(schemas))]
    for path, schema in zip(paths, schemas, strict=True):
        with pa.ipc.new_file(path, schema):
            pass
    return paths


def aligned(folder: Path, *schemas: pa.Schema, **options: Any) -> pa.Schema:
    return Dataset(files_of(folder, *schemas), **options).schema.to_arrow()


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.uint64(), pa.int64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.int64(), TEXT, None),
        (pa.bool_(), pa.int8(), None),
        (TEXT, pa.large_string(), TEXT),
        (TEXT, pa.string_view(), TEXT),
        (pa.null(), TEXT, TEXT),
        (WORDS, TEXT, TEXT),
        (WORDS, pa.dictionary(pa.int32(), TEXT), TEXT),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("s"), pa.timestamp("s", "UTC"), None),
        (pa.date32(), pa.timestamp("s"), None),
        (pa.decimal128(5, 2), pa.decimal128(6, 4), pa.decimal128(7, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(48, 10)),
        (pa.decimal256(76, 0), pa.decimal256(76, 1), None),
        (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int16(), 3), pa.list_(pa.int16(), 3)),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8(), 4), pa.list_(pa.int8())),
        (pa.list_(pa.int64()), pa.int64(), None),
    ],
    ids=str,
)
def test_common_type(
    a: pa.DataType, b: pa.DataType, expected: pa.DataType | None, tmp_path: Path
) -> None:
    for one, other in ((a, b), (b, a)):
        schemas = pa.schema({"x": one}), pa.schema({"x": other})
        if expected is None:
            with pytest.raises(SchemaMismatchError, match="no type holds both exactly"):
                aligned(tmp_path, *schemas)
        else:
            assert aligned(tmp_path, *schemas).field("x").type == expected


def test_the_union_of_schemas(tmp_path: Path) -> None:
    a = pa.schema([pa.field("x", pa.int32(), nullable=False), pa.field("only_a", TEXT, False)])
    b = pa.schema([pa.field("y", TEXT, nullable=False), pa.field("x", pa.int64(), nullable=False)])
    expected = pa.schema(
        [pa.field("x", pa.int64(), False), pa.field("only_a", TEXT), pa.field("y", TEXT)]
    )
    assert aligned(tmp_path, a, b).equals(expected)


def test_a_column_of_nulls_gets_its_type_from_another_file_whatever_the_order(
    tmp_path: Path,
) -> None:
    null, number = pa.schema({"x": pa.null()}), pa.schema({"x": pa.int16()})
    for order in ([null, number], [number, null], [null, number, null]):
        assert aligned(tmp_path, *order).field("x").type == pa.int16()


def test_a_mismatch_names_both_files_the_column_and_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        aligned(tmp_path, pa.schema({"x": pa.int64()}), pa.schema({"x": TEXT}))
    files = f"int64 in {tmp_path}/0.arrow", f"string in {tmp_path}/1.arrow"
    for part in ("'x'", *files, "dtypes={'x'", "columns="):
        assert part in str(caught.value)


def test_a_type_that_the_user_gives_settles_it(tmp_path: Path) -> None:
    schemas = pa.schema({"x": pa.int64()}), pa.schema({"x": pa.float64()})
    given = aligned(tmp_path, *schemas, dtypes={"x": pa.float32()})
    assert given.field("x").type == pa.float32()
    with pytest.raises(SchemaMismatchError, match="column 'x' is"):
        aligned(tmp_path, *schemas)


def test_conform_refuses_to_lose_a_value(tmp_path: Path) -> None:
    def read(number: int, dtype: pa.DataType) -> None:
        path = str(tmp_path / "a.arrow")
        table = pa.table({"x": pa.array([1, number])})
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
        Dataset(path, dtypes={"x": dtype}).to_arrow()

    with pytest.raises(SchemaError, match=r"column 'x' of .*a\.arrow is int64.*int8.*300"):
        read(300, pa.int8())
    with pytest.raises(SchemaError, match=r"'x'.*cannot become list<int8>"):
        read(300, pa.list_(pa.int8()))
    with pytest.raises(SchemaError, match="9007199254740993"):
        read(2**53 + 1, pa.float64())
