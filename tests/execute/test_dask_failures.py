"""Clusters that lose workers, lose their scheduler, or were never fit for the work.

Everything here is a real process: workers kill themselves with SIGKILL in the middle of a task, a
scheduler is killed and started again at the same address.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import distributed
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import versions

import tabfeed
from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import ClusterError
from tabfeed.execute import LocalExecutor, tasks
from tabfeed.execute.dask import DaskExecutor
from tabfeed.execute.dask_cluster import Preflight
from tabfeed.execute.dask_run import ClusterRun, Lost
from tests.waiting import HANG, wait_until


@pytest.fixture(scope="module")
def fragile() -> Iterator[Any]:
    """Two workers; Dask gives a task up as soon as one worker died under it.

    It does not give a worker up that takes more than 15 s to start again: on a busy machine each
    does, and closing it, as Dask does then, counts as one more death of what it works on.
    """
    with (
        dask.config.set(
            {
                "distributed.scheduler.allowed-failures": 0,
                "distributed.deploy.lost-worker-timeout": f"{HANG} s",
                "distributed.comm.timeouts.connect": f"{HANG} s",
            }
        ),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0",
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        yield client


def patient(client: Any, **options: Any) -> DaskExecutor:
    """Waits for workers as long as a busy machine takes to start them again."""
    return DaskExecutor(client, patience=HANG, **options)


class Deadly:
    """Kills its process in the fifth partition, as often as told, and counts it."""

    __name__ = "deadly"

    def __init__(self, notes: Path, times: int) -> None:
        self.notes, self.times = str(notes), times

    def __call__(self, series: pl.Series) -> pl.Series:
        if series.max() == 5.0 and not series.dtype.is_integer():
            with open(self.notes, "a") as f:
                f.write("x")
            if os.path.getsize(self.notes) <= self.times:
                os.kill(os.getpid(), signal.SIGKILL)
        return series


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Ten files; the number of the file is in its rows."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for i in range(10):
        values = np.random.default_rng(i).integers(0, 50, 100)
        table = pa.table({"c": values, "x": np.full(100, float(i))})
        pq.write_table(table, folder / f"{i}.parquet")
    return folder


def graph(notes: Path, times: int) -> Any:
    x = ["x"] >> ops.LambdaOp(Deadly(notes, times), dtype="float64") >> ops.Normalize()
    return (["c"] >> ops.Categorify()) + x


@pytest.mark.parametrize("shuffle", [None, "FULL"])
def test_a_worker_killed_in_the_middle_changes_nothing(
    fragile: Any, files: Path, tmp_path: Path, shuffle: str | None
) -> None:
    data = Dataset(files)
    calm = Workflow(graph(tmp_path / "none", 0), executor=LocalExecutor(1)).fit(data)
    calm.transform(data).to_parquet(tmp_path / "calm", shuffle=shuffle)
    expected = calm.transform(data).to_arrow()
    workflow = Workflow(graph(tmp_path / "fit", 1), executor=patient(fragile)).fit(data)
    assert len((tmp_path / "fit").read_text()) > 1  # once killed, and done after that
    assert workflow.transform(data.read(5)).equals(calm.transform(data.read(5)))
    assert expected.num_rows == 1000
    (tmp_path / "fit").unlink()
    workflow.transform(data).to_parquet(tmp_path / "out", shuffle=shuffle)
    assert len((tmp_path / "fit").read_text()) > 1
    for path in (tmp_path / "calm").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(tmp_path / "calm"))


def test_a_partition_that_kills_every_worker_is_named(
    fragile: Any, files: Path, tmp_path: Path
) -> None:
    executor = patient(fragile, tries=1)
    node = graph(tmp_path / "notes", 99)
    with pytest.raises(ClusterError, match=r"fit/part_5: every worker that tried it died"):
        Workflow(node, executor=executor).fit(Dataset(files))
    assert len((tmp_path / "notes").read_text()) <= 3


class DeadlyToHold:
    """Kills whoever receives what a run sends, as often as told, and counts it."""

    def __init__(self, notes: Path, times: int) -> None:
        self.notes, self.times = str(notes), times

    def __call__(self, payload: Any) -> Any:
        with open(self.notes, "a") as f:
            f.write("x")
        if os.path.getsize(self.notes) <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        return payload


@pytest.mark.parametrize("verb", ["map", "reduce"])
def test_what_a_run_holds_is_sent_again_when_its_holders_died(
    fragile: Any, tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragile.cluster.scale(2)  # one that died while it started is given up otherwise
    fragile.wait_for_workers(2, timeout=HANG)
    monkeypatch.setattr(tasks, "receive", DeadlyToHold(tmp_path / "notes", 1))
    executor = patient(fragile, tries=1)  # it is not the tasks that failed
    if verb == "map":
        assert list(executor.map(range(12), abs)) == list(range(12))
    else:
        assert executor.reduce(range(20), abs, max) == 19
    assert len((tmp_path / "notes").read_text()) > 1


def test_work_that_kills_whoever_receives_it(
    fragile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragile.cluster.scale(2)  # one that died while it started is given up otherwise
    fragile.wait_for_workers(2, timeout=HANG)
    monkeypatch.setattr(tasks, "receive", DeadlyToHold(tmp_path / "notes", 99))
    monkeypatch.setattr("tabfeed.execute.dask_run._MAX_RESENDS", 1)
    with pytest.raises(ClusterError, match=r"bytes, was sent 1 times, and every worker that got"):
        list(patient(fragile).map(range(2), abs))


def die(x: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def test_workers_that_dask_gave_up_are_replaced() -> None:
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0",
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip

        def lose_all() -> None:
            for process in client.run(os.getpid).values():
                os.kill(process, signal.SIGKILL)
            wait_until(lambda: not cluster.workers)

        lose_all()
        results = patient(client).map(range(30), slow)
        found = [next(results)]
        lose_all()
        assert found + list(results) == [x * x for x in range(30)]


def test_no_job_with_several_workers_is_ended_while_lost_ones_are_replaced() -> None:
    class JobCluster(distributed.LocalCluster):  # `scale` counts workers, of which a job has two
        def scale(self, n: int = 0, **options: Any) -> Any:
            return super().scale(n // 2, **options)

    cluster = JobCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
    )
    with cluster, distributed.Client(cluster, set_as_default=False) as client:
        Preflight(client).replace_lost_workers()
        assert len(cluster.worker_spec) == 2


# -- processes of their own -------------------------------------------------------------


@contextmanager
def process(code: str, *, path: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Python running some code, its output thrown away; killed in the end."""
    env = {**os.environ, **({} if path is None else {"PYTHONPATH": str(path)})}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen([sys.executable, "-c", code], env=env, **quiet)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def scheduler(port: int) -> str:
    return (
        "from distributed.cli.dask_scheduler import main\n"
        f"main(['--host', '127.0.0.1', '--port', '{port}', '--no-dashboard'])"
    )


