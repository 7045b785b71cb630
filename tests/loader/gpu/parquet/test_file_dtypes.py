"""Columns in the dtypes of their files, for a GPU that decodes them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.loader.gpu.parquet.encoded_pages import UnsupportedError
from tabfeed.loader.gpu.parquet.file_dtypes import as_in_files
from tabfeed.loader.torch import Loader, TorchAsyncItr

ROWS = 64


def column(dtype):
    return np.random.default_rng(0).permutation(ROWS).astype(dtype)


def write(folder, columns, *, nullable=True, **options):
    table = pa.table(columns)
    if not nullable:
        fields = [field.with_nullable(False) for field in table.schema]
        table = table.cast(pa.schema(fields))
    pq.write_table(table, folder / "rows.parquet", row_group_size=16, **options)
    return Dataset(str(folder))


def reader_of(dataset, cats=(), conts=(), labels=(), **options):
    loader = TorchAsyncItr(
        dataset, list(cats), list(conts), list(labels), batch_size=8, shuffle=True, device="cpu",
        **options,
    )  # fmt: skip
    return loader.pipeline.stages.reader


def dtypes_of(reading):
    return {name: str(dtype) for name, dtype in reading.reader.dtypes.items()}


def test_groups_of_one_dtype_are_as_they_are_in_the_files(tmp_path):
    columns = {"a": column("i4"), "b": column("i4"), "x": column("f8"), "y": column("i8")}
    reading = as_in_files(reader_of(write(tmp_path, columns), ["a", "b"], ["x"], ["y"]))
    assert dtypes_of(reading) == {"cats": "int32", "conts": "float64", "labels": "int64"}
    assert not reading.pieces and reading.joining == 0
    assert [str(g.dtype) for g in reading.reader.layout.groups] == ["int64", "float32", "float32"]


def test_groups_of_several_dtypes_lie_in_pieces(tmp_path):
    columns = {"a": column("i8"), "b": column("i4"), "c": column("i8"), "y": column("f4")}
    reading = as_in_files(reader_of(write(tmp_path, columns), ["a", "b", "c"], labels=["y"]))
    assert dtypes_of(reading) == {
        "cats, int64": "int64", "cats, int32": "int32", "labels": "float32",
    }  # fmt: skip
    assert {name: tuple(piece) for name, piece in reading.pieces.items()} == {
        "cats, int64": ("cats", (0, 2), 3), "cats, int32": ("cats", (1,), 3),
    }  # fmt: skip
    assert reading.joining == 3 * 8


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", "i8"])
def test_whole_numbers_without_nulls_become_floats_on_the_gpu(tmp_path, dtype, nullable):
    dataset = write(tmp_path, {"y": column(dtype)}, nullable=nullable)
    assert dtypes_of(as_in_files(reader_of(dataset, labels=["y"]))) == {
        "labels": str(np.dtype(dtype))
    }


def test_whole_numbers_with_a_null_are_for_arrow(tmp_path):
    values = pa.array([None, *column("i4")[1:]])
    with pytest.raises(UnsupportedError, match="column 'y' has integers and nulls, or footers"):
        as_in_files(reader_of(write(tmp_path, {"y": values}), labels=["y"]))


def test_whole_numbers_of_which_nothing_is_known_are_for_arrow(tmp_path):
    dataset = write(tmp_path, {"y": column("i4")}, write_statistics=False)
    with pytest.raises(UnsupportedError, match="or footers do not rule nulls out"):
        as_in_files(reader_of(dataset, labels=["y"]))


def test_a_null_among_fractions_is_not_asked_for(tmp_path):
    values = pa.array([None, *column("f8")[1:]])
    reading = as_in_files(reader_of(write(tmp_path, {"x": values}), conts=["x"]))
    assert dtypes_of(reading) == {"conts": "float64"}


# -- long numbers that are short ------------------------------------------------------------


def narrow(dataset, *cats):
    return as_in_files(reader_of(dataset, cats), narrow=True)


def test_long_ids_that_fit_are_short_in_blocks(tmp_path):
    columns = {"a": column("i8"), "b": column("i4"), "c": column("i8") - 2**31, "d": column("i2")}
    reading = narrow(write(tmp_path, columns), "a", "b", "c")
    assert dtypes_of(reading) == {"cats": "int32"} and not reading.pieces
    reading = narrow(write(tmp_path, columns), "a", "d")
    assert dtypes_of(reading) == {"cats, int32": "int32", "cats, int16": "int16"}


@pytest.mark.parametrize("beyond", [2**31, -(2**31) - 1])
def test_long_ids_that_do_not_fit_stay_long(tmp_path, beyond):
    values = column("i8")
    values[40] = beyond
    assert dtypes_of(narrow(write(tmp_path, {"a": values}), "a")) == {"cats": "int64"}


def test_long_ids_of_which_nothing_is_known_stay_long(tmp_path, monkeypatch):
    dataset = write(tmp_path, {"a": column("i8")}, write_statistics=False)
    assert dtypes_of(narrow(dataset, "a")) == {"cats": "int64"}
    dataset = write(tmp_path, {"a": column("i8")})
    monkeypatch.setattr("tabfeed.loader.gpu.parquet.file_dtypes._MOST_CHECKED", 3)  # there are four
    assert dtypes_of(narrow(dataset, "a")) == {"cats": "int64"}


# -- what is for Arrow ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (column("u4"), "column 'a' is uint32, which Arrow casts to int64"),
        (column("f4"), "column 'a' is float32, which Arrow casts to int64"),
        (column("bool"), "column 'a' is bool, which Arrow casts to int64"),
    ],
)
def test_what_only_arrow_casts(tmp_path, values, why):
    with pytest.raises(UnsupportedError, match=why):
        as_in_files(reader_of(write(tmp_path, {"a": values}), ["a"]))


def test_decimals(tmp_path):
    values = pa.array(range(ROWS)).cast(pa.decimal128(30, 2))
    with pytest.raises(UnsupportedError, match="column 'x' is decimal"):
        as_in_files(reader_of(write(tmp_path, {"x": values}), conts=["x"]))


def test_other_reasons(tmp_path):
    dataset = write(tmp_path, {"a": column("i4"), "l": [[1]] * ROWS})
    with pytest.raises(UnsupportedError, match="the dataset is not plain local Parquet files"):
        as_in_files(reader_of(Dataset({"a": column("i4")}), ["a"]))
    with pytest.raises(UnsupportedError, match="there are list or text columns"):
        as_in_files(reader_of(dataset, ["a", "l"]))
    with pytest.raises(UnsupportedError, match="transforms= need Arrow tables"):
        as_in_files(reader_of(dataset, ["a"], transforms=lambda table: table))
    with pytest.raises(UnsupportedError, match="partitions are cached"):
        as_in_files(reader_of(dataset, ["a"], cache="memory"))


def test_columns_by_name_keep_their_dtypes(tmp_path):
    dataset = write(tmp_path, {"a": column("u2"), "x": column("f8"), "b": column("bool")})
    reader = Loader(dataset, 8, True, device="cpu").pipeline.stages.reader
    assert dtypes_of(as_in_files(reader)) == {d: d for d in ("uint16", "float64", "bool")}


def test_columns_by_name_are_not_joined(tmp_path):
    dataset = write(tmp_path, {"a": column("i8"), "b": column("i8") + 2**40})
    reader = Loader(dataset, 8, True, device="cpu").pipeline.stages.reader
    reading = as_in_files(reader, narrow=True)
    assert dtypes_of(reading) == {"int64, int32": "int32", "int64, int64": "int64"}
    assert not reading.pieces and reading.joining == 0
