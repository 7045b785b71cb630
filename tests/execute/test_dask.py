"""The Dask executor on two real worker processes that all tests share."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import get_task_stream

import tabfeed
from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import ArgumentError, ClusterError, WriteError
from tabfeed.execute import Executor, LocalExecutor, as_executor, current_executor
from tests.waiting import HANG


@pytest.fixture
def executor(dask_client: Any) -> Executor:
    return as_executor(dask_client)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Twelve files of a few rows; C1 has a thousand values, more than any one file holds."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for i in range(12):
        rng = np.random.default_rng(i)
        values = rng.integers(0, 1000, 300)
        columns = {"C1": values, "C2": [f"name {v} and more" for v in values], "x": rng.random(300)}
        pq.write_table(pa.table(columns), folder / f"{i:02d}.parquet")
    return folder


def test_tasks_have_names_that_people_understand(
    dask_client: Any, files: Path, tmp_path: Path
) -> None:
    with get_task_stream(dask_client) as stream:
        workflow = Workflow(["C1", "C2"] >> ops.Categorify(), client=dask_client)
        out = workflow.fit(Dataset(files)).transform(Dataset(files))
        out.to_parquet(tmp_path / "plain", output_files=["users", "items"])
        out.to_parquet(tmp_path / "mixed", shuffle="FULL", output_files=2)
        out.shuffle_by_keys("C1", npartitions=2)
    seen = set(names_in(stream))
    assert {"fit/part_11", "fit/Categorify/C1", "fit/Categorify/C2"} <= seen
    assert {"write/users", "write/items", "write/part_1"} <= seen
    assert {"shuffle/part_11", "shuffle/bucket_1"} <= seen
    who = {r["key"].rsplit("-", 2)[0]: r["worker"] for r in stream.data if type(r["key"]) is str}
    assert who["fit/Categorify/C1"] != who["fit/Categorify/C2"]  # each merges half of the columns


def names_in(stream: Any) -> list[str]:
    keys = [record["key"] for record in stream.data]
    return [k[1] if isinstance(k, tuple) else k.rsplit("-", 2)[0] for k in keys]


class Heavy:
    """A function that notes each time it is unpacked."""

    def __init__(self, notes: str, size: int) -> None:
        self.notes, self.load = notes, os.urandom(size)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        with open(self.notes, "a") as f:
            f.write(f"{os.getpid()}\n")

    def __call__(self, x: int) -> tuple[int, int]:
        time.sleep(0.01)
        return x, len(self.load)


@pytest.mark.parametrize("scattered", [False, True])
def test_what_a_run_holds_is_sent_to_workers_not_to_tasks(
    executor: Executor, tmp_path: Path, scattered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scattered:
        monkeypatch.setattr("tabfeed.execute.dask_run._IN_GRAPH", 10)
    fn = Heavy(str(tmp_path / "notes"), 100_000)
    assert list(executor.map(range(40), fn)) == [(i, 100_000) for i in range(40)]
    opened = (tmp_path / "notes").read_text().split()
    assert len(opened) <= 6  # one for each of the two, and what Dask dropped and fetched again


class OneIsSlow:
    """On the worker that comes first, an item takes until ten others are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __call__(self, x: int) -> bool:
        try:
            os.mkdir(f"{self.folder}/slow")
        except FileExistsError:
            os.mkdir(f"{self.folder}/{x}")
            return True
        end = time.monotonic() + HANG
        while len(os.listdir(self.folder)) <= 10 and time.monotonic() < end:
            time.sleep(0.01)
        return len(os.listdir(self.folder)) > 10


def test_a_slow_worker_holds_up_nothing_but_its_own_task(
    executor: Executor, tmp_path: Path
) -> None:
    assert list(executor.map(range(14), OneIsSlow(tmp_path))) == [True] * 14


