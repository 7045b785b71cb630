"""Writing where something is already: what is replaced, refused or kept, and who waits."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import DatasetExistsError, UnfinishedDatasetError, WriteError
from tabfeed.execute import LocalExecutor
from tests.open_files import open_files

MANIFEST, JOURNAL, STAGING = "_tabfeed.json", "_tabfeed_commit.json", "_tabfeed_writing"


class Boom(Exception):
    pass


def boom() -> None:
    raise Boom


def write(folder: Path | str, files: dict[str, str], **options: Any) -> None:
    """A dataset of these files, each of one row of text."""
    during(files, folder, lambda: None, **options)


def during(
    files: dict[str, str], folder: Path | str, hook: Callable[[], None], **options: Any
) -> None:
    """The same; calls `hook` when all files but the last are written."""
    left = list(files)

    def watch(table: pa.Table) -> pa.Table:
        left.pop()
        if not left:
            hook()
        return table

    ds = Dataset({"t": list(files.values())}, npartitions=len(files))
    options.update(output_files=list(files), executor=LocalExecutor(threads=1))
    ds.map(watch, schema=ds.schema).to_parquet(folder, **options)


def text(path: Path) -> str:
    return str(pq.read_table(path)["t"][0])


def tree(folder: Path) -> dict[str, str | bytes]:
    """Every file below a folder but the manifest; of those written here their text."""
    found = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != MANIFEST]
    contents = {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}
    return {n: text(folder / n) if c[:4] == b"PAR1" else c for n, c in contents.items()}


def test_a_foreign_dataset_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "x.pq").write_bytes(b"theirs")
    with pytest.raises(DatasetExistsError):
        write(tmp_path, {"c.parquet": "new"})
    write(tmp_path, {"c.parquet": "new"}, overwrite=True)
    assert tree(tmp_path) == {"c.parquet": "new"}


def test_an_empty_dataset_is_one_too(tmp_path: Path) -> None:
    Dataset({"t": pa.array([], pa.string())}).to_parquet(tmp_path)
    with pytest.raises(DatasetExistsError):
        write(tmp_path, {"c.parquet": "new"})


def test_what_is_not_data_stays(tmp_path: Path) -> None:
    mine = {
        "README.md": b"notes",
        "_backup/x.parquet": b"kept aside",
        ".cache/y.parquet": b"hidden",
        "plots/z.png": b"picture",
    }
    for name, content in mine.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    write(tmp_path, {"a.parquet": "old"})
    (tmp_path / "schema.pbtxt").write_text("old")
    write(tmp_path, {"b.parquet": "new"}, overwrite=True)
    assert tree(tmp_path) == {**mine, "b.parquet": "new"}


def test_files_added_by_the_user_stay_when_a_dataset_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": "old"})
    pq.write_table(pa.table({"t": ["mine"]}), tmp_path / "mine.parquet")
    with pytest.warns(UserWarning, match="files that were added after it was written"):
        write(tmp_path, {"b.parquet": "new"}, overwrite=True)
    assert tree(tmp_path) == {"b.parquet": "new", "mine.parquet": "mine"}
    with pytest.raises(WriteError, match=r"mine.parquet is in the way of .*Nothing was changed"):
        write(tmp_path, {"mine.parquet": "new"}, overwrite=True)
    assert tree(tmp_path) == {"b.parquet": "new", "mine.parquet": "mine"}


@pytest.mark.parametrize("note", ["_tabfeed.json", "_tabfeed_commit.json"])
def test_nothing_is_deleted_through_a_link(tmp_path: Path, note: str) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.parquet").write_bytes(b"mine")
    write(folder, {"a.parquet": "old"})
    (folder / "sub").symlink_to(elsewhere)
    name = "sub/precious.parquet"
    both = ["a.parquet", name]
    files = [{"name": n, "bytes": 4} for n in both]
    listed = {"files": files, "writing": [], "removing": both}
    (folder / note).write_text(json.dumps(listed))
    write(folder, {"a.parquet": "new"}, overwrite=True)
    assert text(folder / "a.parquet") == "new"
    assert tree(elsewhere) == {"precious.parquet": b"mine"}
    with pytest.raises(WriteError, match=r"sub is in the way of .*Nothing was changed"):
        write(folder, {"sub/b.parquet": "new"}, overwrite=True)
    assert tree(elsewhere) == {"precious.parquet": b"mine"}


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(DatasetExistsError, match="is a file"):
        write(tmp_path / "f", {"a": ""}, overwrite=True)
    assert (tmp_path / "f").read_text() == "x"


def test_a_folder_of_old_files_makes_way_for_a_file_of_its_name(tmp_path: Path) -> None:
    write(tmp_path, {"x.parquet/part.parquet": "old"})
    write(tmp_path, {"x.parquet": "new"}, overwrite=True)
    assert tree(tmp_path) == {"x.parquet": "new"}


def test_a_damaged_manifest_is_refused_and_can_be_replaced(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": "old"})
    (tmp_path / MANIFEST).write_text('{"files": 3')
    with pytest.raises(UnfinishedDatasetError, match=f"{MANIFEST} is damaged"):
        Dataset(tmp_path)
    write(tmp_path, {"b.parquet": "new"}, overwrite=True)
    assert tree(tmp_path) == {"b.parquet": "new"}
    assert Dataset(tmp_path).num_rows == 1


def test_an_exception_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": "old"})
    with pytest.raises(Boom):
        during({"a.parquet": "new", "b.parquet": "new"}, tmp_path, boom, overwrite=True)
    assert tree(tmp_path) == {"a.parquet": "old"}
    assert not (tmp_path / STAGING).exists()


def test_an_exception_takes_a_new_folder_away_again(tmp_path: Path) -> None:
    with pytest.raises(Boom):
        during({"a": ""}, tmp_path / "new", boom)
    assert not (tmp_path / "new").exists()
    with pytest.raises(Boom):
        during({"a": ""}, tmp_path, boom)
    assert tmp_path.exists()


def test_completing_removes_what_the_cut_short_writing_left(tmp_path: Path) -> None:
    """Also files that only the journal knows of."""
    (tmp_path / "part.bin").write_bytes(b"moved already")
    (tmp_path / "mine.bin").write_bytes(b"mine")
    (tmp_path / STAGING).mkdir()
    (tmp_path / STAGING / "rest.bin").write_bytes(b"not moved yet")
    (tmp_path / JOURNAL).write_text(json.dumps({"writing": ["part.bin"], "removing": []}))
    write(tmp_path, {"other.parquet": "new"})
    assert tree(tmp_path) == {"mine.bin": b"mine", "other.parquet": "new"}


def test_what_a_killed_writer_left_lets_no_other_replace_a_dataset(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": "old"})
    (tmp_path / STAGING).mkdir()
    (tmp_path / STAGING / "rest.bin").write_bytes(b"not moved")
    with pytest.raises(DatasetExistsError):
        write(tmp_path, {"a.parquet": "new"})
    assert text(tmp_path / "a.parquet") == "old"


def test_a_damaged_journal_is_refused_and_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text('{"writing": ')
    with pytest.raises(UnfinishedDatasetError):
        write(tmp_path, {"a.parquet": "new"})
    write(tmp_path, {"a.parquet": "new"}, overwrite=True)
    assert Dataset(tmp_path).to_arrow()["t"].to_pylist() == ["new"]


def test_failing_to_complete_leaves_it_unfinished(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(json.dumps({"writing": [], "removing": []}))
    with pytest.raises(Boom):
        during({"a": ""}, tmp_path, boom)
    with pytest.raises(UnfinishedDatasetError, match="half replaced"):
        Dataset(tmp_path)


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="could not write /proc/"):
        write("/proc/nothing/here", {"a": ""})


def test_a_second_writer_is_turned_away(tmp_path: Path) -> None:

    def second() -> None:
        with pytest.raises(WriteError, match=r"another process is writing .*/x now; wait"):
            write(tmp_path / "x", {"a.parquet": "second"}, overwrite=True)

    during({"a.parquet": "first"}, tmp_path / "x", second)
    assert tree(tmp_path / "x") == {"a.parquet": "first"}


def test_a_second_process_is_turned_away(tmp_path: Path) -> None:
    program = """
        import sys
        from tabfeed import Dataset
        try:
            Dataset({"t": ["second"]}).to_parquet(sys.argv[1], overwrite=True)
            print("went in")
        except OSError as e:
            print(type(e).__name__, e)
    """
    said = []

    def second() -> None:
        command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    during({"a.parquet": "first"}, tmp_path, second)
    assert len(said) == 1
    assert said[0].startswith("WriteError another process is writing")


def test_of_many_writers_at_once_one_wins(tmp_path: Path) -> None:
    """None writes over another without being told to, however close they come."""
    results: list[str] = []
    start = threading.Barrier(8)

    def go(number: int) -> None:
        start.wait()
        try:
            write(tmp_path / "x", {f"{number}.parquet": "data"})
            results.append("wrote")
        except (WriteError, DatasetExistsError) as e:
            results.append(type(e).__name__)

    threads = [threading.Thread(target=go, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("wrote") == 1
    assert len(results) == 8
    assert len(tree(tmp_path / "x")) == 1


def test_the_lock_is_free_after_success_and_failure(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": "1"})
    with pytest.raises(DatasetExistsError):
        write(tmp_path, {"a.parquet": "2"})
    with pytest.raises(Boom):
        during({"a": ""}, tmp_path, boom, overwrite=True)
    write(tmp_path, {"a.parquet": "3"}, overwrite=True)
    assert open_files(tmp_path) == []


def test_a_filesystem_in_memory() -> None:
    url = "memory://test_commit/x"
    memory = fsspec.filesystem("memory")
    try:
        write(url, {"a.parquet": "old", "b.parquet": "old"})
        memory.pipe("/test_commit/x/notes.txt", b"mine")
        with pytest.raises(DatasetExistsError, match="memory:///test_commit/x already holds"):
            write(url, {"c.parquet": "new"})
        with pytest.raises(Boom):
            during({"a": ""}, url, boom, overwrite=True)
        write(url, {"b.parquet": "new"}, overwrite=True)
        found = {p.removeprefix("/test_commit/x/") for p in memory.find("/test_commit/x")}
        manifest = json.loads(memory.cat(f"/test_commit/x/{MANIFEST}"))
        new = f"b-w{manifest['writer']}.parquet"
        assert [f["name"] for f in manifest["files"]] == [new]
        assert found == {new, "notes.txt", MANIFEST}
        assert Dataset(url).to_arrow().to_pydict() == {"t": ["new"]}
    finally:
        memory.rm("/test_commit", recursive=True)


@pytest.fixture
def store() -> Iterator[str]:
    """The address of a folder in a store that is empty, and is emptied."""
    yield "memory://test_overwriting/store"
    memory = fsspec.filesystem("memory")
    if memory.exists("/test_overwriting"):
        memory.rm("/test_overwriting", recursive=True)


def test_files_of_a_writer_at_work_are_no_dataset(store: str) -> None:
    """Those that it has copied already, while there is no manifest."""
    memory, living = fsspec.filesystem("memory"), "1" * 16
    said = {"machine": "another", "renewed": time.time(), "writing": [], "removing": []}
    memory.pipe(f"{store}/{STAGING}/{living}/writer.json", json.dumps(said).encode())
    memory.pipe(f"{store}/a-w{living}.parquet", b"copied")
    write(store, {"b.parquet": "new"})
    assert len(Dataset(store).files) == 1
    assert memory.exists(f"{store}/a-w{living}.parquet")
