from pathlib import Path

import pytest
from typer.testing import CliRunner

from tabfeed import Dataset
from tabfeed.cli import app

runner = CliRunner()


def run(*arguments: str | Path) -> str:
    result = runner.invoke(app, ["--debug", "datagen", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_help_names_every_kind_of_data() -> None:
    text = runner.invoke(app, ["datagen", "--help"]).stdout
    assert all(kind in text for kind in ("criteo", "movielens", "outbrain", "reviews"))


def test_criteo_with_all_options(tmp_path: Path) -> None:
    said = run(
        "criteo", "--rows", "2_000", "--raw", "--files", "2", "--row-group-size", "500",
        "--seed", "3", tmp_path / "a",
    )  # fmt: skip
    assert "2,000 rows of 40 columns" in said
    assert "rows per second" in said
    dataset = Dataset(tmp_path / "a")
    assert dataset.num_rows == 2_000
    assert str(dataset.schema["C1"].dtype) == "string"
    assert sorted(p.name for p in (tmp_path / "a").glob("*.parquet")) == [
        "part_0.parquet",
        "part_1.parquet",
    ]


def test_overwrite_only_when_asked(tmp_path: Path) -> None:
    run("criteo", "--rows", "100", tmp_path)
    refused = runner.invoke(app, ["datagen", "criteo", "--rows", "200", str(tmp_path)])
    assert refused.exit_code == 1
    assert "pass --overwrite" in refused.stderr
    run("criteo", "--rows", "200", "--overwrite", tmp_path)
    assert Dataset(tmp_path).num_rows == 200


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (
            "movielens --rows 1_000 --users 40 --movies 30",
            {"ratings": 1_000, "users": 40, "movies": 30},
        ),
        (
            "outbrain --displays 100 --documents 50 --ads 24",
            {"events": 100, "documents_meta": 50, "promoted_content": 24},
        ),
        ("reviews --rows 300 --users 9 --items 8 --words 100", {"": 300}),
    ],
)
def test_the_other_kinds(arguments: str, rows: dict[str, int], tmp_path: Path) -> None:
    said = run(*arguments.split(), tmp_path)
    for name, count in rows.items():
        assert Dataset(tmp_path / name).num_rows == count
        assert f"{tmp_path / name}: {count:,} rows" in said
