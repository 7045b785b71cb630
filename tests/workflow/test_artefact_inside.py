"""Saved workflows at the limits of what is loaded, and beside another save."""

from __future__ import annotations

from pathlib import Path

import pytest

import tabfeed as nvt
from tabfeed import ops
from tabfeed.errors import ArtefactError
from tabfeed.io.storage.local import make_locked
from tabfeed.workflow import artefact, values

DATA = {"c": ["b", "a", None, "b"], "x": [1.0, None, 2.5, 4.0]}


def workflow() -> nvt.Workflow:
    return nvt.Workflow((["c"] >> ops.Categorify()) + (["x"] >> ops.Normalize())).fit(DATA)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    workflow().save(tmp_path / "w")
    return tmp_path / "w"


def test_a_structure_too_large_to_load_is_not_saved(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted, size = workflow(), (saved / "workflow.json").stat().st_size
    monkeypatch.setattr(artefact, "_MOST_BYTES", size)
    fitted.save(saved)
    nvt.Workflow.load(saved)
    monkeypatch.setattr(artefact, "_MOST_BYTES", size - 1)
    with pytest.raises(
        ArtefactError, match=f"takes {size:,} bytes of JSON.*Keep large state in Arrow tables"
    ):
        fitted.save(saved)
    with pytest.raises(ArtefactError, match="bytes of JSON"):
        fitted.save(saved.parent / "new")
    assert [p.name for p in saved.parent.iterdir()] == ["w"]
    with pytest.raises(ArtefactError, match=r"workflow\.json is larger than") as caught:
        nvt.Workflow.load(saved)
    assert str(caught.value).startswith(str(saved))


def test_checksums_that_are_too_many(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (saved / "checksums.json").stat().st_size
    monkeypatch.setattr(artefact, "_MOST_LISTED", size)
    nvt.Workflow.load(saved)
    monkeypatch.setattr(artefact, "_MOST_LISTED", size - 1)
    with pytest.raises(ArtefactError, match=r"checksums\.json is larger than"):
        nvt.Workflow.load(saved)


def test_saving_leaves_another_save_alone(saved: Path) -> None:
    other, lock = make_locked(lambda: _made(saved.parent / ".w.saving-0123"))
    workflow().save(saved)
    assert other.is_dir()
    lock.release()
    workflow().save(saved)
    assert not other.exists()


def _made(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ArtefactError("w.json: nodes[0].params: too deep"), "w.json: nodes[0].params: too deep"),
        (ArtefactError("too deep"), "w.json: nodes[0]: too deep"),
        (ValueError("w.json"), "w.json: nodes[0]: ValueError: w.json"),
    ],
)
def test_an_error_names_its_place_once(error: Exception, words: str) -> None:
    with pytest.raises(ArtefactError) as caught, artefact.blaming("w.json: nodes[0]"):
        raise error
    assert str(caught.value) == words


def test_a_table_larger_than_memory(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "free_memory", lambda: 100)
    with pytest.raises(ArtefactError, match=r"nodes\[.*GB in memory"):
        nvt.Workflow.load(saved)
