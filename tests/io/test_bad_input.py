"""Bad input: each an error of ours that names the file, the column, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    ColumnNotFoundError,
    DatasetError,
    DuplicateColumnError,
    SchemaError,
    SchemaMismatchError,
    SkippedFileWarning,
    SourceNotFoundError,
    TabfeedError,
    UnfinishedDatasetError,
    UnknownArgumentError,
    UnreadableFileError,
)
from tabfeed.io import Dataset
from tests.io.damage import flip_in_page, write_checked

TABLE = pa.table({"label": [0, 1, 0], "C1": [5, 6, 7]})


@pytest.fixture
def good(tmp_path: Path) -> Path:
    pq.write_table(TABLE, tmp_path / "train.parquet")
    return tmp_path


def says(error: type[Exception], source: Any, *parts: str, **options: Any) -> TabfeedError:
    """Open it; the error's message holds every part."""
    with pytest.raises(error) as caught:
        Dataset(source, **options)
    for part in parts:
        assert part in str(caught.value)
    assert isinstance(caught.value, TabfeedError)
    return caught.value


# -- what is not there ------------------------------------------------------------------


def test_a_missing_path_names_the_nearest(good: Path) -> None:
    missing = good / "trian.parquet"
    error = says(SourceNotFoundError, missing, str(missing), f"did you mean {good}/train.parquet?")
    assert isinstance(error, FileNotFoundError)
    says(SourceNotFoundError, good / "no" / "such" / "x", "there is no file or folder", "check")
    says(SourceNotFoundError, [good / "train.parquet", missing], "trian.parquet", "did you mean")


def test_an_empty_folder(tmp_path: Path) -> None:
    says(SourceNotFoundError, tmp_path, str(tmp_path), "no data files: it is empty")
    (tmp_path / "_SUCCESS").touch()
    says(SourceNotFoundError, tmp_path, "none of its 1 files is data")
    (tmp_path / "a.csv").write_text("x\n1\n")
    says(SourceNotFoundError, tmp_path, "no parquet data files", engine="parquet")


def test_a_glob_that_matches_nothing(good: Path) -> None:
    says(SourceNotFoundError, f"{good}/*.csv", f"no file matches {good}/*.csv", "check the pattern")
    says(SourceNotFoundError, f"{good}/no/*.csv", f"there is no folder {good}/no")


def test_no_paths_at_all() -> None:
    says(SourceNotFoundError, [], "the list of paths is empty")
    says(ArgumentError, "", "a path must be a non-empty string")


# -- what is broken ---------------------------------------------------------------------


def test_a_file_of_zero_bytes(good: Path) -> None:
    (good / "empty.parquet").touch()
    error = says(BadFileError, good, "empty.parquet is empty (0 bytes)", 'on_bad_file="skip"')
    assert error.file == str(good / "empty.parquet")  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep", [5, 100, -1])
def test_a_parquet_file_cut_short(good: Path, keep: int) -> None:
    data = (good / "train.parquet").read_bytes()
    (good / "train.parquet").write_bytes(data[:keep])
    what = "train.parquet is a Parquet file cut short or damaged at its end"
    says(BadFileError, good, what, "Write it again", 'on_bad_file="skip"')


def test_a_text_file_named_parquet(good: Path) -> None:
    (good / "train.parquet").write_text("label,C1\n0,5\n")
    says(BadFileError, good, "train.parquet is not a Parquet file: it starts with b'labe'")


def test_a_corrupted_page(tmp_path: Path) -> None:
    path = write_checked(tmp_path / "a.parquet", TABLE, 2)
    flip_in_page(path, 1, "C1")
    ds = Dataset(path)
    with pytest.raises(BadFileError) as caught:
        ds.to_arrow()
    for part in (path, "row group 1", "column 'C1'", "Write the file again", 'on_bad_file="skip"'):
        assert part in str(caught.value)
    assert (caught.value.file, caught.value.row_group, caught.value.column) == (path, 1, "C1")


