from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Schema, Tags
from tabfeed.doctor import RewriteOptions, rewrite
from tabfeed.errors import ArgumentError, BadFileError, DatasetExistsError
from tabfeed.io import Dataset
from tests.doctor.folders import ROWS, small_files

QUICK = 0.05


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Twenty files of a thousand rows each; `c` is not sorted."""
    small_files(tmp_path / "old")
    return tmp_path / "old"


def column(dataset: Dataset | Path, name: str = "x") -> list[float]:
    opened = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    return opened.to_arrow().column(name).to_pylist()


def test_the_same_rows_in_the_same_order(old: Path, tmp_path: Path) -> None:
    told = rewrite(old, tmp_path / "new", seconds=QUICK)
    assert column(told.dataset) == column(old)
    assert len(told.dataset.files) == 1
    footer = pq.read_metadata(told.dataset.files[0])
    assert footer.metadata[b"tabfeed.layout"] == b"fast"
    assert told.measured is not None
    assert told.stored == sum(Path(f).stat().st_size for f in told.dataset.files)
    assert told.stored / told.stored_before == pytest.approx(told.forecast.size, rel=0.1)
    told_as = told.to_dict()
    assert (told_as["rows"], told_as["files"]) == (ROWS, 1)
    assert "predicted" in str(told) and "measured" in str(told)


def test_files_and_row_groups_as_asked(old: Path, tmp_path: Path) -> None:
    options = RewriteOptions("compact", row_group_rows=1500, rows_per_file=6000)
    told = rewrite(old, tmp_path / "new", options, seconds=QUICK)
    files = [pq.read_metadata(f) for f in told.dataset.files]
    assert len(files) == 4
    assert {f.num_rows for f in files} <= {4284, 4285, 5713, 5714, 5715}
    assert sum(f.num_rows for f in files) == ROWS
    groups = [f.row_group(i).num_rows for f in files for i in range(f.num_row_groups)]
    assert max(groups) == 1500
    assert column(told.dataset) == column(old)


def test_shuffled(old: Path, tmp_path: Path) -> None:
    options = RewriteOptions(shuffle="full", seed=3, memory_limit="1MB")
    told = rewrite(old, tmp_path / "new", options, seconds=QUICK)
    assert column(told.dataset) != column(old)
    assert sorted(column(told.dataset)) == sorted(column(old))


def test_tags_are_kept(tmp_path: Path) -> None:
    schema = Schema.from_arrow(pa.schema({"y": pa.int64()}))
    schema = schema.replace(schema["y"].with_tags([Tags.TARGET]))
    Dataset({"y": list(range(100))}, schema=schema).to_parquet(tmp_path / "old")
    told = rewrite(tmp_path / "old", tmp_path / "new", seconds=QUICK)
    assert told.dataset.schema.select_by_tag(Tags.TARGET).column_names == ["y"]


def test_out_is_a_file(old: Path, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("mine")
    with pytest.raises(DatasetExistsError, match="is a file"):
        rewrite(old, tmp_path / "new", seconds=QUICK)


def test_over_itself(old: Path) -> None:
    before = column(old)
    with pytest.raises(ArgumentError, match="over itself"):
        rewrite(old, old, overwrite=True, seconds=QUICK)
    assert column(old) == before


def test_a_file_that_cannot_be_read(old: Path, tmp_path: Path) -> None:
    (old / "03.parquet").write_bytes((old / "03.parquet").read_bytes()[:-9])
    with pytest.raises(BadFileError, match=r"03\.parquet.*--skip-bad"):
        rewrite(old, tmp_path / "new", seconds=QUICK)
    assert not (tmp_path / "new").exists()
    told = rewrite(old, tmp_path / "new", skip_bad=True, seconds=QUICK)
    assert told.dataset.num_rows == ROWS - 1000


@pytest.mark.parametrize(
    "options",
    [{"row_group_rows": 0}, {"rows_per_file": -1}, {"layout": "wide"}],
)
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(options))):
        RewriteOptions(**options)  # type: ignore[arg-type]
