from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tabfeed.errors import (
    ArgumentError,
    DatasetExistsError,
    UnfinishedDatasetError,
    WriteError,
)
from tabfeed.io.commit import object_store
from tabfeed.io.commit.commit import Commit
from tabfeed.io.commit.manifest import (
    JOURNAL,
    MANIFEST,
    STAGING,
    Entry,
    check_finished,
    marked,
    read_manifest,
)
from tabfeed.io.commit.unlocked import Heartbeat
from tabfeed.io.storage.files import path_of
from tests.open_files import open_files


def write(folder: Path | str, files: dict[str, bytes], **options: object) -> None:
    with Commit(folder, **options) as commit:
        for name, content in files.items():
            with commit.create(name) as sink:
                sink.write(content)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the manifest."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != MANIFEST
    }


class Boom(Exception):
    pass


# -- the ordinary way -------------------------------------------------------------------


def test_files_appear_at_the_end_with_a_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "set"
    with Commit(folder) as commit:
        with commit.create("a.parquet") as sink:
            sink.write(b"123")
        commit.rows["a.parquet"] = 7
        with commit.create("k=1/b.parquet") as sink:
            sink.write(b"12")
        own = f"{STAGING}/{commit.writer}"
        assert tree(folder).keys() == {f"{own}/a.parquet", f"{own}/k=1/b.parquet"}
    assert tree(folder) == {"a.parquet": b"123", "k=1/b.parquet": b"12"}
    manifest = read_manifest(path_of(folder))
    assert manifest is not None
    assert manifest.files == (
        Entry("a.parquet", 3, 7, "884863d2"),
        Entry("k=1/b.parquet", 2, None, "4f5344cd"),
    )


def test_the_manifest_lists_files_in_reading_order(tmp_path: Path) -> None:
    with Commit(tmp_path) as commit:
        for name in ("a", "b", "z"):
            with commit.create(name):
                pass
        commit.order = ["z", "b"]
    manifest = read_manifest(path_of(tmp_path))
    assert manifest is not None
    assert manifest.names == ["z", "b", "a"]


def test_a_name_is_given_once(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"two files .* 'a'"), Commit(tmp_path) as commit:
        for _ in range(2):
            with commit.create("a"):
                pass
    assert tree(tmp_path) == {}


# -- what is there already --------------------------------------------------------------


def test_a_dataset_is_replaced_only_when_asked(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": b"old", "k=1/b.parquet": b"old"})
    with pytest.raises(DatasetExistsError, match="overwrite=True"):
        write(tmp_path, {"c.parquet": b"new"})
    assert tree(tmp_path) == {"a.parquet": b"old", "k=1/b.parquet": b"old"}
    write(tmp_path, {"c.parquet": b"new"}, overwrite=True)
    assert tree(tmp_path) == {"c.parquet": b"new"}
    assert not (tmp_path / "k=1").exists()


def test_a_foreign_dataset_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "x.pq").write_bytes(b"theirs")
    with pytest.raises(DatasetExistsError):
        write(tmp_path, {"c.parquet": b"new"})
    write(tmp_path, {"c.parquet": b"new"}, overwrite=True)
    assert tree(tmp_path) == {"c.parquet": b"new"}


def test_an_empty_dataset_is_one_too(tmp_path: Path) -> None:
    write(tmp_path, {})
    with pytest.raises(DatasetExistsError):
        write(tmp_path, {"c.parquet": b"new"})


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
    write(tmp_path, {"a.parquet": b"old", "schema.pbtxt": b"old"})
    write(tmp_path, {"b.parquet": b"new"}, overwrite=True)
    assert tree(tmp_path) == {**mine, "b.parquet": b"new"}


NEIGHBOURS = {
    "workflow/workflow.json": b"{}",
    "workflow/checksums.json": b"{}",
    "workflow/tables/0000.parquet": b"learned",
    "valid/_tabfeed.json": b"{}",
    "valid/part_0.parquet": b"another dataset",
    "categories/unique.C1.parquet": b"an older tool's",
    "k=1/sub/x.parquet": b"below a key",
}


