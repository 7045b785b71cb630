"""How a fit shares its memory: what goes to disk, what may stay, and where the files lie."""

from __future__ import annotations

import pickle
from pathlib import Path

from tabfeed.ops.state.memory import MemoryManager

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
