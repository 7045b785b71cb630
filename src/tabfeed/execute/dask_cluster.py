"""Dask clusters: clients are made and checked, and so are the workers before a run.

Each worker is asked once whether it has the same tabfeed and the same Dask as this process, whether
it sees the files, and whether it can write into the folder. A run that would fail on its first task
fails here, with an error that says why.

Workers started here keep freed memory for a while instead of returning it at once. Dask's setting
returns it after every task, and the next task gets each page anew from the kernel, zeroed: fitting
the README's workflow on 0.75 M rows took 300,000 page faults and 4.3 s of processor time that way,
and 35,000 and 3.3 s with these settings. They reach glibc and Polars' allocator only through the
environment in which a worker starts; variables the user has set are left alone.

These workers also monitor themselves less often than Dask's. Sampling the stack a hundred times a
second, the memory ten times and the event loop fifty times took 4.8 % of a core for two idle
workers, and 2.8 % for the client that runs their scheduler; now 0.7 % and 0.8 %. The price is the
dashboard's page of profiles, and half a second until a worker that exceeds its memory is noticed.
Dask's memory manager is off too: it would take a run's payload off an idle worker, which would then
have to fetch and unpack it again for its next task.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import dask
import distributed
from distributed import Client

from tabfeed.errors import ArgumentError, ClusterError
from tabfeed.execute import tasks

_BEFORE_SPAWN = "distributed.nanny.pre-spawn-environ"
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": 2**28,
    "MALLOC_MMAP_THRESHOLD_": 2**25,
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:5000,muzzy_decay_ms:5000",
}

_LESS_MONITORING = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "500ms",
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.scheduler.active-memory-manager.start": False,
}


def connected(client: Any) -> Client:
    """Return the client, or raise if it can't be used."""
    if not isinstance(client, Client):
        raise ArgumentError(
            f"client is {client!r}; it must be a distributed.Client, or a DaskExecutor made of one"
        )
    if client.asynchronous:
        raise ArgumentError("the client is asynchronous; make one without asynchronous=True")
    if client.status != "running":
        raise ClusterError(
            f"the client is {client.status}: {client!r}. Connect a new one: Client(address)"
        )
    return client


def start_local(workers: int, threads: int, memory_limit: str) -> Client:
    """Start a cluster of processes on this machine, and return its client."""
    memory = {**dask.config.get(_BEFORE_SPAWN), **KEEP_MEMORY}
    with dask.config.set({_BEFORE_SPAWN: memory, **_LESS_MONITORING}):
        cluster = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            memory_limit=memory_limit,
            processes=True,
            dashboard_address=":0",
            env={"POLARS_MAX_THREADS": str(threads), "TABFEED_THREADS": str(threads)},
        )
    return Client(cluster, set_as_default=False, direct_to_workers=True)


def connect(address: str) -> Client:
    """Connect to the scheduler at an address."""
    try:
        return Client(address, set_as_default=False)
    except (OSError, ValueError, distributed.TimeoutError) as e:
        raise ClusterError(
            f"no scheduler answers at {address!r}: {e}; give the address that `dask scheduler` "
            "prints, such as tcp://10.0.0.1:8786"
        ) from e


def disconnect(client: Client) -> None:
    """Close a client, and the cluster started for it."""
    cluster = client.cluster
    client.close()
    if cluster is not None:
        cluster.close()


_SAMPLE = 16  # files checked on each worker
_OWN_VERSION = "__import__('tabfeed').__version__"