def worker(port: int) -> str:
    return (
        "from distributed.cli.dask_worker import main\n"
        f"main(['tcp://127.0.0.1:{port}', '--no-nanny', '--nthreads', '1', '--no-dashboard'])"
    )


def connect(port: int) -> Any:
    return distributed.Client(f"tcp://127.0.0.1:{port}", set_as_default=False, timeout=HANG)


@pytest.fixture(scope="module")
def apart() -> Iterator[int]:
    """The port of a scheduler with one worker, both processes of their own."""
    port = free_port()
    with process(scheduler(port)), process(worker(port)):
        yield port


def fit(client: Any) -> None:
    Workflow(["x"] >> ops.Normalize(), client=client).fit({"x": [1.0, 2.0]})


def test_another_version_of_dask_and_a_closed_client(
    apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = versions._version_cached
    with connect(apart) as client:
        mine = {"distributed": "2024.1.0"}
        monkeypatch.setattr(versions, "_version_cached", lambda p: mine.get(p) or known(p))
        theirs = known("distributed")
        words = rf"the scheduler runs distributed {theirs} and this process 2024\.1\.0; install"
        with pytest.raises(ClusterError, match=words):
            fit(client)
        monkeypatch.undo()
        fit(client)
    with pytest.raises(ClusterError, match="the client is closed"):
        fit(client)


def test_workers_without_tabfeed(apart: int, tmp_path: Path) -> None:
    blocker = "import sys\nsys.modules['tabfeed'] = None\n"  # importing it raises ImportError
    (tmp_path / "sitecustomize.py").write_text(blocker)
    with process(worker(apart), path=tmp_path), connect(apart) as client:
        client.wait_for_workers(2, timeout=HANG)
        with pytest.raises(ClusterError, match=r"worker tcp:.* has no tabfeed .*; install tabfeed"):
            fit(client)


def slow(x: int) -> int:
    time.sleep(0.05)
    return x * x


def test_a_scheduler_that_is_killed_comes_back_and_goes_for_good() -> None:
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(process(scheduler(port)))
        client = stack.enter_context(connect(port))
        executor = DaskExecutor(client, patience=1.0)
        with pytest.raises(ClusterError, match="has no workers, and none came within 1 s"):
            list(executor.map(range(3), slow))
        old = stack.enter_context(process(worker(port)))
        executor.patience = HANG
        results = executor.map(range(30), slow)
        found = [next(results)]
        for child in (first, old):
            child.kill()
            child.wait()
        second = stack.enter_context(process(scheduler(port)))
        stack.enter_context(process(worker(port)))
        found += list(results)
        assert found == [x * x for x in range(30)]
        executor.patience = 1.0  # of the runs that begin from now on
        results = executor.map(range(30), slow)
        next(results)
        second.kill()
        with pytest.raises(ClusterError, match=r"work/part_\d+: the cluster lost this run"):
            list(results)


def test_the_task_that_killed_the_last_worker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tabfeed.execute.dask_run._CHECK_EVERY", 0.2)
    port = free_port()
    with process(scheduler(port)), process(worker(port)), connect(port) as client:
        client.wait_for_workers(1, timeout=HANG)
        words = r"work/part_0: the cluster has had no worker for 1 s; .* died under work/part_0\. "
        with pytest.raises(ClusterError, match=words):
            list(DaskExecutor(client, patience=1.0).map(range(1), die))


def test_a_cluster_of_our_own_is_gone_after_the_block(files: Path, tmp_path: Path) -> None:
    with tabfeed.Distributed(workers=1) as cluster:
        client = cluster.client
        assert list(client.run(os.getenv, "POLARS_MAX_THREADS").values()) == ["1"]
        watched = client.run(dask.config.get, "distributed.worker.profile.enabled")
        assert list(watched.values()) == [False]
        assert not client.amm.running()
        Dataset(files).to_parquet(tmp_path / "out", output_files=2)
    assert client.status == "closed"
    assert Dataset(tmp_path / "out").num_rows == 1000
    nobody = tabfeed.Distributed(f"tcp://127.0.0.1:{free_port()}")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(ClusterError, match="no scheduler answers at"),
        nobody,
    ):
        pass


def test_a_cluster_that_comes_back_without_workers_is_told_so() -> None:
    run = ClusterRun.__new__(ClusterRun)
    run.preflight = SimpleNamespace(count_workers=lambda: 0, replace_lost_workers=lambda: None)
    run.client = SimpleNamespace(status="running")
    run.patience, run.tries, run._restarts = 0.2, 3, 0
    with pytest.raises(ClusterError, match=r"work/part_1: .*no workers are left, nor did any come"):
        run.start_again("work/part_1", Lost("gone"))
