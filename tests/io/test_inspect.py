"""Reading everything once to see what is wrong."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import SkippedFileWarning
from tabfeed.io import Dataset
from tests.io.damage import flip_in_page, write_checked

TABLE = pa.table({"a": range(30), "b": [i / 2 for i in range(30)]})


def test_a_sound_dataset(tmp_path: Path) -> None:
    write_checked(tmp_path / "a.parquet", TABLE, 30)
    report = Dataset(tmp_path, filters=[("a", ">", 5)]).validate()
    assert report and report.ok
    assert (report.rows, report.damaged, report.advice) == (30, (), ())
    assert repr(report) == "30 rows; all can be read"


@pytest.mark.parametrize("options", [{}, {"part_size": 50}])
def test_every_damaged_place_is_named_once(tmp_path: Path, options: dict[str, int]) -> None:
    write_checked(tmp_path / "a.parquet", TABLE, 10)
    flip_in_page(tmp_path / "a.parquet", 0, "a")
    flip_in_page(tmp_path / "a.parquet", 2, "b")
    report = Dataset(tmp_path, **options).validate()
    assert not report
    assert report.rows == 10
    first, second = report.damaged
    assert "a.parquet, row group 0, column 'a'" in first
    assert "a.parquet, row group 2, column 'b'" in second
    assert repr(report).startswith("10 rows; 2 places are damaged\n  damaged: ")


@pytest.mark.parametrize("url", [None, "memory://test_validate/x"])
def test_a_file_that_can_be_read_and_is_another_one_is_damaged(
    tmp_path: Path, url: str | None
) -> None:
    """One of the same size, with checksums of its own that are right."""
    out = url or tmp_path / "out"
    written = Dataset({"x": [1, 2, 3]}).to_parquet(out)
    assert written.validate().ok
    other = Dataset({"x": [1, 2, 4]}).to_parquet(tmp_path / "other")
    content = Path(other.files[0]).read_bytes()
    with fsspec.open(written.files[0], "wb") as file:
        file.write(content)
    report = Dataset(out).validate()
    assert [("CRC-32" in d, written.files[0] in d) for d in report.damaged] == [(True, True)]
    assert Dataset(out).to_arrow()["x"].to_pylist() == [1, 2, 4]
    if url:
        fsspec.filesystem("memory").rm("/test_validate", recursive=True)


def test_what_was_left_out_when_opening_counts_as_damaged(tmp_path: Path) -> None:
    write_checked(tmp_path / "a.parquet", TABLE, 30)
    (tmp_path / "b.parquet").write_text("not parquet")
    with pytest.warns(SkippedFileWarning):
        ds = Dataset(tmp_path, on_bad_file="skip")
    report = ds.validate()
    assert report.rows == 30
    assert ["b.parquet is not a Parquet file" in d for d in report.damaged] == [True]


def test_text_that_is_not_text(tmp_path: Path) -> None:
    table = pa.table({"s": pa.array([b"fine", b"\xff\xfe"]).view(pa.string())})
    pq.write_table(table, tmp_path / "a.parquet")
    report = Dataset(tmp_path).validate()
    assert "row group 0, column 's' is damaged: Invalid UTF8" in report.damaged[0]


def test_a_file_of_the_fast_layout_is_verified_too(tmp_path: Path) -> None:
    out = tmp_path / "fast"
    ds = Dataset(TABLE).to_parquet(out, layout="fast")
    assert ds.validate().ok
    flip_in_page(ds.files[0], 0, "b")
    assert "column 'b'" in Dataset(out).validate().damaged[0]


def test_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(101):
        pq.write_table(TABLE, tmp_path / f"{i}.parquet", row_group_size=15)
    small, tiny = Dataset(tmp_path).validate().advice
    assert "202 of 202 row groups have fewer than 10,000 rows" in small
    assert "101 files are smaller than 1 MB" in tiny
    monkeypatch.setattr("tabfeed.io.inspect._LARGE_GROUP", 100)
    assert any("read in slices" in a for a in Dataset(tmp_path / "0.parquet").validate().advice)
