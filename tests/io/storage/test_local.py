"""Folders for work in progress: gone with the work, or at the latest with the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tabfeed.io.storage.local import FolderLock, TemporaryFolder, remove_strays


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_folders_of_the_dead_are_removed_and_those_of_the_living_stay(temporary: Path) -> None:
    first = TemporaryFolder()
    (first.path / "file").write_text("in use")
    stray = first.path.with_name(f"{first.path.name}dead")
    (stray / "inside").mkdir(parents=True)
    foreign = temporary / "somebody-elses"
    foreign.mkdir()
    second = TemporaryFolder()
    assert not stray.exists()
    assert sorted(temporary.iterdir()) == sorted([first.path, second.path, foreign])
    first.remove()
    second.remove()
    assert list(temporary.iterdir()) == [foreign]


def test_only_what_nobody_has_locked_is_a_stray(tmp_path: Path) -> None:
    for name in ("a-1", "a-2", "b-1"):
        (tmp_path / name).mkdir()
    lock = FolderLock(str(tmp_path / "a-1"))
    lock.take()
    remove_strays(tmp_path, "a-*")
    lock.release()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-1", "b-1"]