@pytest.mark.parametrize("at", range(0, 900, 30))
def test_any_flipped_byte_of_the_data_is_found(tmp_path: Path, at: int) -> None:
    table = pa.table({"x": range(50), "s": [f"word {i}" for i in range(50)]})
    path = Path(write_checked(tmp_path / "a.parquet", table, 25))
    data = bytearray(path.read_bytes())
    data[4 + at] ^= 0x10
    path.write_bytes(data)
    try:
        assert Dataset(path).to_arrow().equals(table)  # the byte was in a part nobody needs
    except DatasetError as e:
        assert str(path) in str(e)


def test_a_dataset_whose_writing_was_interrupted(tmp_path: Path) -> None:
    Dataset(TABLE).to_parquet(tmp_path / "out", output_files=2)
    name = min(n for n in os.listdir(tmp_path / "out") if n.endswith(".parquet"))
    data = (tmp_path / "out" / name).read_bytes()
    (tmp_path / "out" / name).write_bytes(data[:-10])
    says(UnfinishedDatasetError, tmp_path / "out", name, "cut short or changed", "_tabfeed.json")
    (tmp_path / "out" / name).unlink()
    says(UnfinishedDatasetError, tmp_path / "out", f"should hold {name}, which is missing")


# -- what may not be read ---------------------------------------------------------------

