"""Learned tables in memory and on disk read alike."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import OperatorError
from tabfeed.ops.state.memory import MemoryManager, SpilledTable, require_room

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
    require_room(10, MemoryManager(100), "the table")
    with pytest.raises(OperatorError, match=r"the table takes about .* memory_limit is"):
        require_room(101, MemoryManager(100), "the table")
    monkeypatch.setattr("tabfeed.ops.state.memory.free_memory", lambda: 50)
    with pytest.raises(OperatorError, match=r"only 5e-08 GB are free"):
        require_room(60, MemoryManager(), "the table")