@pytest.mark.parametrize("by", ["tabfeed", "another tool"])
def test_overwriting_leaves_other_things_in_subfolders(tmp_path: Path, by: str) -> None:
    """A saved workflow, another dataset, any other folder."""
    if by == "tabfeed":
        write(tmp_path, {"a.parquet": b"old", "k=1/b.parquet": b"old"})
    for name, content in NEIGHBOURS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for name in ("a.parquet", "k=1/b.parquet") if by != "tabfeed" else ():
        (tmp_path / name).write_bytes(b"old")
    with pytest.raises(
        DatasetExistsError,
        match=r"replace its 2 files, such as a.parquet. Other files and subfolders stay",
    ):
        write(tmp_path, {"c.parquet": b"new"})
    write(tmp_path, {"c.parquet": b"new"}, overwrite=True)
    stay = {n: c for n, c in NEIGHBOURS.items() if not n.endswith(MANIFEST)}
    assert tree(tmp_path) == {**stay, "c.parquet": b"new"}
    assert (tmp_path / "valid" / MANIFEST).read_bytes() == b"{}"


def test_other_things_in_subfolders_are_no_dataset(tmp_path: Path) -> None:
    for name, content in NEIGHBOURS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    Commit(tmp_path).check()
    write(tmp_path, {"c.parquet": b"new"})
    assert (tmp_path / "workflow/tables/0000.parquet").read_bytes() == b"learned"


def test_files_added_by_the_user_stay_when_a_dataset_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": b"old"})
    (tmp_path / "mine.parquet").write_bytes(b"mine")
    write(tmp_path, {"b.parquet": b"new"}, overwrite=True)
    assert tree(tmp_path) == {"b.parquet": b"new", "mine.parquet": b"mine"}
    with pytest.raises(WriteError, match=r"mine.parquet is in the way of .*Nothing was changed"):
        write(tmp_path, {"mine.parquet": b"new"}, overwrite=True)
    assert tree(tmp_path) == {"b.parquet": b"new", "mine.parquet": b"mine"}


@pytest.mark.parametrize("note", ["_tabfeed.json", "_tabfeed_commit.json"])
def test_nothing_is_deleted_through_a_link(tmp_path: Path, note: str) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.parquet").write_bytes(b"mine")
    write(folder, {"a.parquet": b"old"})
    (folder / "sub").symlink_to(elsewhere)
    name = "sub/precious.parquet"
    both = ["a.parquet", name]
    files = [{"name": n, "bytes": 4} for n in both]
    listed = {"files": files, "writing": [], "removing": both}
    (folder / note).write_text(json.dumps(listed))
    write(folder, {"a.parquet": b"new"}, overwrite=True)
    assert (folder / "a.parquet").read_bytes() == b"new"
    assert tree(elsewhere) == {"precious.parquet": b"mine"}
    with pytest.raises(WriteError, match=r"sub is in the way of .*Nothing was changed"):
        write(folder, {"sub/b.parquet": b"new"}, overwrite=True)
    assert tree(elsewhere) == {"precious.parquet": b"mine"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_linked_folder_of_data_is_neither_replaced_nor_mixed_in(
    tmp_path: Path, overwrite: bool
) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "a.parquet").write_bytes(b"mine")
    (folder / "k=1").symlink_to(elsewhere)
    with pytest.raises(WriteError, match=r"k=1 is a link to a folder of data"):
        Commit(folder, overwrite=overwrite).check()
    with pytest.raises(WriteError, match=r"k=1 is a link to a folder of data"):
        write(folder, {"k=1/a.parquet": b"new"}, overwrite=overwrite)
    assert tree(elsewhere) == {"a.parquet": b"mine"}
    assert os.listdir(folder) == ["k=1"]


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(DatasetExistsError, match="is a file"):
        write(tmp_path / "f", {"a": b""}, overwrite=True)
    assert (tmp_path / "f").read_text() == "x"


