from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tabfeed import Dataset
from tabfeed.cli import app
from tabfeed.errors import SkippedFileWarning
from tests.io.tfrecords import example, floats, frame, frames, ints, texts

runner = CliRunner()


def records(first: int, count: int) -> bytes:
    return frames(
        example({"id": ints(i), "x": floats(i / 2), "tags": texts(*[b"t"] * (i % 3))})
        for i in range(first, first + count)
    )


def write_folder(tmp_path: Path) -> Path:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.tfrecord").write_bytes(records(0, 100))
    (source / "b.tfrecord").write_bytes(records(100, 100))
    return source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path)


def run(*arguments: str | Path) -> str:
    result = runner.invoke(app, ["--debug", "convert", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def expected() -> dict[str, list[object]]:
    return {
        "id": list(range(200)),
        "tags": [["t"] * (i % 3) for i in range(200)],
        "x": [i / 2 for i in range(200)],
    }


def test_convert_tfrecords(folder: Path, tmp_path: Path) -> None:
    said = run(folder, tmp_path / "out")
    assert "200 rows of 3 columns in 2 files" in said
    assert "rows per second" in said
    assert Dataset(tmp_path / "out").to_arrow().to_pydict() == expected()


def test_several_inputs_and_options(folder: Path, tmp_path: Path) -> None:
    said = run(
        folder / "a.tfrecord", folder / "b.tfrecord", tmp_path / "out", "--files", "1", "--fast",
        "--column", "id", "--column", "x", "--dtype", "id=int32", "--row-group-size", "50",
    )  # fmt: skip
    assert "200 rows of 2 columns in 1 files" in said
    dataset = Dataset(tmp_path / "out")
    assert [str(c.dtype) for c in dataset.schema] == ["int32", "float"]
    assert dataset.fileset.files[0].unit_rows == [50, 50, 50, 50]


def test_any_format(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n1;x\n2;y\n")
    run(tmp_path / "a.csv", tmp_path / "out", "--sep", ";")
    assert Dataset(tmp_path / "out").to_arrow().to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


def test_overwrite_only_when_asked(folder: Path, tmp_path: Path) -> None:
    run(folder / "a.tfrecord", tmp_path / "out")
    refused = runner.invoke(app, ["convert", str(folder), str(tmp_path / "out")])
    assert refused.exit_code == 1
    assert "--overwrite" in refused.stderr
    run(folder, tmp_path / "out", "--overwrite")
    assert Dataset(tmp_path / "out").num_rows == 200


def test_a_dtype_that_is_none(folder: Path, tmp_path: Path) -> None:
    result = runner.invoke(app, ["convert", str(folder), str(tmp_path / "o"), "--dtype", "id"])
    assert result.exit_code == 2
    assert "is not NAME=TYPE" in result.stderr


def damage(folder: Path) -> None:
    first = frame(example({"id": ints(0), "x": floats(0.0), "tags": texts()}))
    data = first * 20_000 + records(0, 10)
    (folder / "a.tfrecord").write_bytes(data[:-3])


def test_nothing_is_left_when_the_input_is_damaged(folder: Path, tmp_path: Path) -> None:
    damage(folder)
    result = runner.invoke(app, ["convert", str(folder), str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "cut short" in result.stderr
    assert not list(tmp_path.glob("out/*.parquet"))


def test_going_on_without_what_is_damaged(folder: Path, tmp_path: Path) -> None:
    damage(folder)
    with pytest.warns(SkippedFileWarning, match="cut short"):
        result = runner.invoke(app, ["convert", str(folder), str(tmp_path / "out"), "--skip-bad"])
    assert result.exit_code == 0
    assert "left out" in result.stderr
    assert Dataset(tmp_path / "out").num_rows == 20_009 + 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--files", "0"], "--files is 0;"),
        (["--row-group-size", "0"], "--row-group-size is 0;"),
        (["--sep", "abc"], "--sep is 'abc';"),
        (["--engine", "foo"], "--engine is 'foo';"),
        (["--dtype", "b=int64"], "Pass --dtype b=string"),
        (["--overwrite"], ""),
        ([], "or pass --overwrite"),
    ],
)
def test_errors_speak_of_the_commands_options(
    tmp_path: Path, options: list[str], message: str
) -> None:
    source, out = tmp_path / "a.csv", tmp_path / "out"
    source.write_text("a,b\n1,x\n")
    Dataset({"a": [1]}).to_parquet(out)
    result = runner.invoke(app, ["convert", str(source), str(out), *options])
    assert result.exit_code == (1 if message else 0)
    assert message in result.stderr
    assert not any(name in result.stderr for name in ("overwrite=", "dtypes", "output_files"))


def test_what_options_do_not_stand_for_is_left_as_it_is(tmp_path: Path) -> None:
    def said(name: str) -> str:
        result = runner.invoke(app, ["convert", str(tmp_path / name), str(tmp_path / "out")])
        assert result.exit_code == 1
        return " ".join(result.stderr.split())

    nameless = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["", "b"])
    pq.write_table(nameless, tmp_path / "nameless.parquet")
    assert "a column is found by its name" in said("nameless.parquet")
    (tmp_path / "mixed").mkdir()
    pq.write_table(pa.table({"p": [1]}), tmp_path / "mixed" / "a.parquet")
    pq.write_table(pa.table({"p": ["x"]}), tmp_path / "mixed" / "b.parquet")
    assert "with --dtype p=TYPE, leave the column out with --column, or" in said("mixed")
