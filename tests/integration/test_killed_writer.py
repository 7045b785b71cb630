"""Kill a process that writes a dataset, again and again: what is left is whole, or says it is not.

One process imports tabfeed and forks a child for each writing; the children are killed with
SIGKILL, at moments drawn at random, and before and after every change of the folder in turn. Each
row carries the number of its version and how many rows that version has, so that rows of two
versions, or too few, cannot pass for a dataset.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tabfeed import Dataset
from tabfeed.errors import SourceNotFoundError, UnfinishedDatasetError

JOURNAL, STAGING = "_tabfeed_commit.json", "_tabfeed_writing"
KILLS = 10  # for each way of writing


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "folders": {"partition_on": ["k"]},
    "shuffled": {"shuffle": "FULL", "memory_limit": 1, "row_group_size": 10},
    "fast": {"layout": "fast"},
}

SERVER = """
    import json, os, signal, sys
    import numpy as np, pyarrow as pa, pyarrow.fs as pafs
    from tabfeed import Dataset
    from tabfeed.io.commit import commit

    COUNT = -1
    CHANGES = (
        "move", "copy_file", "delete_file", "create_dir", "delete_dir", "open_output_stream"
    )

    def stepped(name):
        def call(self, *args, **options):
            self.here()
            result = getattr(self.inner, name)(*args, **options)
            self.here()
            return result
        return call

    class Disk(pafs.LocalFileSystem):
        '''A filesystem that kills its process at the given step.'''

    class Store:
        '''The same for a store, which has neither locks nor renames.'''
        def __getattr__(self, name):
            return getattr(self.inner, name)

    for name in CHANGES:
        setattr(Disk, name, stepped(name))
        setattr(Store, name, stepped(name))

    def watch(step, kind):
        count = 0
        def here():
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
        path_of, force = commit.path_of, commit._force_to_disk
        def watched(*args):
            place = path_of(*args)
            system = kind()
            system.inner, system.here = place.filesystem, here
            return commit.RemotePath(place.path, system, place.prefix)
        commit.path_of = watched
        commit._force_to_disk = lambda path: (force(path), here())
        return lambda: count

    def write(folder, version, options, step, store):
        counted = watch(step, Store if store else Disk) if step or store else lambda: 0
        rows = 50 + version % 7
        i = np.arange(rows)
        columns = {"i": i, "version": np.full(rows, version), "rows": np.full(rows, rows)}
        table = pa.table({**columns, "k": i % 3})
        Dataset(table).to_parquet(folder, output_files=2 + version % 3, overwrite=True, **options)
        return counted() if step == COUNT else 0

    Dataset(pa.table({"i": np.arange(1)}))  # what this imports, no child has to
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(write(*json.loads(line)))
        print(child, flush=True)
        sys.stdin.readline()  # until somebody asks how it ended, its id stays its own
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Server:
    """Writes versions of a dataset in processes of their own."""

    def __init__(self) -> None:
        self.store = False  # whether folders are taken for a store's
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TABFEED_THREADS": "1"},
        )

    def start(self, folder: Path, version: int, options: dict[str, Any], step: int = 0) -> int:
        """Begin to write; the process's id."""
        return self._ask(json.dumps([str(folder), version, options, step, self.store]))

    def end(self) -> int:
        """How the writing ended: 0, or minus the signal that ended it."""
        return self._ask("")

    def count(self, folder: Path, version: int, options: dict[str, Any]) -> int:
        """Write a version; in how many steps."""
        self.start(folder, version, options, step=-1)
        return self.end()

    def write(self, folder: Path, version: int, options: dict[str, Any], step: int = 0) -> bool:
        """Write a version; whether it came to its end."""
        self.start(folder, version, options, step)
        code = self.end()
        assert code in (0, -signal.SIGKILL)
        return code == 0

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """No more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory where there is one: forcing files to disk is not what is tested here."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as name:
        yield Path(name)


def version_in(folder: Path) -> int | None:
    """The one whole version in the folder, None if opening it is refused."""
    try:
        table = Dataset(folder).to_arrow()
    except UnfinishedDatasetError as e:
        assert "to_parquet" in str(e)
        return None
    assert table.column_names == ["i", "version", "rows", "k"]
    versions = set(table["version"].to_pylist())
    assert len(versions) == 1, f"rows of several versions: {versions}"
    assert table["rows"].to_pylist() == [table.num_rows] * table.num_rows
    assert sorted(table["i"].to_pylist()) == list(range(table.num_rows))
    assert all(i % 3 == k for i, k in zip(*(table[c].to_pylist() for c in "ik"), strict=True))
    return int(versions.pop())


def leftovers(folder: Path) -> list[str]:
    names = [p.name for p in folder.rglob("*") if p.is_file()]
    wanted = ("_tabfeed.json", "mine.txt")
    empty = [p.name for p in folder.rglob("*") if p.is_dir() and not any(p.iterdir())]
    return empty + [n for n in names if not n.endswith(".parquet") and n not in wanted]


@pytest.mark.parametrize("way", WAYS)
def test_killed_at_any_moment_while_replacing(server: Server, place: Path, way: str) -> None:
    """The old dataset, the new one, or refused; running it again always gives the new one."""
    folder, options, dice = place / "data", WAYS[way], random.Random(way)
    assert server.write(folder, 0, options)
    (folder / "mine.txt").write_text("mine")
    usual = min(seconds_to_write(server, folder, options) for _ in range(3))
    for version in range(2, 2 + KILLS):
        writer = server.start(folder, version, options)
        time.sleep(dice.uniform(0, usual))
        os.kill(writer, signal.SIGKILL)
        finished = server.end() == 0
        found = version_in(folder)
        assert found in ((version,) if finished else (version - 1, version, None))
        assert server.write(folder, version, options)
        assert version_in(folder) == version
        assert leftovers(folder) == []
        assert (folder / "mine.txt").read_text() == "mine"


def seconds_to_write(server: Server, folder: Path, options: dict[str, Any]) -> float:
    began = time.perf_counter()
    assert server.write(folder, 1, options)
    return time.perf_counter() - began


def test_killed_while_writing_a_new_folder(server: Server, place: Path) -> None:
    dice = random.Random(0)
    for attempt in range(10):
        folder = place / str(attempt)
        writer = server.start(folder, attempt, {})
        time.sleep(dice.uniform(0, 0.03))
        os.kill(writer, signal.SIGKILL)
        server.end()
        try:
            assert version_in(folder) in (attempt, None)
        except SourceNotFoundError:  # killed before it had put anything down
            assert not folder.exists() or list(folder.iterdir()) == []
        assert server.write(folder, attempt, {})
        assert version_in(folder) == attempt
        assert leftovers(folder) == []


@pytest.mark.parametrize(("way", "stride"), [("plain", 1), ("folders", 3)])
def test_killed_before_and_after_every_change_of_the_folder(
    server: Server, place: Path, way: str, stride: int
) -> None:
    """Not at random: each rename, removal and new file in turn."""
    folder, options = place / "data", WAYS[way]
    assert server.write(folder, 1, WAYS["plain"])
    steps = server.count(folder, 3, options)
    outcomes: list[int | None] = []
    for step in range(1, steps + 1, stride):
        assert server.write(folder, 1, WAYS["plain"])
        assert not server.write(folder, 3, options, step)
        outcomes.append(version_in(folder))
        assert server.write(folder, 3, options)
        assert version_in(folder) == 3
        assert leftovers(folder) == []
    assert len(outcomes) > 20
    first, last = outcomes.index(None), len(outcomes) - outcomes[::-1].index(None)
    assert set(outcomes[:first]) == {1}  # the old one, until the journal is down
    assert set(outcomes[first:last]) == {None}  # then refused, without a gap
    assert set(outcomes[last:]) == {3}  # then the new one
    assert not (folder / "_tabfeed_writing").exists()
    assert not (folder / "_tabfeed_commit.json").exists()


def test_killed_before_and_after_every_change_of_a_store(
    monkeypatch: pytest.MonkeyPatch, server: Server, place: Path
) -> None:
    """There the folder is never refused: it is the old dataset until it is the new one."""
    monkeypatch.setattr(server, "store", True)
    folder, options = place / "data", WAYS["plain"]
    assert server.write(folder, 1, options)
    steps = server.count(folder, 3, options)
    outcomes: list[int | None] = []
    for step in range(1, steps + 1):
        assert server.write(folder, 1, options)
        assert not server.write(folder, 3, options, step)
        outcomes.append(version_in(folder))
        assert server.write(folder, 3, options)
        assert version_in(folder) == 3
        assert leftovers(folder) == []
        assert len(list(folder.iterdir())) == 1 + 2 + 3 % 3
    assert len(outcomes) > 20
    new = outcomes.index(3)
    assert set(outcomes[:new]) == {1}
    assert set(outcomes[new:]) == {3}


def test_killed_twice(server: Server, place: Path) -> None:
    """The writing that was to complete an interrupted one is killed as well."""
    folder, options = place / "data", WAYS["plain"]
    assert server.write(folder, 1, options)
    steps = server.count(folder, 2, options)
    for step in range(1, steps - 4, 5):
        assert server.write(folder, 1, options)
        assert not server.write(folder, 2, options, steps - 8)
        assert version_in(folder) is None
        assert not server.write(folder, 3, options, step)
        assert version_in(folder) in (None, 3)
        assert server.write(folder, 4, options)
        assert version_in(folder) == 4
        assert leftovers(folder) == []
