"""Ranks as real processes: what they read in all, and jobs killed that go on with others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.loader.options import Shard
from tabfeed.testing.loader import write_rows
from tests.faulty_server import FaultyServer
from tests.integration.rank_process import pipeline_of
from tests.waiting import wait_until

SCRIPT = Path(__file__).with_name("rank_process.py")
SIZES = (90, 31, 0, 64, 77, 12, 50, 44)  # 368 rows in unequal files
GLOBAL = 24  # rows in a global batch: 3 on each of 8 ranks, 4 on each of 6, 6 on each of 4


def start(world: int, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SCRIPT), str(world), *map(str, arguments)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])})


def lines(log: Path, rank: int) -> list[dict]:
    path = Path(f"{log}.{rank}")
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def joined(log: Path, world: int) -> list[list[int]]:
    """The global batches: what all ranks noted, step by step, as far as all have come."""
    ranks = [[line["keys"] for line in lines(log, rank)] for rank in range(world)]
    return [list(chain(*parts)) for parts in zip(*ranks, strict=False)]


def train_and_kill(folder: Path, log: Path, world: int, steps: int) -> None:
    """Start ranks, let each note some steps, and kill -9 them all."""
    job = start(world, folder, log, GLOBAL // world, -1)

    def trained() -> bool:
        assert job.poll() is None, "the ranks ended by themselves"
        return min(len(lines(log, rank)) for rank in range(world)) >= steps

    wait_until(trained, lambda: f"no {steps} steps came")
    for rank in range(world):
        os.kill(int(Path(f"{log}.pid.{rank}").read_text()), signal.SIGKILL)
    assert job.wait() == world


def test_killed_on_8_ranks_goes_on_with_4_and_with_6(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder, SIZES)
    train_and_kill(folder, tmp_path / "first", 8, 6)
    done = joined(tmp_path / "first", 8)[:5]  # the checkpoint is a little older than the kill
    state = lines(tmp_path / "first", 3)[4]["state"]  # any rank's says the same
    assert state == lines(tmp_path / "first", 7)[4]["state"]
    expected = uninterrupted(folder, 40)
    assert done == expected[:5]
    for world in (4, 6):
        log = tmp_path / f"on_{world}"
        Path(f"{log}.state").write_text(json.dumps(state))
        assert start(world, folder, log, GLOBAL // world, 20).wait() == 0
        seen = done + joined(log, world)
        assert seen == expected[: len(seen)]
        assert len(seen) == 25
        epoch = chain(*seen[:16])  # 368 rows in batches of 24
        assert sorted(epoch) == list(range(368))


def uninterrupted(folder: Path, count: int) -> list[list[int]]:
    """The global batches of one process that reads as 8 ranks would."""
    feeds = [feed_as(folder, Shard(rank, 8)) for rank in range(8)]
    out: list[list[int]] = []
    while len(out) < count:
        out += [list(chain(*parts)) for parts in zip(*feeds, strict=True)]
    return out[:count]


def feed_as(folder: Path, place: Shard):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(place.rank))
        patch.setenv("WORLD_SIZE", str(place.world))
        return pipeline_of(str(folder), GLOBAL // place.world, {})


def test_all_ranks_together_read_the_data_once(tmp_path: Path) -> None:
    """Bytes counted by the server: 1.1 times the data at most, footers and borders included."""
    (tmp_path / "b").mkdir()
    rows = 203 * 16_384  # which 8 ranks do not share evenly
    key = np.arange(rows, dtype=np.int32)
    table = pa.table({"key": key, "x": key * np.float32(0.5)})
    path = tmp_path / "b/part.parquet"
    pq.write_table(table, path, row_group_size=16_384, compression="none", use_dictionary=False)
    with FaultyServer(folder=tmp_path) as server:
        options = {"key": "k", "secret": "s", "endpoint_url": server.url, "region": "us-east-1"}
        job = start(8, "s3://b/part.parquet", tmp_path / "log", 8192, 0, json.dumps(options))
        assert job.wait() == 0
        sent = server.stats()["bytes"]
    assert sum(line["rows"] for rank in range(8) for line in lines(tmp_path / "log", rank)) == rows
    assert path.stat().st_size <= sent <= 1.1 * path.stat().st_size
