"""The disk cache over several runs of loaders: what is found again, what is not believed."""

from __future__ import annotations

import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import WriteError
from tabfeed.loader.torch import Loader
from tabfeed.trace import ListRecorder, recording


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TABFEED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TABFEED_CACHE_SIZE", raising=False)
    return tmp_path / "cache"


def write_data(path, start=0, rows=200):
    x = np.arange(start, start + rows)
    pq.write_table(pa.table({"x": x, "y": x * 0.5}), path, row_group_size=50)


def one_pass(path, **options):
    """The values of x in the order they come, and how many partitions were decoded."""
    dataset = options.pop("dataset", None) or Dataset(str(path))
    recorder = ListRecorder()
    with recording(recorder):
        loader = Loader(dataset, 40, True, cache="disk", **options)
        values = [v for x, _ in loader for v in x["x"].tolist()]
        loader.close()
    return values, sum(1 for s in recorder.spans if s.name == "read")


def total(folder):
    return sum(p.stat().st_size for p in folder.iterdir())


def test_a_second_run_decodes_nothing(tmp_path, folder):
    write_data(tmp_path / "a.parquet")
    first, reads = one_pass(tmp_path / "a.parquet")
    assert reads == 4
    assert sorted(first) == list(range(200))
    assert one_pass(tmp_path / "a.parquet") == (first, 0)
    assert len(list(folder.glob("*.arrow"))) == 4


def test_a_changed_file_other_columns_and_filters_are_other_entries(tmp_path):
    path = tmp_path / "a.parquet"
    write_data(path)
    one_pass(path)
    assert one_pass(path, dataset=Dataset(str(path), columns=["x"]))[1] == 4
    small = Dataset(str(path), filters=[("x", "<", 60)])
    values, reads = one_pass(path, dataset=small)
    assert (sorted(values), reads > 0) == (list(range(60)), True)
    assert one_pass(path, dataset=Dataset(str(path), filters=[("x", "<", 70)]))[0] != values
    write_data(path, start=1000)
    assert sorted(one_pass(path)[0]) == list(range(1000, 1200))


def test_what_a_transform_made_is_kept_for_one_run_alone(tmp_path, folder):
    write_data(tmp_path / "a.parquet")

    def twice(table):
        return table.set_column(0, "x", pa.array(table["x"].to_numpy() * 2))

    first, reads = one_pass(tmp_path / "a.parquet", transforms=twice)
    assert (sorted(first)[-1], reads) == (398, 9)  # to learn its schema, and sizes
    assert one_pass(tmp_path / "a.parquet")[0] == [v // 2 for v in first]
    assert len(list(folder.glob("*.arrow"))) == 4  # the second run's


def test_a_file_cut_short_is_read_from_the_source_again(tmp_path, folder):
    write_data(tmp_path / "a.parquet")
    first, _ = one_pass(tmp_path / "a.parquet")
    victims = sorted(folder.glob("*.arrow"))
    victims[0].write_bytes(victims[0].read_bytes()[:100])
    victims[1].write_bytes(b"")
    assert one_pass(tmp_path / "a.parquet") == (first, 2)
    assert one_pass(tmp_path / "a.parquet") == (first, 0)


def test_the_size_is_bounded_and_old_files_make_room(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("TABFEED_CACHE_SIZE", "18KB")
    write_data(tmp_path / "a.parquet", rows=400)
    write_data(tmp_path / "b.parquet", start=1000)
    values, reads = one_pass(tmp_path / "a.parquet")
    assert (sorted(values), reads) == (list(range(400)), 8)
    kept = set(folder.glob("*.arrow"))
    assert 0 < len(kept) < 8
    assert total(folder) <= 18_000
    assert one_pass(tmp_path / "a.parquet")[1] == 8 - len(kept)  # what is kept stays kept
    one_pass(tmp_path / "b.parquet")
    assert kept <= set(folder.glob("*.arrow"))  # used a moment ago: not to be thrown out
    long_ago = time.time() - 7200
    for path in kept:
        os.utime(path, (long_ago, long_ago))
    one_pass(tmp_path / "b.parquet")
    assert not kept <= set(folder.glob("*.arrow"))
    assert total(folder) <= 18_000


def test_a_folder_that_cannot_be_made_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TABFEED_CACHE_DIR", str(tmp_path / "file" / "cache"))
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    loader = Loader(Dataset(tmp_path / "a.parquet"), batch_size=2, cache="disk")
    with pytest.raises(WriteError, match=r"the folder .*file/cache,.* Set TABFEED_CACHE_DIR"):
        list(loader)


@pytest.mark.parametrize("where", [0, 8, 0.1, 0.3, 0.5, 0.8, 0.95, -17, -16, -9, -8, -1])
def test_a_flipped_byte_anywhere_is_noticed_and_the_file_made_anew(tmp_path, folder, caplog, where):
    write_data(tmp_path / "a.parquet", rows=20_000)
    first, _ = one_pass(tmp_path / "a.parquet")
    victim = max(folder.glob("*.arrow"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[int(where * len(data)) if isinstance(where, float) else where] ^= 0x10
    victim.write_bytes(data)
    assert one_pass(tmp_path / "a.parquet") == (first, 1)
    assert "a file of the cache is damaged" in caplog.text and str(victim) in caplog.text
    caplog.clear()
    assert one_pass(tmp_path / "a.parquet") == (first, 0)
    assert not [r for r in caplog.records if r.name.startswith("tabfeed")]


def test_damage_between_two_epochs_of_one_loader(tmp_path, folder):
    write_data(tmp_path / "a.parquet")
    loader = Loader(Dataset(str(tmp_path / "a.parquet")), 40, cache="disk")
    first = [x["x"].tolist() for x, _ in loader]
    for victim in folder.glob("*.arrow"):
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    assert [x["x"].tolist() for x, _ in loader] == first


@pytest.mark.parametrize("renamed", [True, False])
def test_a_source_of_the_same_size_and_time_of_change_is_noticed(tmp_path, renamed):
    path, other = tmp_path / "a.parquet", tmp_path / "other"
    for file, start in ((path, 1000), (other, 3000)):
        x = np.arange(start, start + 200)
        pq.write_table(pa.table({"x": x}), file, use_dictionary=False, compression="none")
    facts = path.stat()
    assert facts.st_size == other.stat().st_size
    assert sorted(one_pass(path)[0]) == list(range(1000, 1200))
    if renamed:
        other.rename(path)
    else:
        path.write_bytes(other.read_bytes())
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert sorted(one_pass(path)[0]) == list(range(3000, 3200))
