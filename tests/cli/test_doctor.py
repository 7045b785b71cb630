import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tabfeed.cli import app
from tabfeed.io import Dataset
from tests.doctor.folders import CASES, ROWS

runner = CliRunner()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    CASES["codec"](tmp_path / "data")
    return tmp_path / "data"


def run(*arguments: object, status: int = 0) -> str:
    result = runner.invoke(app, [str(a) for a in arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_doctor(data: Path) -> None:
    said = run("doctor", data, "--seconds", "0.05")
    assert "Compression (zstd)" in said
    assert "finding" in said and "predicted" in said


def test_doctor_as_json(data: Path) -> None:
    told = json.loads(run("doctor", data, "--json", "--seconds", "0.05"))
    assert told["rows"] == ROWS
    assert "codec" in [f["name"] for f in told["findings"]]
    assert told["verdict"]


def test_doctor_of_damaged_files(data: Path) -> None:
    (data / "b.parquet").write_bytes(b"PAR1")
    said = run("doctor", data, "--seconds", "0.05", status=1)
    assert "cannot be read" in said and "b.parquet" in said


def test_doctor_of_text_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    assert "tabfeed convert" in run("doctor", tmp_path / "a.csv", status=1)


def test_rewrite(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = run("rewrite", data, out, "--rows-per-file", 5000, "--seconds", "0.05")
    assert "20,000 rows in 4 files" in said
    assert "predicted" in said and "measured" in said
    assert Dataset(out).num_rows == ROWS
    assert "--overwrite" in run("rewrite", data, out, "--seconds", "0.05", status=1)
    told = json.loads(
        run("rewrite", data, out, "--overwrite", "--layout", "compact", "--json", "--seconds", 0.05)
    )
    assert told["predicted_gain"] > 0 and told["measured_gain"] > 0
