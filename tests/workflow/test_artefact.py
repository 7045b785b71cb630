"""Saved workflows: what is in them, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import tabfeed as nvt
from tabfeed import ops
from tabfeed.errors import ArtefactError, NotFittedError, OperatorError

DATA = pa.table({"c": ["b", "a", None, "b"], "x": [1.0, None, 2.5, 4.0], "y": [0, 1, 1, 0]})


def thrice(column: pl.Series) -> pl.Series:
    return column * 3


class Twice(ops.Operator):
    def transform(self, frame: pl.LazyFrame, inputs: ops.Inputs) -> pl.LazyFrame:
        return frame.select(pl.col(n) * 2 for n in inputs.names)


def workflow() -> nvt.Workflow:
    cats = ["c"] >> ops.Categorify()
    conts = ["x"] >> ops.FillMissing() >> ops.Normalize()
    return nvt.Workflow(cats + conts + (["c"] >> ops.TargetEncoding("y")) + ["y"]).fit(DATA)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    workflow().save(tmp_path / "w")
    return tmp_path / "w"


def body_of(folder: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((folder / "workflow.json").read_text())
    return body


def reseal(folder: Path) -> None:
    """Make the checksums true again after a change."""
    listed = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "checksums.json"):
        content = file.read_bytes()
        name = file.relative_to(folder).as_posix()
        listed[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "checksums.json").write_text(json.dumps(listed))


def rewrite(folder: Path, change: Any) -> None:
    """Change ``workflow.json`` (not if `change` is None), and make the checksums true again."""
    if change is not None:
        body = json.loads((folder / "workflow.json").read_text())
        change(body)
        (folder / "workflow.json").write_text(json.dumps(body))
    reseal(folder)


def test_what_is_in_the_folder(saved: Path) -> None:
    names = sorted(p.relative_to(saved).as_posix() for p in saved.rglob("*") if p.is_file())
    assert names == [
        "checksums.json",
        "tables/0000.parquet",
        "tables/0001.parquet",
        "workflow.json",
    ]
    body = json.loads((saved / "workflow.json").read_text())
    assert (body["format"], body["format_version"]) == ("tabfeed-workflow", 1)
    assert {"python", "numpy", "pyarrow", "polars"} <= body["versions"].keys()
    assert [p.name for p in saved.parent.iterdir()] == ["w"]


def test_the_folder_says_what_learned_and_which_modules_it_needs(saved: Path) -> None:
    body = body_of(saved)
    learned = sorted(n["operator"] for n in body["nodes"] if n["fitted"])
    assert learned == ["tabfeed.ops:" + n for n in ("Categorify", "Normalize", "TargetEncoding")]
    assert body["modules"] == []
    nvt.Workflow(["x"] >> Twice()).fit(DATA).save(saved)
    assert body_of(saved)["modules"] == [__name__]
    loaded = nvt.Workflow.load(saved, trusted=[__name__])
    assert loaded.transform({"x": 1.5}) == {"x": 3.0}


def test_what_an_update_needs_is_saved_unless_it_is_not_wanted(tmp_path: Path) -> None:
    fitted = nvt.Workflow(["c"] >> ops.Categorify(freq_threshold=2)).fit(DATA)
    fitted.save(tmp_path / "whole")
    fitted.save(tmp_path / "small", updatable=False)
    assert nvt.Workflow.load(tmp_path / "whole").update({"c": ["a"]}) == {"c": 1}
    with pytest.raises(OperatorError, match="save with updatable=True"):
        nvt.Workflow.load(tmp_path / "small").update({"c": ["a"]})


def test_round_trip(saved: Path) -> None:
    loaded = nvt.Workflow.load(saved)
    assert loaded.transform(DATA).equals(workflow().transform(DATA))
    assert loaded.output_schema == workflow().output_schema
    assert loaded.remove_inputs("y").transform(DATA.select(["c", "x"])).num_rows == 4


def every_shape() -> list[Any]:
    both = ["x", "y"] >> ops.FillMissing()
    return [
        both["x"],
        both - "y",
        both - ops.Node.of(["y"]),
        both + "c",
        [[both["x"], both["y"]]] >> ops.HashedCross(7),
        [both["x"], "y"] >> ops.Normalize(),
        [["c", "y"]] >> ops.Categorify(encode_type="combo"),
        ["c", ["c", "y"]] >> ops.TargetEncoding("y"),
        ["c", ["c", "y"]] >> ops.JoinGroupby(both["x"], stats=["mean"]),
        nvt.ColumnSelector("*") >> ops.AddTags("id"),
        nvt.ColumnSelector(dtypes="double") >> ops.LogOp(),
        ops.Node.of(ops.Subgraph("s", both)) + "c",
        ["c", "x"] >> ops.Groupby("c"),
        ["x"] >> ops.LambdaOp(thrice, dependency="y"),
        ["x"] >> ops.Bucketize(np.array([1.0, 3.0])),
        ["x", "y"] >> ops.Bucketize({"x": np.array([1.0, 3.0]), "y": (0, 1)}),
        nvt.ColumnSelector(["c", "x"]) >> ops.Rename(postfix="_2"),
    ]


@pytest.mark.parametrize("number", range(len(every_shape())))
def test_every_shape_of_graph(number: int, tmp_path: Path) -> None:
    fitted = nvt.Workflow(every_shape()[number]).fit(DATA)
    fitted.save(tmp_path / "w")
    loaded = nvt.Workflow.load(tmp_path / "w", trusted=[__name__])
    assert loaded.transform(DATA).equals(fitted.transform(DATA))


def test_saving_again_replaces(saved: Path) -> None:
    nvt.Workflow(["x"] >> ops.Normalize()).fit(DATA).save(saved)
    assert nvt.Workflow.load(saved).output_schema.column_names == ["x"]
    assert [p.name for p in saved.parent.iterdir()] == ["w"]


def test_saving_never_replaces_something_else(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "thesis.txt").write_text("mine")
    with pytest.raises(ArtefactError, match="is not a saved workflow"):
        workflow().save(tmp_path / "w")
    assert (tmp_path / "w" / "thesis.txt").read_text() == "mine"


def test_a_save_that_fails_takes_the_folders_it_made_with_it(tmp_path: Path) -> None:
    fitted = nvt.Workflow(["x"] >> ops.LambdaOp(lambda column: column)).fit(DATA)
    with pytest.raises(ArtefactError):
        fitted.save(tmp_path / "a" / "b" / "c" / "w")
    assert list(tmp_path.iterdir()) == []


def test_unfitted(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        nvt.Workflow(["x"] >> ops.Normalize()).save(tmp_path / "w")


def test_functions_that_cannot_be_found_again(tmp_path: Path) -> None:
    def inside(column: pl.Series) -> pl.Series:
        return column

    for function in (lambda column: column, inside):
        fitted = nvt.Workflow(["x"] >> ops.LambdaOp(function)).fit(DATA)
        with pytest.raises(ArtefactError, match=r"def my_function\(column\)"):
            fitted.save(tmp_path / "w")
    assert list(tmp_path.iterdir()) == []


def test_functions_of_the_script_itself(tmp_path: Path) -> None:
    script = (
        "import tabfeed as nvt\nfrom tabfeed import ops\n"
        "def mine(c): return c\n"
        f"nvt.Workflow(['x'] >> ops.LambdaOp(mine)).fit({{'x': [1]}}).save(r'{tmp_path / 'w'}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "ArtefactError" in done.stderr and "__main__" in done.stderr


@pytest.mark.parametrize("file", ["workflow.json", "tables/0000.parquet"])
def test_a_changed_or_truncated_file(saved: Path, file: str) -> None:
    path = saved / file
    whole = path.read_bytes()
    for damage in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(damage)
        with pytest.raises(ArtefactError, match="has changed since it was saved, or was cut short"):
            nvt.Workflow.load(saved)
    path.unlink()
    with pytest.raises(ArtefactError):
        nvt.Workflow.load(saved)


def test_checksums_are_needed(saved: Path) -> None:
    (saved / "checksums.json").write_text("{}")
    with pytest.raises(ArtefactError, match="does not list"):
        nvt.Workflow.load(saved)
    (saved / "checksums.json").unlink()
    with pytest.raises(ArtefactError, match="cannot be read"):
        nvt.Workflow.load(saved)


@pytest.mark.parametrize("name", ["workflow.json", "checksums.json"])
def test_a_link_in_place_of_a_note(saved: Path, name: str) -> None:
    (saved / name).rename(saved.parent / name)
    (saved / name).symlink_to(saved.parent / name)
    with pytest.raises(ArtefactError, match=f"{name} is a link"):
        nvt.Workflow.load(saved)


def test_a_pipe_in_place_of_the_checksums_is_not_waited_for(saved: Path) -> None:
    (saved / "checksums.json").unlink()
    os.mkfifo(saved / "checksums.json")
    with pytest.raises(ArtefactError, match="cannot be read: it is missing, or is not a file"):
        nvt.Workflow.load(saved)


def test_not_a_workflow(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="is not a saved workflow"):
        nvt.Workflow.load(tmp_path)


def test_a_newer_format(saved: Path) -> None:
    rewrite(saved, lambda body: body.update(format_version=2))
    with pytest.raises(ArtefactError, match="this tabfeed reads up to 1: upgrade it"):
        nvt.Workflow.load(saved)


@pytest.mark.parametrize("version", [0, -1, "1", None])
def test_a_version_that_is_none(saved: Path, version: Any) -> None:
    rewrite(saved, lambda body: body.update(format_version=version))
    with pytest.raises(ArtefactError, match="format_version"):
        nvt.Workflow.load(saved)


@pytest.mark.parametrize(
    "path", ["../secret.parquet", "/etc/passwd", "tables/../../secret.parquet"]
)
def test_a_path_that_leads_outside(saved: Path, path: str) -> None:
    pl.DataFrame({"v0": ["a"], "count": [1]}).write_parquet(saved.parent / "secret.parquet")

    def change(body: dict[str, Any]) -> None:
        for node in body["nodes"]:
            if node["operator"].endswith("Categorify"):
                node["state"]["vocabularies"]["c"] = {"$table": path}

    rewrite(saved, change)
    with pytest.raises(ArtefactError, match="outside itself"):
        nvt.Workflow.load(saved)


def test_a_link_that_leads_outside(saved: Path) -> None:
    table = saved / "tables" / "0000.parquet"
    outside = saved.parent / "outside.parquet"
    os.replace(table, outside)
    table.symlink_to(outside)
    with pytest.raises(ArtefactError, match="outside itself"):
        nvt.Workflow.load(saved)


def test_a_link_that_stays_inside(saved: Path) -> None:
    """Where it leads may change after it was checked."""
    table = saved / "tables" / "0000.parquet"
    table.rename(saved / "tables" / "real.parquet")
    table.symlink_to("real.parquet")
    with pytest.raises(ArtefactError, match=r"0000\.parquet is a link"):
        nvt.Workflow.load(saved)
    table.unlink()
    (saved / "tables" / "real.parquet").rename(table)
    (saved / "tables").rename(saved / "there")
    (saved / "tables").symlink_to("there")
    with pytest.raises(ArtefactError, match="tables is a link"):
        nvt.Workflow.load(saved)


def test_the_folder_itself_may_be_a_link(saved: Path) -> None:
    (saved.parent / "newest").symlink_to(saved)
    loaded = nvt.Workflow.load(saved.parent / "newest")
    assert loaded.transform(DATA).equals(workflow().transform(DATA))


def test_nonsense_inside(saved: Path) -> None:
    rewrite(saved, lambda body: body.pop("nodes"))
    with pytest.raises(ArtefactError, match=r"workflow\.json: 'nodes' is missing"):
        nvt.Workflow.load(saved)


def test_a_killed_save_leaves_the_old_one_whole(saved: Path) -> None:
    script = (
        "import signal, tabfeed as nvt\nfrom tabfeed import ops\n"
        "from tabfeed.workflow import artefact\n"
        "w = nvt.Workflow(['x'] >> ops.Normalize()).fit({'x': [1.0, 2.0]})\n"
        "def slow(folder):\n    print('here', flush=True)\n    signal.pause()\n"
        "artefact._checksums = slow\n"
        f"w.save(r'{saved}')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert nvt.Workflow.load(saved).transform(DATA).equals(workflow().transform(DATA))
    workflow().save(saved)  # the next save sweeps up
    assert [p.name for p in saved.parent.iterdir()] == ["w"]


def test_a_save_killed_between_old_and_new(saved: Path) -> None:
    """The old folder has left, the new one has not come: whoever asks next brings it."""
    saved.rename(saved.parent / ".w.saving-0123")
    assert nvt.Workflow.load(saved).transform(DATA).equals(workflow().transform(DATA))
    assert [p.name for p in saved.parent.iterdir()] == ["w"]


@pytest.mark.parametrize(("name", "most"), [("workflow.json", 2**28), ("checksums.json", 2**24)])
def test_files_larger_than_promised_are_not_read(tmp_path: Path, name: str, most: int) -> None:
    nvt.Workflow(["x"] >> ops.Normalize()).fit({"x": [1.0, 2.0]}).save(tmp_path / "w")
    os.truncate(tmp_path / "w" / name, most + 1)  # takes no room on the disk
    with pytest.raises(ArtefactError, match=f"{name} is larger than {most:,} bytes"):
        nvt.Workflow.load(tmp_path / "w")
