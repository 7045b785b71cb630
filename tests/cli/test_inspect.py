"""`tabfeed inspect`: what a person and what a program get to see."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from tabfeed import ColumnSchema, Dataset, Domain, Schema
from tabfeed.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["inspect", *arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = pa.table(
        {
            "label": pa.array([0.0, 1.0, 0.0, 1.0], pa.float32()),
            "genres": pa.array([[1], None, [2, 3], []], pa.list_(pa.int64())),
            "name": pa.array(["a", "b", None, "a"]),
        }
    )
    schema = Schema(
        [
            ColumnSchema("label", "float", tags=["target", "binary"]),
            ColumnSchema("genres", "list<int64>", tags="categorical", value_count=(0, 2)),
            ColumnSchema("name", "string", domain=Domain(0, 10)),
        ]
    )
    Dataset(table, schema=schema, npartitions=2).to_parquet(tmp_path / "data", output_files=2)
    return tmp_path / "data"


def test_json_has_every_figure(folder: Path) -> None:
    result = run(str(folder), "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["rows"] == 4
    assert [f["rows"] for f in facts["files"]] == [2, 2]
    by_name = {c["name"]: c for c in facts["columns"]}
    assert by_name["label"]["nulls"] == 0
    assert by_name["label"]["tags"] == ["binary", "target"]
    assert by_name["name"]["nulls"] == 1
    assert by_name["name"]["codecs"] == ["SNAPPY"]
    assert by_name["label"]["memory_bytes"] == 16
    assert by_name["genres"]["values"] == "0..2 each"


def test_table_is_readable(folder: Path) -> None:
    result = run(str(folder))
    assert result.exit_code == 0, result.output
    assert "4 rows, 3 columns, 2 files" in " ".join(result.stdout.split())
    for text in ("target +1", "list<int64>", "25.0%", "dict snappy", "part_1.parquet"):
        assert text in result.stdout


def test_several_paths_and_text(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x\ty\n1\t2\n")
    result = run(str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), "--sep", r"\t")
    assert result.exit_code == 0, result.output
    assert "2 columns, 2 files" in " ".join(result.stdout.split())


def test_a_missing_path_is_one_sentence(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert "there is no file or folder" in result.stderr
    assert "Traceback" not in result.output


def test_an_encoding_of_numbers_is_named(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(range(1000), pa.int32())})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False, compression="none")
    result = run(str(tmp_path / "x.parquet"), "--json")
    column = json.loads(result.stdout)["columns"][0]
    assert column["encodings"] == ["PLAIN"]
    assert column["codecs"] == ["UNCOMPRESSED"]
