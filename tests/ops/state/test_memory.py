"""What a fit may hold in memory, what goes to disk, and tables that read alike in both."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import ArtefactError, OperatorError
from tabfeed.ops.state.memory import MemoryManager, SpilledTable, require_room

MB = 1 << 20


class Held:
    """Something of a size, which goes to disk once."""

    def __init__(self, memory: MemoryManager, size: int) -> None:
        self.size, self.spilled = size, False
        memory.hold(self)

    def nbytes(self) -> int:
        return self.size

    def spill(self) -> None:
        assert not self.spilled, "it is on disk already"
        self.spilled = True


def settled(limit: int | None, *sizes: int) -> list[bool]:
    """Which of several things of these sizes go to disk."""
    memory = MemoryManager(limit)
    held = [Held(memory, size) for size in sizes]
    memory.settle()
    return [h.spilled for h in held]


def test_the_largest_go_to_disk_until_a_quarter_of_the_limit_is_left() -> None:
    assert settled(400, 30, 90, 70, 60) == [False, True, True, False]


def test_what_fits_into_a_quarter_of_the_limit_stays() -> None:
    assert settled(400, 60, 40) == [False, False]
    assert settled(400, 60, 41) == [True, False]


def test_what_is_on_disk_counts_no_more() -> None:
    assert settled(4, 5, 5, 0) == [True, True, False]


def test_without_a_limit_nothing_goes_to_disk() -> None:
    assert settled(None, 1 << 60) == [False]


def test_tables_are_grouped_in_memory_up_to_a_sixteenth_of_the_limit() -> None:
    memory = MemoryManager(1600)
    assert memory.allows_grouping(100) and not memory.allows_grouping(101)
    assert MemoryManager().allows_grouping(1 << 60)


def test_a_finished_table_may_keep_an_eighth_of_the_limit() -> None:
    memory = MemoryManager(80 * MB)
    assert memory.may_keep(10 * MB) and not memory.may_keep(10 * MB + 1)


def test_a_finished_table_may_keep_64_mib_at_most_and_1_mib_at_least() -> None:
    for memory in (MemoryManager(), MemoryManager(1 << 60)):
        assert memory.may_keep(64 * MB) and not memory.may_keep(64 * MB + 1)
    assert MemoryManager(8).may_keep(MB) and not MemoryManager(8).may_keep(MB + 1)


def test_every_file_has_a_name_of_its_own_in_one_folder(tmp_path: Path) -> None:
    memory = MemoryManager(folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []  # no folder before it is needed
    files = [memory.new_file() for _ in range(3)] + [memory.new_file(".arrow")]
    assert len({f.stem for f in files}) == 4
    assert [f.suffix for f in files] == [".parquet"] * 3 + [".arrow"]
    (folder,) = tmp_path.iterdir()
    assert {f.parent for f in files} == {folder}
    memory.close()


def test_closing_removes_the_folder_and_may_be_done_twice(tmp_path: Path) -> None:
    memory = MemoryManager(folder=str(tmp_path))
    memory.new_file().write_bytes(b"spilled")
    memory.close()
    assert list(tmp_path.iterdir()) == []
    memory.close()
    assert memory.new_file().parent.is_dir()  # a new folder
    memory.close()
    assert list(tmp_path.iterdir()) == []


def test_a_copy_in_another_process_has_the_limit_and_a_folder_of_its_own(tmp_path: Path) -> None:
    memory = MemoryManager(7, folder=str(tmp_path))
    file = memory.new_file()
    copy = pickle.loads(pickle.dumps(memory))
    assert copy.limit == 7
    assert copy.new_file().parent != file.parent
    copy.close()
    assert file.parent.is_dir()
    memory.close()


TABLE = pa.table({"v0": [f"value {i}" for i in range(1000)], "count": list(range(1000))})


def _on_disk(monkeypatch: pytest.MonkeyPatch) -> SpilledTable:
    monkeypatch.setattr("tabfeed.ops.state.memory._LEAST_KEPT", 0)
    return SpilledTable.within(TABLE, MemoryManager(8))


def test_on_disk_and_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept, spilled = SpilledTable.within(TABLE, MemoryManager()), _on_disk(monkeypatch)
    assert (kept.on_disk, spilled.on_disk) == (False, True)
    for number, stored in enumerate((kept, spilled, pickle.loads(pickle.dumps(spilled)))):
        assert stored.read().equals(TABLE)
        assert stored.read(["count"]).equals(TABLE.select(["count"]))
        assert pa.concat_tables(stored.pieces(["v0"])).equals(TABLE.select(["v0"]))
        assert stored.num_rows == 1000 and stored.schema == TABLE.schema
        stored.copy_to(tmp_path / f"{number}.parquet")
        assert pq.read_table(tmp_path / f"{number}.parquet").equals(TABLE)


def test_a_file_is_readable_after_it_was_removed(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet")
    stored = SpilledTable(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").unlink()
    assert stored.read().equals(TABLE)


def test_what_comes_from_anywhere_is_checked(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, [None, _ends(0, 2), pa.py_buffer(b"\xff\xfe")])
    pq.write_table(pa.table({"v0": broken}), tmp_path / "t.parquet")
    assert SpilledTable(tmp_path / "t.parquet").read().num_rows == 1
    stored = SpilledTable.untrusted(tmp_path / "t.parquet")
    for read in (stored.read, lambda: list(stored.pieces(["v0"]))):
        with pytest.raises(ArtefactError, match="a table of the saved workflow cannot be read"):
            read()


def _ends(*positions: int) -> pa.Buffer:
    return pa.py_buffer(np.array(positions, np.int32))


def test_the_spill_folder_lives_as_long_as_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stored = _on_disk(monkeypatch)
    gc.collect()
    assert len(list(tmp_path.iterdir())) == 1 and stored.read().equals(TABLE)
    del stored
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_room(monkeypatch: pytest.MonkeyPatch) -> None:
    require_room(100, MemoryManager(100), "the table")
    with pytest.raises(OperatorError, match=r"the table takes about .* memory_limit is"):
        require_room(101, MemoryManager(100), "the table")
    monkeypatch.setattr("tabfeed.ops.state.memory.free_memory", lambda: 50)
    with pytest.raises(OperatorError, match=r"only 5e-08 GB are free"):
        require_room(60, MemoryManager(), "the table")


def test_values_that_repeat_take_little_room_on_disk(tmp_path: Path) -> None:
    """What a saved workflow holds of it is this file."""
    memory = MemoryManager(MB)
    table = pa.table({"v0": np.random.default_rng(0).integers(0, 60, 500_000) / 60})
    stored = SpilledTable.write([table], memory)
    assert stored.on_disk
    stored.copy_to(tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < table.nbytes / 8
    assert stored.read().equals(table)
