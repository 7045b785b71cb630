from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
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
    MANIFEST,
    STAGING,
    Entry,
    check_finished,
    marked,
    read_manifest,
)
from tabfeed.io.commit.unlocked import Heartbeat
from tabfeed.io.storage.files import path_of


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


# -- when it fails ----------------------------------------------------------------------


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


# -- two at once ------------------------------------------------------------------------


# -- elsewhere --------------------------------------------------------------------------


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
