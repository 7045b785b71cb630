"""Each thing that can be wrong with files is found where it was put, and nowhere else."""

import gc
import json
import tempfile
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.doctor import Cost, Diagnosis, Finding, Forecast, diagnose
from tabfeed.errors import ArgumentError, BadFileError, SourceNotFoundError
from tabfeed.io import Dataset
from tests.doctor.folders import CASES, ROWS, numbers, plain

QUICK = 0.05


def names(found: Diagnosis) -> set[str]:
    return {f.name for f in found.findings}


@pytest.fixture(autouse=True)
def own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where samples go, so that what is left behind is seen."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_it_is_found(tmp_path: Path, own_temp: Path, name: str) -> None:
    CASES[name](tmp_path / "data")
    found = diagnose(tmp_path / "data", seconds=QUICK)
    told = next(f for f in found.findings if f.name == name)
    assert told.evidence and told.advice
    if name not in ("sorted", "skew"):
        assert told.cost is not None and told.cost.ratio > 0
    # Few rows in few groups always have these; what is appended may be null.
    assert names(found) <= {name, "skew", "large_groups", "small_groups", "nullable"}
    assert found.rows == ROWS
    assert list(own_temp.iterdir()) == []


def test_good_files_have_no_findings(tmp_path: Path) -> None:
    Dataset(numbers()).to_parquet(tmp_path / "a", layout="fast", row_group_size=1000)
    found = diagnose(tmp_path / "a", seconds=QUICK, ranks=1)
    assert names(found) <= {"small_groups"}


def test_row_groups_a_loader_must_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tabfeed.loader import options

    plain(numbers(), tmp_path / "a" / "a.parquet")
    monkeypatch.setattr(options, "_HOST_MEMORY", 2**19)
    found = diagnose(tmp_path / "a", seconds=QUICK)
    told = next(f for f in found.findings if f.name == "large_groups")
    assert told.title == "Row groups too large"
    assert told.cost is not None


def test_the_report(tmp_path: Path) -> None:
    CASES["codec"](tmp_path / "data")
    found = diagnose(tmp_path / "data", seconds=QUICK)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["verdict"] == found.verdict
    assert [f["layout"] for f in told["forecasts"]] == ["fast", "compact"]
    assert {f["name"] for f in told["findings"]} == names(found)
    text = str(found)
    assert "Compression (zstd)" in text
    assert "tabfeed rewrite --layout fast" in text


def finding(name: str, ratio: float) -> Finding:
    return Finding(name, name.title(), "seen", Cost(ratio, ratio, ratio))


def diagnosis(gain: float, *findings: Finding, size: float = 1.0, bad: int = 0) -> Diagnosis:
    forecast = Forecast("fast", Cost(gain, gain, gain), size)
    unreadable = tuple(f"{i}.parquet is cut" for i in range(bad))
    return Diagnosis("d", 10, 1, 9, 10, 2e6, findings, (forecast,), unreadable=unreadable)


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        (
            diagnosis(3.0, finding("codec", 1.5), finding("skew", 9.0), size=2.0),
            "Rewriting makes these files 3.0 times as fast to read (2 M rows/s now, 6 M rows/s "
            "then) and 2.0 times as large. The largest cost is codec.",
        ),
        (
            diagnosis(1.01, finding("codec", 1.02)),
            "These files are fine: 2 M rows/s here, and rewriting gains nothing.",
        ),
        (
            diagnosis(1.0, finding("text", 4.0)),
            "Rewriting alone gains nothing here (2 M rows/s); the largest cost is text.",
        ),
        (
            diagnosis(1.0, bad=2),
            "2 of the files cannot be read: write them again or leave them out first. "
            "These files are fine: 2 M rows/s here, and rewriting gains nothing.",
        ),
    ],
)
def test_the_verdict(told: Diagnosis, verdict: str) -> None:
    assert told.verdict == verdict


# -- bad input -------------------------------------------------------------------------------------


def test_one_file_that_cannot_be_read(tmp_path: Path) -> None:
    CASES["small_files"](tmp_path / "data")
    whole = (tmp_path / "data" / "03.parquet").read_bytes()
    (tmp_path / "data" / "03.parquet").write_bytes(whole[:-20])
    found = diagnose(tmp_path / "data", seconds=QUICK)
    assert found.rows == ROWS - 1000
    (reason,) = found.unreadable
    assert "03.parquet" in reason and "cut short" in reason
    assert found.verdict.startswith("1 of the files cannot be read")


def test_no_file_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises((BadFileError, SourceNotFoundError), match=r"a\.parquet"):
        diagnose(tmp_path, seconds=QUICK)


def test_damage_inside_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "a.parquet"
    plain(numbers(), path, compression="zstd", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[1000:1100] = bytes(100)
    path.write_bytes(bytes(data))
    with pytest.raises(BadFileError, match=r"a\.parquet, row group 0"):
        diagnose(tmp_path / "a", seconds=QUICK)


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotFoundError):
        diagnose(tmp_path / "empty", seconds=QUICK)


def test_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(ArgumentError, match="tabfeed convert IN OUT"):
        diagnose(tmp_path / "a.csv", seconds=QUICK)


def test_no_rows(tmp_path: Path) -> None:
    plain(numbers(0), tmp_path / "a" / "a.parquet")
    with pytest.raises(ArgumentError, match="no rows"):
        diagnose(tmp_path / "a", seconds=QUICK)


def test_no_column_that_could_be_fed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"when": pa.array([1, 2], pa.timestamp("us"))}), path)
    with pytest.raises(ArgumentError, match="no column can be fed"):
        diagnose(path, seconds=QUICK)


def test_a_column_no_tensor_holds_is_left_out_and_named(tmp_path: Path) -> None:
    table = numbers().append_column("when", pa.array(np.arange(ROWS), pa.timestamp("us")))
    plain(table, tmp_path / "a" / "a.parquet")
    found = diagnose(tmp_path / "a", seconds=QUICK)
    assert found.left_out == ("when",)
    assert "no tensor can hold them: when" in str(found)


def test_text_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": ["a", "bb"] * 500}), tmp_path / "a.parquet")
    assert "text" in names(diagnose(tmp_path / "a.parquet", seconds=QUICK))


def test_a_filtered_dataset(tmp_path: Path) -> None:
    plain(numbers(), tmp_path / "a" / "a.parquet")
    dataset = Dataset(tmp_path / "a", filters=[("c", ">", 3)])
    with pytest.raises(ArgumentError, match="filter or a map"):
        diagnose(dataset, seconds=QUICK)


def test_files_elsewhere(tmp_path: Path) -> None:
    """The sample is fetched and measured here; reading in place is not, the network would be."""
    CASES["codec"](tmp_path / "data")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "data" / "a.parquet"), "/doctored/a.parquet")
    try:
        found = diagnose("memory://doctored", seconds=QUICK)
    finally:
        memory.rm("/doctored", recursive=True)
    told = {f.name: f for f in found.findings}
    assert told["codec"].cost is not None
    assert told["large_groups"].note == "not measured"


def test_no_thread_is_left(tmp_path: Path) -> None:
    import threading

    CASES["codec"](tmp_path / "data")
    diagnose(tmp_path / "data", seconds=QUICK)
    gc.collect()
    assert [t.name for t in threading.enumerate() if "loader" in t.name] == []


def test_ranks_must_be_some(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="ranks is 0"):
        diagnose(tmp_path, ranks=0)
