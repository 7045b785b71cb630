"""Folders and disks that a rewrite is refused."""

from pathlib import Path

import pyarrow as pa
import pytest

from tabfeed.doctor import rewrite, rewriter
from tabfeed.errors import DatasetExistsError, WriteError
from tabfeed.io import Dataset
from tests.doctor.folders import small_files
from tests.doctor.test_rewrite import QUICK, column


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Twenty files of a thousand rows each."""
    small_files(tmp_path / "old")
    return tmp_path / "old"


def test_out_exists(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Dataset({"x": [1]}).to_parquet(tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr(rewriter, "try_out", lambda *a, **k: pytest.fail("measured in vain"))
        with pytest.raises(DatasetExistsError, match="overwrite=True"):
            rewrite(old, tmp_path / "new", seconds=QUICK)
    assert column(tmp_path / "new") == [1]
    rewrite(old, tmp_path / "new", overwrite=True, seconds=QUICK)
    assert column(tmp_path / "new") == column(old)


def test_no_room(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(rewriter.shutil, "disk_usage", lambda path: usage(9, 9, 1000))
    with pytest.raises(WriteError, match=r"and 1 kB are free"):
        rewrite(old, tmp_path / "new", seconds=QUICK)
    assert not (tmp_path / "new").exists()


def test_the_disk_fills_up_on_the_way(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tabfeed.io.write.parquet import FileWriter

    real = FileWriter._write_group

    def full(self: FileWriter, group: pa.Table) -> None:
        if "new" in self._commit.folder.path:
            with self._commit.writing(self._name):
                raise OSError(28, "No space left on device")
        real(self, group)

    monkeypatch.setattr(FileWriter, "_write_group", full)
    with pytest.raises(WriteError, match="No space left"):
        rewrite(old, tmp_path / "new", seconds=QUICK)
    left = list((tmp_path / "new").rglob("*.parquet")) if (tmp_path / "new").exists() else []
    assert left == []
