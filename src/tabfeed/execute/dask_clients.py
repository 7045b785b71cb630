"""Clients of Dask clusters: whether one can be used, made for an address, or with its own cluster.

Workers started here keep the memory they free for a while instead of giving it back at once.
Dask's own setting returns it after every task; the next one then takes each page anew from the
kernel, zeroed: fitting the README's workflow on 0.75 M rows took 300,000 page faults and 4.3 s of
processor time so, and 35,000 and 3.3 s with these settings. They reach glibc and
Polars' allocator only through the environment in which a worker starts; whoever set one of these
variables is obeyed.

Nor do they watch themselves as closely as Dask's do. Sampling the stack a hundred times a second,
looking at the memory ten times and at the event loop fifty times took 4.8 % of a core for two
workers that had nothing to do, and 2.8 % for the client that has their scheduler; now 0.7 and
0.8 %. What is lost is the dashboard's page of profiles, and half a second until a worker that
outgrows its memory is noticed. Nobody takes the work of a run (its parcel) off a worker either, as
Dask's memory manager does while the worker waits: it would be opened again for the next task.
"""

from __future__ import annotations

from typing import Any

import dask
import distributed
from distributed import Client

from tabfeed.errors import ArgumentError, ClusterError

__all__ = ["KEEP_MEMORY", "connect", "connected", "disconnect", "start_local"]

_BEFORE_SPAWN = "distributed.nanny.pre-spawn-environ"
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": 2**28,
    "MALLOC_MMAP_THRESHOLD_": 2**25,
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:5000,muzzy_decay_ms:5000",
}

_QUIETLY = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "500ms",
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.scheduler.active-memory-manager.start": False,
}


def connected(client: Any) -> Client:
    """The client, if it can be used."""
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
    """A cluster of processes on this machine, and a client of it."""
    memory = {**dask.config.get(_BEFORE_SPAWN), **KEEP_MEMORY}
    with dask.config.set({_BEFORE_SPAWN: memory, **_QUIETLY}):
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
    """A client of the scheduler at an address."""
    try:
        return Client(address, set_as_default=False)
    except (OSError, ValueError, distributed.TimeoutError) as e:
        raise ClusterError(
            f"no scheduler answers at {address!r}: {e}; give the address that `dask scheduler` "
            "prints, such as tcp://10.0.0.1:8786"
        ) from e


def disconnect(client: Client) -> None:
    """Close a client, and the cluster that was started for it."""
    cluster = client.cluster
    client.close()
    if cluster is not None:
        cluster.close()