@pytest.mark.parametrize(
    ("obstacle", "name"),
    [("k=1", "k=1/a.parquet"), ("a.parquet/notes.txt", "a.parquet"), ("a.parquet/", "a.parquet")],
)
def test_something_in_the_way_is_found_before_the_old_data_go(
    tmp_path: Path, obstacle: str, name: str
) -> None:
    write(tmp_path, {"old.parquet": b"old"})
    if obstacle.endswith("/"):
        (tmp_path / obstacle).mkdir()
    else:
        (tmp_path / obstacle).parent.mkdir(exist_ok=True)
        (tmp_path / obstacle).write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(WriteError, match=r"in the way of .*Nothing was changed"):
        write(tmp_path, {name: b"new"}, overwrite=True)
    assert tree(tmp_path) == before
    check_finished(path_of(tmp_path))


def test_a_folder_of_old_files_makes_way_for_a_file_of_its_name(tmp_path: Path) -> None:
    write(tmp_path, {"x.parquet/part.parquet": b"old"})
    write(tmp_path, {"x.parquet": b"new"}, overwrite=True)
    assert tree(tmp_path) == {"x.parquet": b"new"}


def test_a_damaged_manifest_is_refused_and_can_be_replaced(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": b"old"})
    (tmp_path / MANIFEST).write_text('{"files": 3')
    with pytest.raises(UnfinishedDatasetError, match=f"{MANIFEST} is damaged"):
        read_manifest(path_of(tmp_path))
    write(tmp_path, {"b.parquet": b"new"}, overwrite=True)
    assert tree(tmp_path) == {"b.parquet": b"new"}
    assert read_manifest(path_of(tmp_path)) is not None


# -- when it fails ----------------------------------------------------------------------


def test_an_exception_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": b"old"})
    with pytest.raises(Boom), Commit(tmp_path, overwrite=True) as commit:
        with commit.create("a.parquet") as sink:
            sink.write(b"new")
        raise Boom
    assert tree(tmp_path) == {"a.parquet": b"old"}
    assert not (tmp_path / STAGING).exists()


def test_an_exception_takes_a_new_folder_away_again(tmp_path: Path) -> None:
    with pytest.raises(Boom), Commit(tmp_path / "new"):
        raise Boom
    assert not (tmp_path / "new").exists()
    with pytest.raises(Boom), Commit(tmp_path):
        raise Boom
    assert tmp_path.exists()


def test_the_disk_fills_up_while_a_file_is_written(tmp_path: Path) -> None:
    """A real one: writing past RLIMIT_FSIZE fails as a full disk does."""
    write(tmp_path, {"a.parquet": b"old"})
    out = run_limited(tmp_path, 1 << 16, 'sink.write(b"x" * (1 << 20))')
    assert out.startswith(f"WriteError could not write {tmp_path}/a.parquet: ")
    assert "too large" in out
    assert f"what was in {tmp_path} before is untouched" in out
    assert tree(tmp_path) == {"a.parquet": b"old"}
    check_finished(path_of(tmp_path))


def test_the_disk_fills_up_while_the_journal_is_written(tmp_path: Path) -> None:
    write(tmp_path, {"a.parquet": b"old"})
    out = run_limited(tmp_path, 8, 'sink.write(b"1234")')
    assert out.startswith(f"WriteError could not write {tmp_path}: ")
    assert "before is untouched" in out
    assert tree(tmp_path) == {"a.parquet": b"old"}
    check_finished(path_of(tmp_path))


def run_limited(folder: Path, limit: int, body: str) -> str:
    program = f"""
        import resource, signal
        from tabfeed.io.commit.commit import Commit
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with Commit({str(folder)!r}, overwrite=True) as commit:
                resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {resource.RLIM_INFINITY}))
                with commit.create("a.parquet") as sink:
                    {body}
        except OSError as e:
            resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY},) * 2)
            print(type(e).__name__, e)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_an_error_after_the_journal_tells_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.parquet": b"old", "b.parquet": b"old"})
    put = Commit._put

    def fail_at_the_manifest(self: Commit, name: str, content: dict[str, object]) -> None:
        if name == MANIFEST:
            raise OSError(5, "Input/output error")
        put(self, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(Commit, "_put", fail_at_the_manifest)
        with pytest.raises(WriteError, match=r"Input/output error; some of its files are old") as e:
            write(tmp_path, {"a.parquet": b"new"}, overwrite=True)
    assert "untouched" not in str(e.value)
    with pytest.raises(UnfinishedDatasetError, match="run the same to_parquet again"):
        check_finished(path_of(tmp_path))
    write(tmp_path, {"a.parquet": b"new"})  # completes it, without being told to overwrite
    check_finished(path_of(tmp_path))
    assert tree(tmp_path) == {"a.parquet": b"new"}


def test_completing_removes_what_the_cut_short_writing_left(tmp_path: Path) -> None:
    """Also files that only the journal knows of."""
    (tmp_path / "part.bin").write_bytes(b"moved already")
    (tmp_path / "mine.bin").write_bytes(b"mine")
    (tmp_path / STAGING).mkdir()
    (tmp_path / STAGING / "rest.bin").write_bytes(b"not moved yet")
    (tmp_path / JOURNAL).write_text(json.dumps({"writing": ["part.bin"], "removing": []}))
    write(tmp_path, {"other.bin": b"new"})
    assert tree(tmp_path) == {"mine.bin": b"mine", "other.bin": b"new"}


def test_failing_to_complete_leaves_it_unfinished(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(json.dumps({"writing": [], "removing": []}))
    with pytest.raises(Boom), Commit(tmp_path):
        raise Boom
    with pytest.raises(UnfinishedDatasetError):
        check_finished(path_of(tmp_path))


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="could not write /proc/"):
        write("/proc/nothing/here", {"a": b""})


# -- two at once ------------------------------------------------------------------------


def test_a_second_writer_is_turned_away(tmp_path: Path) -> None:
    with Commit(tmp_path / "x") as commit:
        with commit.create("a.parquet") as sink:
            sink.write(b"first")
        with pytest.raises(WriteError, match=r"another process is writing .*/x now; wait"):
            write(tmp_path / "x", {"a.parquet": b"second"}, overwrite=True)
    assert tree(tmp_path / "x") == {"a.parquet": b"first"}


def test_a_second_process_is_turned_away(tmp_path: Path) -> None:
    program = f"""
        from tabfeed.io.commit.commit import Commit
        try:
            with Commit({str(tmp_path)!r}, overwrite=True):
                print("went in")
        except OSError as e:
            print(type(e).__name__, e)
    """
    with Commit(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.startswith("WriteError another process is writing")


def test_of_many_writers_at_once_one_wins(tmp_path: Path) -> None:
    """None writes over another without being told to, however close they come."""
    results: list[str] = []
    start = threading.Barrier(8)

    def go(number: int) -> None:
        start.wait()
        try:
            write(tmp_path / "x", {f"{number}.parquet": b"data"})
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
    write(tmp_path, {"a.parquet": b"1"})
    with pytest.raises(DatasetExistsError):
        write(tmp_path, {"a.parquet": b"2"})
    with pytest.raises(Boom), Commit(tmp_path, overwrite=True):
        raise Boom
    write(tmp_path, {"a.parquet": b"3"}, overwrite=True)
    assert open_files(tmp_path) == []


# -- elsewhere --------------------------------------------------------------------------


def test_a_filesystem_in_memory() -> None:
    url = "memory://test_commit/x"
    memory = fsspec.filesystem("memory")
    try:
        write(url, {"k=1/a.parquet": b"old", "b.parquet": b"old"})
        memory.pipe("/test_commit/x/notes.txt", b"mine")
        with pytest.raises(DatasetExistsError, match="memory:///test_commit/x already holds"):
            write(url, {"c.parquet": b"new"})
        with pytest.raises(Boom), Commit(url, overwrite=True):
            raise Boom
        write(url, {"b.parquet": b"new"}, overwrite=True)
        found = {p.removeprefix("/test_commit/x/") for p in memory.find("/test_commit/x")}
        manifest = read_manifest(path_of(url))
        assert manifest is not None
        (new,) = manifest.names
        assert new == marked("b.parquet", manifest.writer)
        assert found == {new, "notes.txt", MANIFEST}
        assert memory.cat(f"/test_commit/x/{new}") == b"new"
    finally:
        memory.rm("/test_commit", recursive=True)


@pytest.fixture
def store() -> Iterator[str]:
    """The address of a folder in a store that is empty, and is emptied."""
    yield "memory://test_commit/store"
    memory = fsspec.filesystem("memory")
    if memory.exists("/test_commit"):
        memory.rm("/test_commit", recursive=True)


def below(url: str) -> set[str]:
    """The names of all objects of a store in memory."""
    root = url.removeprefix("memory:/") + "/"
    return {p.removeprefix(root) for p in fsspec.filesystem("memory").find(url)}


def names(url: str) -> list[str]:
    """The files that the manifest names."""
    manifest = read_manifest(path_of(url))
    assert manifest is not None
    return list(manifest.names)


def test_what_a_dead_writer_left_goes_and_what_the_manifest_names_stays(store: str) -> None:
    memory, dead, living = fsspec.filesystem("memory"), "0" * 16, "1" * 16
    write(store, {"a.parquet": b"old"})
    commit = Commit(store, overwrite=True)
    own = marked("a.parquet", commit.writer)
    for writer, renewed in ((dead, 0.0), (living, time.time())):
        staged = f"{store}/{STAGING}/{writer}"
        said = {
            "machine": "another",
            "renewed": renewed,
            "writing": [marked("b.parquet", writer), own],
            "removing": [f"{writer}.parquet", own],
        }
        for name in (marked("b.parquet", writer), f"{writer}.parquet"):
            memory.pipe(f"{store}/{name}", b"left")
        memory.pipe(f"{staged}/c.parquet", b"staged")
        memory.pipe(f"{staged}/writer.json", json.dumps(said).encode())
    with commit, commit.create("a.parquet") as sink:
        sink.write(b"new")
    assert names(store) == [own]
    assert {n for n in below(store) if living not in n} == {own, MANIFEST}
    assert len([n for n in below(store) if living in n]) == 4


def test_files_of_a_writer_at_work_are_no_dataset(store: str) -> None:
    """Those that it has copied already, while there is no manifest."""
    memory, living = fsspec.filesystem("memory"), "1" * 16
    said = {"machine": "another", "renewed": time.time(), "writing": [], "removing": []}
    memory.pipe(f"{store}/{STAGING}/{living}/writer.json", json.dumps(said).encode())
    memory.pipe(f"{store}/{marked('a.parquet', living)}", b"copied")
    write(store, {"b.parquet": b"new"})
    assert len(names(store)) == 1
    assert marked("a.parquet", living) in below(store)


def test_a_writer_says_which_files_it_adds_and_removes(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For whoever finds it dead."""
    write(store, {"a.parquet": b"old"})
    old, said = names(store), []
    announce = Heartbeat.announce
    monkeypatch.setattr(
        Heartbeat, "announce", lambda self, j: (said.append(j), announce(self, j))[1]
    )
    write(store, {"a.parquet": b"new", "b.parquet": b"new"}, overwrite=True)
    (journal,) = said
    assert list(journal.writing) == names(store)
    assert list(journal.removing) == old


def test_a_manifest_that_arrived_though_its_answer_was_lost_is_published(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = object_store._AnyStore.swap

    def lost(self: object_store._AnyStore, *request: Any) -> bool:
        swap(self, *request)
        raise OSError(5, "no answer")

    write(store, {"a.parquet": b"old"})
    monkeypatch.setattr(object_store._AnyStore, "swap", lost)
    write(store, {"a.parquet": b"new"}, overwrite=True)
    (new,) = names(store)
    assert below(store) == {new, MANIFEST}
    assert fsspec.filesystem("memory").cat(f"{store}/{new}") == b"new"


def test_a_manifest_that_did_not_arrive_leaves_the_old_dataset(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: object_store._AnyStore, *request: Any) -> bool:
        raise OSError(5, "no answer")

    write(store, {"a.parquet": b"old"})
    before = below(store)
    monkeypatch.setattr(object_store._AnyStore, "swap", refused)
    with pytest.raises(WriteError, match="before is untouched"):
        write(store, {"a.parquet": b"new"}, overwrite=True)
    assert below(store) == before
