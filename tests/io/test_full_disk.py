"""Datasets written to a real disk that is full or read-only: an error that helps, nothing lost."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import WriteError

SIZE = 1 << 19
BLOCK = 4096
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "folders": {"partition_on": "k"},
    "shuffled": {"shuffle": "FULL", "memory_limit": "50kB"},
    "by worker": {"shuffle": "PER_WORKER", "output_files": 2},
    "fast": {"layout": "fast"},
}


def mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not mount("-t", "tmpfs", "-o", f"size={SIZE}", "tabfeed-test", str(disk)):
        pytest.skip("this process may not mount a small tmpfs to fill")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def rows() -> Dataset:
    """A quarter of a megabyte that does not compress."""
    numbers = np.random.default_rng(0).integers(0, 1 << 62, 30_000)
    return Dataset({"x": numbers, "k": np.arange(30_000) % 5}, npartitions=4)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def fill(disk: Path, left: int) -> None:
    """Leave so many blocks of the disk free."""
    used = sum(-(-p.stat().st_size // BLOCK) for p in disk.rglob("*") if p.is_file())
    (disk / "filler").write_bytes(b"x" * ((SIZE // BLOCK - used - left) * BLOCK))


def failure(out: Path, options: dict[str, Any]) -> str:
    """What writing there ends with; the error itself would keep files of the disk open."""
    with pytest.raises(WriteError) as raised:
        rows().to_parquet(out, overwrite=True, **options)
    return str(raised.value)


@pytest.mark.parametrize("old", [True, False], ids=["over a dataset", "into a new folder"])
@pytest.mark.parametrize("way", WAYS)
def test_the_disk_fills_up(disk: Path, way: str, old: bool) -> None:
    out = disk / "out"
    if old:
        Dataset({"x": [1, 2, 3]}).to_parquet(out)
    for left in (0, 1, 3, 30):
        fill(disk, left)
        before = tree(disk)
        text = failure(out, WAYS[way])
        assert str(disk) in text
        assert "No space left on device" in text
        assert "ree some space" in text
        assert tree(disk) == before
        assert out.exists() == old
        if old:
            assert Dataset(out).to_arrow().to_pydict() == {"x": [1, 2, 3]}
        (disk / "filler").unlink()
        assert sum(1 for p in disk.rglob("*") if p.is_dir()) == int(old)
    rows().to_parquet(out, overwrite=True)
    assert Dataset(out).num_rows == 30_000


@pytest.mark.parametrize("old", [True, False], ids=["over a dataset", "into a new folder"])
def test_the_disk_is_read_only(disk: Path, old: bool) -> None:
    out = disk / "out"
    if old:
        Dataset({"x": [1, 2, 3]}).to_parquet(out)
    assert mount("-o", "remount,ro", str(disk))
    before = tree(disk)
    text = failure(out, {})
    assert str(out) in text
    assert "ead-only file system" in text
    assert "Change its permissions or choose another folder" in text
    assert tree(disk) == before
    assert out.exists() == old
    if old:
        assert Dataset(out).to_arrow().to_pydict() == {"x": [1, 2, 3]}


def test_the_disk_of_temporary_files_fills_up(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars and DuckDB word the system's error as their own."""
    data = rows()
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    match = rf"<Categorify of .*No space left on device\. Free some space.* {disk}; TMPDIR"
    with pytest.raises(WriteError, match=match):
        Workflow(["x"] >> ops.Categorify()).fit(data, memory_limit="50kB")
    fill(disk, 3)
    with pytest.raises(WriteError, match=rf"joined rows to {disk}.*No space left.*ree some space"):
        Dataset.merge(data, data, on="x")