_AS_NOBODY = """
import os, sys
from tabfeed.io import Dataset
from tabfeed.errors import *
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
import warnings
for source in sys.argv[1:]:
    for mode in ("raise", "skip"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                ds = Dataset(source, on_bad_file=mode)
                rows = ds.to_arrow().num_rows
                print(mode, "rows", rows, [type(w.message).__name__ for w in caught])
            except TabfeedError as e:
                print(mode, type(e).__name__, e)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_an_unreadable_file_and_folder(public: Path) -> None:
    data = public / "data"
    (data / "closed").mkdir(parents=True)
    for name in ("open.parquet", "secret.parquet", "closed/x.parquet"):
        pq.write_table(TABLE, data / name)
    (data / "secret.parquet").chmod(0)
    (data / "closed").chmod(0)
    try:
        command = [sys.executable, "-c", _AS_NOBODY]
        command += [f"{data}/*.parquet", f"{data}/secret.parquet", f"{data}/closed", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        (data / "closed").chmod(0o755)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"raise UnreadableFileError {data}/secret.parquet may not be read" in lines[0]
    assert lines[1] == "skip rows 3 ['SkippedFileWarning']"
    assert lines[2].startswith(f"raise UnreadableFileError {data}/secret.parquet may not be read")
    assert lines[3].startswith("skip SourceNotFoundError none of the 1 files can be read")
    assert lines[4].startswith(f"raise UnreadableFileError {data}/closed may not be read")
    assert all("closed" in line and "UnreadableFileError" in line for line in lines[4:8])


def test_a_file_that_vanishes_after_opening(good: Path) -> None:
    ds = Dataset(good)
    (good / "train.parquet").unlink()
    with pytest.raises(UnreadableFileError, match=r"train\.parquet has changed since"):
        ds.to_arrow()
    assert isinstance(UnreadableFileError("x"), OSError)


# -- what is asked wrongly --------------------------------------------------------------


def test_a_column_that_does_not_exist(good: Path) -> None:
    says(ColumnNotFoundError, good, "no column 'lable'", "did you mean 'label'?", columns=["lable"])
    says(ColumnNotFoundError, good, "'lable'", "'label'", filters=[("lable", "==", 1)])
    says(ColumnNotFoundError, good, "'lable'", "train.parquet", dtypes={"lable": "int8"})
    says(ColumnNotFoundError, good, "'C2'", schema=Dataset({"C2": [1]}).schema)


def test_duplicate_column_names(tmp_path: Path) -> None:
    twins = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(twins, tmp_path / "a.parquet")
    says(DuplicateColumnError, tmp_path, "a.parquet has more than one column named 'x'", "rename")
    says(DuplicateColumnError, twins, "more than one column named 'x'", "rename")
    says(DuplicateColumnError, TABLE, "'C1'", columns=["C1", "C1"])


def test_an_unknown_argument_names_the_nearest(good: Path) -> None:
    error = says(UnknownArgumentError, good, "'part_sise'; did you mean 'part_size'", part_sise=1)
    assert isinstance(error, TypeError)
    says(UnknownArgumentError, good, "Dataset has no argument 'zzz'; it has source", zzz=1)
    with pytest.raises(UnknownArgumentError, match=r"to_parquet.*'shufle'; did you mean 'shuffle'"):
        Dataset(good).to_parquet(good / "out", shufle="full")  # type: ignore[call-arg]


def test_an_unknown_engine_and_a_wrong_one(good: Path) -> None:
    says(ArgumentError, good, "engine is 'paquet'", "parquet, csv", engine="paquet")
    says(BadFileError, good / "train.parquet", "train.parquet", engine="ipc")


def test_mixed_formats(good: Path) -> None:
    (good / "b.csv").write_text("label,C1\n1,2\n")
    says(ArgumentError, good, "several formats (csv, parquet)", "engine=")
    says(ArgumentError, [good / "train.parquet", good / "b.csv"], "is parquet", "is csv", "engine=")


def test_mixed_types(good: Path) -> None:
    pq.write_table(pa.table({"label": ["yes"]}), good / "z.parquet")
    parts = ("'label' is int64 in", "train.parquet and string in", "z.parquet", "columns=")
    says(SchemaMismatchError, good, *parts)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (
            {"part_mem_fraction": float("nan")},
            "part_mem_fraction is nan; it must be between 0 and 1",
        ),
        ({"part_mem_fraction": 0}, "part_mem_fraction is 0"),
        ({"part_mem_fraction": 1.5}, "part_mem_fraction is 1.5"),
        ({"part_mem_fraction": "0.1"}, "part_mem_fraction is '0.1'"),
        (
            {"part_size": "fast"},
            "part_size is 'fast'; write bytes (1_000_000), an amount (\"512MB\"",
        ),
        ({"part_size": 0}, "part_size is 0"),
        ({"part_size": -5}, "part_size is -5"),
        ({"npartitions": 0}, "npartitions is 0; it must be a number, 1 or more"),
        ({"npartitions": 2.5}, "npartitions is 2.5"),
        ({"npartitions": True}, "npartitions is True"),
        ({"npartitions": 2, "part_size": 10}, "part_size and npartitions each say how to cut"),
        ({"on_bad_file": "ignore"}, 'on_bad_file is \'ignore\'; it must be "raise" or "skip"'),
        ({"columns": "label"}, "columns is 'label'; give a list of names: ['label']"),
        ({"filters": ("C1", ">", 3)}, "write a list of (column, operator, value)"),
        ({"filters": [("C1", ">", "x")]}, "'C1': 'int64'"),
    ],
)
def test_values_that_an_option_cannot_have(good: Path, options: dict[str, Any], part: str) -> None:
    says(ArgumentError, good, part, **options)


def test_a_type_nobody_knows(good: Path) -> None:
    says(SchemaError, good, "'integer-ish' is not a type", "int64", dtypes={"C1": "integer-ish"})


# -- and going on without ---------------------------------------------------------------


def test_skip_counts_and_reports(good: Path) -> None:
    (good / "empty.parquet").touch()
    with pytest.warns(SkippedFileWarning, match=r"left out .*empty\.parquet: .*0 bytes"):
        ds = Dataset(good, on_bad_file="skip")
    assert [(Path(s.file).name, s.row_group, s.rows) for s in ds.skipped] == [
        ("empty.parquet", None, None)
    ]
    assert ds.to_arrow().equals(TABLE)
    assert ds.num_rows == 3
    assert not ds.validate()


# -- text that is not UTF-8 --------------------------------------------------------------


def save_not_utf8(path: Path) -> None:
    """Rows whose column ``s`` is not UTF-8, behind another of text."""
    table = pa.table({"n": [1, 2], "t": ["a", "b"], "s": ["x", "QQQQ"]})
    kind = path.suffix[1:]
    if kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    elif kind == "avro":
        pl.from_arrow(table).write_avro(path)
    elif kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    else:
        pq.write_table(table, path, use_dictionary=False, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"QQQQ", b"\xff\xfe\xff\xfe"))


@pytest.mark.parametrize("kind", ["jsonl", "avro", "arrow", "parquet"])
def test_text_that_is_not_utf8_is_refused_with_its_column(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    save_not_utf8(path)
    with pytest.raises(BadFileError, match=rf"a\.{kind}.*column 's'.*on_bad_file=") as caught:
        Dataset(path).to_arrow()
    assert caught.value.column == "s"
