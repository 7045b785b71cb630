"""Saving where there is no room or no permission: the old workflow stays, and nothing beside it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tabfeed as nvt
from tabfeed import ops
from tabfeed.errors import ArtefactError, WriteError

SMALL = {"c": ["b", "a", "b"]}
LARGE = {"c": [hashlib.sha256(b"%d" % i).hexdigest() for i in range(20_000)]}


def fitted(data: dict[str, list[str]]) -> nvt.Workflow:
    return nvt.Workflow(["c"] >> ops.Categorify()).fit(data)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tabfeed-test", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this process may not mount a small tmpfs to fill")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_full_disk(small_disk: Path) -> None:
    with pytest.raises(WriteError, match=r"cannot be saved to .*/disk/new: .*free some space"):
        fitted(LARGE).save(small_disk / "new")
    assert names(small_disk) == []
    fitted(SMALL).save(small_disk / "w")
    with pytest.raises(WriteError, match="The workflow saved there before is untouched"):
        fitted(LARGE).save(small_disk / "w")
    assert names(small_disk) == ["w"]
    assert nvt.Workflow.load(small_disk / "w").transform({"c": "a"}) == {"c": 4}
    with pytest.raises(WriteError):
        fitted(LARGE).save(small_disk / "several" / "folders" / "w")
    assert names(small_disk) == ["w"]
    fitted(SMALL).save(small_disk / "w")  # there is room again


def test_a_disk_that_may_not_be_written(small_disk: Path) -> None:
    fitted(SMALL).save(small_disk / "w")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(WriteError, match="check the permissions"):
        fitted(SMALL).save(small_disk / "w")
    with pytest.raises(WriteError, match="Read-only file system"):
        fitted(SMALL).save(small_disk / "new" / "w")
    assert nvt.Workflow.load(small_disk / "w").transform({"c": "a"}) == {"c": 4}


def test_a_fit_whose_folder_is_full(small_disk: Path) -> None:
    words = {"c": [hashlib.sha256(bytes([i % 256, i // 256])).hexdigest() for i in range(30_000)]}
    node = ["c"] >> ops.Categorify(out_path=str(small_disk))
    with pytest.raises(WriteError, match=r"<Categorify of .*No space left.* Free some space"):
        nvt.Workflow(node).fit(words)


def test_files_of_limited_size(tmp_path: Path) -> None:
    """What a quota does, in a process of its own."""
    fitted(SMALL).save(tmp_path / "w")
    script = (
        "import resource\n"
        "from tests.workflow.test_saving import LARGE, fitted\n"
        "workflow = fitted(LARGE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        f"workflow.save(r'{tmp_path / 'w'}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "WriteError: the workflow cannot be saved" in done.stderr, done.stderr
    assert "File too large" in done.stderr and "free some space" in done.stderr
    assert names(tmp_path) == ["w"]
    assert nvt.Workflow.load(tmp_path / "w").transform({"c": "a"}) == {"c": 4}


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WriteError, match="cannot be saved"):
        fitted(SMALL).save(tmp_path / "file" / "w")
    with pytest.raises(ArtefactError, match="is not a saved workflow"):
        fitted(SMALL).save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_without_permission(tmp_path: Path) -> None:
    fitted(SMALL).save(tmp_path / "w")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(WriteError, match="check the permissions"):
            fitted(SMALL).save(tmp_path / "w")
        assert nvt.Workflow.load(tmp_path / "w").transform({"c": "a"}) == {"c": 4}
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("name", ["weights.pt", "train/part_0.parquet"])
def test_what_lies_beside_a_saved_workflow_is_not_lost(tmp_path: Path, name: str) -> None:
    fitted(SMALL).save(tmp_path / "w")
    (tmp_path / "w" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "w" / name).write_text("precious")
    with pytest.raises(ArtefactError, match=f"holds '{name.split('/')[0]}' beside"):
        fitted({"c": ["z"]}).save(tmp_path / "w")
    assert (tmp_path / "w" / name).read_text() == "precious"
    assert nvt.Workflow.load(tmp_path / "w").transform({"c": "a"}) == {"c": 4}


def test_a_save_that_fails_leaves_no_folders(tmp_path: Path) -> None:
    workflow = nvt.Workflow(["c"] >> ops.LambdaOp(lambda column: column)).fit(SMALL)
    with pytest.raises(ArtefactError, match="a lambda"):
        workflow.save(tmp_path / "several" / "folders" / "w")
    assert names(tmp_path) == []


def test_the_old_folder_comes_back_when_the_new_one_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted(SMALL).save(tmp_path / "w")
    rename, target = Path.rename, tmp_path / "w"
    calls: list[Path] = []

    def failing(self: Path, to: Path) -> Path:
        if to == target:
            calls.append(self)
            if len(calls) == 1:
                raise OSError(5, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(WriteError, match="Input/output error"):
        fitted({"c": ["z"]}).save(target)
    monkeypatch.undo()
    assert len(calls) == 2 and names(tmp_path) == ["w"]
    assert nvt.Workflow.load(target).transform({"c": "a"}) == {"c": 4}


def test_limits_of_a_table_on_disk(tmp_path: Path) -> None:
    """A vocabulary that stayed on disk is copied, not read."""
    workflow = nvt.Workflow(["c"] >> ops.Categorify()).fit(
        nvt.Dataset(pa.table(LARGE), npartitions=4), memory_limit="400kB"
    )
    op = workflow.output_node.op
    assert isinstance(op, ops.Categorify)
    workflow.save(tmp_path / "w")
    assert op.vocabularies_["c"].path is not None
    loaded = nvt.Workflow.load(tmp_path / "w")
    assert loaded.transform(LARGE)["c"].tolist() == workflow.transform(LARGE)["c"].tolist()