@pytest.mark.parametrize("column", ["C1", "C2"])
def test_a_vocabulary_too_large_for_a_worker_is_merged_in_hash_partitions(
    dask_client: Any, files: Path, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = [column] >> ops.Categorify(freq_threshold=3)
    here = Workflow(node, executor=LocalExecutor(1)).fit(Dataset(files))
    expected = here.transform(Dataset(files)).to_arrow()
    monkeypatch.setattr("tabfeed.execute.dask_cluster.Preflight.task_memory", lambda _: 16_000)
    there = Workflow([column] >> ops.Categorify(freq_threshold=3), client=dask_client)
    with get_task_stream(dask_client) as stream:
        there.fit(Dataset(files, part_size=1 << 30))
    tasks = names_in(stream).count(f"fit/Categorify/{column}")
    assert tasks > 4 + 5 * 3  # two runs are picked and cut; each part is picked twice, merged
    assert there.transform(Dataset(files)).to_arrow().equals(expected)


def test_groups_too_many_for_a_worker_are_merged_in_hash_partitions(
    executor: Executor, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def graph() -> Any:
        return ["C1", ["C1", "C2"]] >> ops.JoinGroupby("x", stats=["sum", "std", "max"])

    Workflow(graph(), executor=LocalExecutor(1)).fit(Dataset(files)).save(tmp_path / "here")
    monkeypatch.setattr("tabfeed.execute.dask_cluster.Preflight.task_memory", lambda _: 16_000)
    Workflow(graph(), executor=executor).fit(Dataset(files)).save(tmp_path / "there")
    for path in (tmp_path / "here" / "tables").iterdir():
        assert path.read_bytes() == (tmp_path / "there" / "tables" / path.name).read_bytes()


def test_a_scheduler_that_is_away_between_two_levels_of_merging(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = executor.preflight.workers
    answers = iter([asked, lambda: 1 / 0])  # before the run, and when its runs of eight are done

    def workers() -> Any:
        try:
            return next(answers, asked)()
        except ZeroDivisionError:
            raise OSError("reconnecting") from None

    monkeypatch.setattr(executor.preflight, "workers", workers)
    assert executor.reduce(range(20), float, lambda a, b: a + b) == 190.0
    assert next(answers, None) is None


# -- errors -----------------------------------------------------------------------------


def note_and_fail(x: int, notes: str, times: int) -> int:
    if x != 5:
        return x
    with open(notes, "a") as f:
        f.write("x")
    if os.path.getsize(notes) <= times:
        raise ZeroDivisionError("five came")
    return x


class Fails:
    def __init__(self, notes: Path, times: int) -> None:
        self.notes, self.times = str(notes), times

    def __call__(self, x: int) -> int:
        return note_and_fail(x, self.notes, self.times)


def test_a_task_that_fails_twice_is_done_in_the_end(executor: Executor, tmp_path: Path) -> None:
    assert list(executor.map(range(9), Fails(tmp_path / "n", 2))) == list(range(9))
    assert (tmp_path / "n").read_text() == "xxx"


@pytest.mark.parametrize("verb", ["map", "reduce"])
def test_a_task_that_fails_three_times_ends_the_run_and_is_named(
    executor: Executor, tmp_path: Path, verb: str
) -> None:
    fn = Fails(tmp_path / "n", 99)
    with pytest.raises(ClusterError, match=r"work/part_5 failed: ZeroDivisionError: five came"):
        list(executor.map(range(20), fn)) if verb == "map" else executor.reduce(range(20), fn, max)
    assert (tmp_path / "n").read_text() == "xxx"


def fail_on_high(series: pl.Series) -> pl.Series:
    if series.max() > 1.5:
        raise ValueError("too high")
    return series


def test_a_partition_that_cannot_be_fitted_is_named(dask_client: Any, files: Path) -> None:
    pq.write_table(pa.table({"x": [2.0]}), files / "05.parquet")
    node = ["x"] >> ops.LambdaOp(fail_on_high, dtype="float64") >> ops.Normalize()
    message = r"fit/part_5 failed: ValueError: too high"
    if sys.version_info >= (3, 11):  # errors have notes
        message += r"; raised by the function of <fail_on_high of \[x\]>"
    with pytest.raises(ClusterError, match=message):
        Workflow(node, client=dask_client).fit(Dataset(files, columns=["x"]))


def full_disk(table: pa.Table) -> pa.Table:
    if table.column("C1")[0].as_py() < 0:
        raise OSError(28, "No space left on device")
    return table


@pytest.mark.parametrize("shuffle", [None, "FULL"])
def test_a_full_disk_ends_the_run_and_leaves_what_was_there(
    executor: Executor, files: Path, tmp_path: Path, shuffle: str | None
) -> None:
    data = Dataset(files, columns=["C1"])
    data.to_parquet(tmp_path / "out", executor=executor)
    before = sorted((p.name, p.read_bytes()) for p in (tmp_path / "out").iterdir())
    pq.write_table(pa.table({"C1": [-1]}), files / "07.parquet")
    broken = Dataset(files, columns=["C1"]).map(full_disk, schema=data.schema)
    with pytest.raises((ClusterError, WriteError), match=r"(write|shuffle)/part_7.*No space left"):
        broken.to_parquet(tmp_path / "out", overwrite=True, shuffle=shuffle, executor=executor)
    assert sorted((p.name, p.read_bytes()) for p in (tmp_path / "out").iterdir()) == before
    with pytest.raises((ClusterError, WriteError)):
        broken.to_parquet(tmp_path / "new", shuffle=shuffle, executor=executor)
    assert not (tmp_path / "new" / "_tabfeed.json").exists()


# -- before the run starts --------------------------------------------------------------


class Shy:
    """Holds something that no other process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, series: pl.Series) -> pl.Series:
        return series


def test_an_operator_that_cannot_be_sent_is_named(dask_client: Any, files: Path) -> None:
    node = ["x"] >> ops.LambdaOp(Shy(), dtype="float64") >> ops.Normalize()
    words = r"cannot pickle '_thread.lock'.*lock.*<LambdaOp of \[x"
    with get_task_stream(dask_client) as stream, pytest.raises(ClusterError, match=words):
        Workflow(node, client=dask_client).fit(Dataset(files))
    assert stream.data == []


def test_files_that_workers_do_not_see(dask_client: Any, tmp_path: Path) -> None:
    """A filesystem in the memory of this process alone."""
    Dataset({"x": [1.0, 2.0]}).to_parquet("memory://dask-unseen", overwrite=True)
    data = Dataset("memory://dask-unseen")
    with pytest.raises(ClusterError, match=r"worker tcp:.* cannot see memory:/.*part_0-w.*parquet"):
        Workflow(["x"] >> ops.Normalize(), client=dask_client).fit(data)
    with pytest.raises(ClusterError, match="cannot see"):
        data.to_parquet(tmp_path / "out", executor=as_executor(dask_client))
    assert not (tmp_path / "out").exists()


def test_a_file_that_differs_on_the_workers(dask_client: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    data = Dataset(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(ClusterError, match=r"a.parquet as it is there: it has .* bytes here"):
        Workflow(["x"] >> ops.Normalize(), client=dask_client).fit(data)


def test_a_folder_that_workers_cannot_write(dask_client: Any, files: Path) -> None:
    data = Dataset(files)
    with pytest.raises(ClusterError, match=r"cannot write into memory:.*it is not there"):
        data.to_parquet("memory://dask-out", executor=as_executor(dask_client))


def test_what_is_no_client() -> None:
    with pytest.raises(ArgumentError, match="must be a distributed"):
        Workflow(["x"], client="tcp://somewhere:8786")
    with pytest.raises(ArgumentError, match="not both"):
        Workflow(["x"], client=LocalExecutor(), executor=LocalExecutor())


# -- who does the work ------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_set() -> Iterator[None]:
    yield
    tabfeed.set_client(None)
    assert isinstance(current_executor(), LocalExecutor)


def test_a_client_for_all_and_for_a_block(dask_client: Any, files: Path) -> None:
    workflow = Workflow(["C1"] >> ops.Categorify())
    tabfeed.set_client(dask_client)
    assert workflow.executor is as_executor(dask_client)
    with tabfeed.Distributed(dask_client, shared=str(files.parent)) as block:
        assert workflow.executor is block.executor
        assert block.client is dask_client
    assert workflow.executor is as_executor(dask_client)
    tabfeed.set_client(None)
    assert isinstance(workflow.executor, LocalExecutor)
    assert dask_client.status == "running"


def test_rows_are_regrouped_in_the_shared_folder(dask_client: Any, files: Path) -> None:
    shared = files.parent / "shared"
    shared.mkdir()
    with tabfeed.Distributed(dask_client, shared=str(shared)):
        grouped = Dataset(files).shuffle_by_keys("C1", npartitions=3)
        assert all(f.startswith(str(shared)) for f in grouped.files)
        assert grouped.num_rows == 3600
    del grouped
    assert list(shared.iterdir()) == []


def test_what_a_workflow_makes_is_read_on_its_cluster(dask_client: Any, files: Path) -> None:
    node = ["x"] >> ops.LambdaOp(worker_number, dtype="float64")
    out = Workflow(node, client=dask_client).transform(Dataset(files)).to_arrow()
    assert os.getpid() not in set(out.column("x").to_pylist())


def worker_number(series: pl.Series) -> pl.Series:
    return pl.Series(series.name, [float(os.getpid())] * len(series))