class Preflight:
    """Checks of the scheduler and the workers of a client before a run."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._checked: set[str] = set()
        self.threads = 1

    def workers(self) -> dict[str, dict[str, Any]]:
        """The scheduler's description of each worker, by address."""
        found: dict[str, dict[str, Any]] = self.client.scheduler_info(n_workers=-1)["workers"]
        return found

    def count_workers(self) -> int:
        """How many workers there are; 0 if the scheduler does not answer."""
        try:
            return len(self.workers())
        except (OSError, TimeoutError, AttributeError, KeyError):  # reconnecting
            return 0

    def replace_lost_workers(self) -> None:
        """Have the client's own cluster replace the workers that it gave up.

        Dask starts a worker that died again, but gives it up for good unless it is back after 15
        seconds; on a busy machine that takes longer. The base class counts entries of the
        specification; the `scale` of a subclass may count workers, of which a job has several.
        """
        cluster = self.client.cluster
        if isinstance(cluster, distributed.SpecCluster):
            distributed.SpecCluster.scale(cluster, len(cluster.worker_spec))

    def task_memory(self) -> int | None:
        """Half of the smallest amount of memory any worker has per thread."""
        shares = [
            w["memory_limit"] // max(1, w["nthreads"])
            for w in self.workers().values()
            if w.get("memory_limit")
        ]
        return min(shares) // 2 if shares else None

    # -- versions -----------------------------------------------------------------

    def check(self, patience: float) -> None:
        """Check the client, and workers not checked before."""
        connected(self.client)
        workers = self.workers() or self._wait_for_workers(patience)
        self.threads = sum(w["nthreads"] for w in workers.values())
        new = [address for address in workers if address not in self._checked]
        if new:
            self._check_dask()
            self._check_tabfeed(new)
            self._checked.update(new)

    def _wait_for_workers(self, patience: float) -> dict[str, dict[str, Any]]:
        self.replace_lost_workers()
        try:
            self.client.wait_for_workers(1, timeout=patience)
        except TimeoutError as e:
            raise ClusterError(
                f"the cluster has no workers, and none came within {patience:.0f} s: "
                f"{self.client!r}"
            ) from e
        return self.workers()

    def _check_dask(self) -> None:
        versions: Any = self.client.get_versions(check=False)
        mine = versions["client"]
        others = {"the scheduler": versions["scheduler"], **versions["workers"]}
        for who, theirs in others.items():
            if theirs is None:
                continue
            for what, here, there in _differences(mine, theirs):
                raise ClusterError(
                    f"{who} runs {what} {there} and this process {here}; install the same version "
                    "everywhere, since their tasks are not compatible"
                )

    def _check_tabfeed(self, workers: list[str]) -> None:
        """Ask for the version through a builtin, which a worker without tabfeed has too."""
        found = self.client.run(eval, _OWN_VERSION, workers=workers, on_error="return")
        try:
            found["the scheduler"] = self.client.run_on_scheduler(eval, _OWN_VERSION)
        except ImportError as e:
            found["the scheduler"] = e
        mine = sys.modules["tabfeed"].__version__
        for who, version in found.items():
            if isinstance(version, Exception) and not isinstance(version, ImportError):
                continue  # the worker died meanwhile
            if isinstance(version, ImportError):
                raise ClusterError(
                    f"{_who(who)} has no tabfeed ({version}); install tabfeed {mine} there"
                )
            if version != mine:
                raise ClusterError(
                    f"{_who(who)} has tabfeed {version} and this process {mine}; install the same "
                    "version everywhere"
                )

    # -- files --------------------------------------------------------------------

    def require_files(self, files: Sequence[Any]) -> None:
        """Check that each worker sees these files, with the same size; of many, a sample."""
        step = max(1, len(files) // _SAMPLE)
        wanted = [(f.name, f.filesystem, f.path, f.size) for f in [*files[::step], *files[-1:]]]
        if not wanted:
            return
        for who, missing in self._ask(tasks.find_missing, wanted):
            raise ClusterError(
                f"{_who(who)} cannot see {missing}; put the data where every worker reads it under "
                "the same name: a shared filesystem or an object store"
            )

    def require_folder(self, folder: Any) -> None:
        """Check that each worker can write into this folder."""
        word = f"_tabfeed_{uuid.uuid4().hex}"
        with folder.filesystem.open_output_stream(f"{folder.path}/{word}") as sink:
            sink.write(b"x")
        try:
            for who, reason in self._ask(tasks.see_folder, folder.filesystem, folder.path, word):
                raise ClusterError(
                    f"{_who(who)} cannot write into {folder.name}: {reason}; choose a folder that "
                    "every worker and this process share, on a shared filesystem or an object store"
                )
        finally:
            folder.filesystem.delete_file(f"{folder.path}/{word}")

    def _ask(self, question: Any, *args: Any) -> Iterable[tuple[str, Any]]:
        """The objections of workers, by address; a worker that dies meanwhile has none."""
        answers = self.client.run(question, *args, on_error="return")
        return [(who, answer) for who, answer in answers.items() if isinstance(answer, str)]


def _differences(mine: dict[str, Any], theirs: dict[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Differences that matter: the Dask version, and Python's major and minor version."""
    for what in ("dask", "distributed"):
        here, there = mine["packages"].get(what), theirs["packages"].get(what)
        if here != there:
            yield what, str(here), str(there)
    here, there = (str(v["host"]["python"]).split(".") for v in (mine, theirs))
    if here[:2] != there[:2]:
        yield "Python", ".".join(here[:2]), ".".join(there[:2])


def _who(address: str) -> str:
    return address if address.startswith("the ") else f"worker {address}"
