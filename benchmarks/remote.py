"""Object storage with a delay and a limit on each connection, against local disk. Prints JSON.

A server on loopback adds `--latency` to each request and lets each connection have `--bandwidth`
bytes a second. "share" is what the loader gets of connections times bandwidth, over whole epochs,
the wait for the first bytes and the last decoding included; the best of `--rounds`. Each epoch's
is in "share_by_epoch". The server sends from the page cache (sendfile) but runs on the same cores
as the loader. "bare" is what clients get that only receive, as many connections and requests as
large as the loader's, with nothing decoded: the limit of this machine and of this server, in the
same rounds. "cpu_busy" says how much of the machine was in use meanwhile. The data are 40 columns
of random 32-bit integers in plain, uncompressed pages, which take little to decode.

    python benchmarks/remote.py --json benchmarks/results/remote.json --page docs/scaling.md
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import torch

from tabfeed import Dataset
from tabfeed.io.storage.fetch import Range, largest_request, requests_for
from tabfeed.loader.torch import TorchAsyncItr

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness.about import about
from benchmarks.page_table import put, rows
from tests.faulty_server import FaultyServer

COLUMNS = [f"C{i}" for i in range(40)]
PIECE = 8 * 2**20
_MANY, _ROOMY = 8, "2GB"
PARTS = ("remote", "local", "disk_cache", "libraries", "ranks")


def write(folder: Path, rows: int, group: int) -> int:
    """Plain int32 columns; the bytes of all files."""
    random = np.random.default_rng(0)
    for number in range(rows // (group * 4)):
        table = {c: random.integers(0, 2**30, group * 4, dtype=np.int32) for c in COLUMNS}
        target = folder / f"part_{number}"
        Dataset(table).to_parquet(target, layout="fast", row_group_size=group, output_files=1)
        (target / "part_0.parquet").rename(folder / f"part_{number}.parquet")
        shutil.rmtree(target)
    return sum(f.stat().st_size for f in folder.glob("*.parquet"))


def processor_seconds() -> tuple[float, float]:
    """Busy and total seconds of all cores since they were started."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return (sum(fields) - fields[3] - fields[4]) / 100, sum(fields) / 100


def take_memory(nbytes: int = 2 * 10**9) -> None:
    """Take memory and give it back, before the clock runs.

    The host of a virtual machine hands memory out when it is first touched: on the one where
    this was written at 2 s a GB, and at 0.14 s a GB where it had been touched shortly before.
    """
    np.ones(nbytes, np.uint8)


def epochs(dataset: Dataset, count: int, **options: Any) -> dict[str, Any]:
    """Seconds, rows and processor use of some epochs of a loader that exists already."""
    loader = TorchAsyncItr(dataset, COLUMNS, batch_size=65_536, shuffle=True, **options)
    rows, own, ends = 0, time.process_time(), [time.perf_counter()]
    busy, total = processor_seconds()
    for _ in range(count):
        for x, _, _ in loader:
            rows += len(x)
        ends.append(time.perf_counter())
    busy_now, total_now = processor_seconds()
    return {
        "seconds": round(ends[-1] - ends[0], 2),
        "epoch_seconds": [round(b - a, 2) for a, b in pairwise(ends)],
        "rows": rows,
        "own_cpu_seconds": round(time.process_time() - own, 2),
        "cpu_busy": round((busy_now - busy) / max(0.01, total_now - total), 2),
    }


def bare(given: argparse.Namespace, folder: Path, nbytes: int) -> dict[str, float]:
    """Clients that throw away what comes, each with a connection, a file after the other."""
    waiting: queue.SimpleQueue[tuple[str, Range]] = queue.SimpleQueue()
    for path in sorted(folder.glob("bucket/*.parquet")):
        whole = [Range(0, path.stat().st_size)]
        for piece in requests_for(whole, largest_request(given.connections)):
            waiting.put((f"/bucket/{path.name}", piece))
    with FaultyServer(folder=folder, latency=given.latency, bandwidth=given.bandwidth) as server:
        begun = time.perf_counter()
        with ThreadPoolExecutor(given.connections) as pool:
            list(pool.map(receive, [server.url] * given.connections, repeat(waiting)))
        seconds = time.perf_counter() - begun
    speed = nbytes / seconds
    facts = {"seconds": round(seconds, 2), "mb_a_second": round(speed / 1e6, 1)}
    return {**facts, "share": _share(given, speed)}


def _share(given: argparse.Namespace, speed: float) -> float:
    """Of what the connections allow."""
    return round(speed / given.connections / given.bandwidth, 3)


def receive(url: str, waiting: queue.SimpleQueue[tuple[str, Range]]) -> None:
    """Ask for pieces on one connection until there are none."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    space = bytearray(2**20)
    with suppress(queue.Empty):
        while True:
            path, piece = waiting.get(block=False)
            asked = {"Range": f"bytes={piece.start}-{piece.stop - 1}"}
            connection.request("GET", path, headers=asked)
            answer = connection.getresponse()
            while answer.readinto(space):
                pass
    connection.close()


def through_loader(given: argparse.Namespace, folder: Path, nbytes: int) -> dict[str, Any]:
    """The loader on the slow server."""
    with FaultyServer(folder=folder, latency=given.latency, bandwidth=given.bandwidth) as server:
        options = {**s3_options(server), "connections": given.connections}
        begun = time.perf_counter()
        dataset = Dataset("s3://bucket", storage_options=options)
        opened = time.perf_counter() - begun
        server.calm()
        take_memory()
        found: dict[str, Any] = epochs(dataset, given.epochs, host_memory=given.host_memory)
        stats = server.stats()
    speed = nbytes * given.epochs / found["seconds"]
    return {
        "open_seconds": round(opened, 2),
        **found,
        "mb_a_second": round(speed / 1e6, 1),
        "share": _share(given, speed),
        "share_by_epoch": [_share(given, nbytes / s) for s in found["epoch_seconds"]],
        "bytes_read_over_data": round(stats["bytes"] / nbytes / given.epochs, 4),
        "requests": stats["requests"],
    }


def s3_options(server: FaultyServer) -> dict[str, Any]:
    """How to reach the server."""
    return {"key": "k", "secret": "s", "endpoint_url": server.url, "region_name": "us-east-1"}


def raw(read: Callable[[int], Any], size: int, connections: int) -> dict[str, float]:
    """Bytes a second of a library alone, nothing decoded."""
    begun, own = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(connections) as pool:
        got = sum(len(data) for data in pool.map(read, range(0, size, PIECE)))
    seconds = time.perf_counter() - begun
    cpu = (time.process_time() - own) / got * 1e9
    return {"mb_a_second": round(got / seconds / 1e6), "cpu_seconds_a_gb": round(cpu, 2)}


def libraries(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Arrow's S3 against s3fs, and fsspec's http against Python's own, on a server without limits.

    The bytes land where tabfeed wants them: in a buffer of Arrow's, or in bytes.
    """
    path = next(iter(sorted(folder.glob("bucket/*.parquet"))))
    name, size = f"bucket/{path.name}", path.stat().st_size
    with FaultyServer(folder=folder) as server:
        arrow = pafs.S3FileSystem(
            access_key="k", secret_key="s", endpoint_override=server.url, region="us-east-1"
        ).open_input_file(name)
        s3fs = fsspec.filesystem("s3", key="k", secret="s", endpoint_url=server.url)
        web = fsspec.filesystem("http")
        readers: dict[str, Callable[[int], Any]] = {
            "s3: arrow": lambda at: arrow.get_stream(at, PIECE).read_buffer(PIECE),
            "s3: arrow, as bytes": lambda at: arrow.read_at(PIECE, at),
            "s3: s3fs": lambda at: s3fs.cat_file(name, start=at, end=min(size, at + PIECE)),
            "http: fsspec": lambda at: web.cat_file(
                f"{server.url}/{name}", start=at, end=min(size, at + PIECE)
            ),
            "http: http.client": _plain_http(server.url, f"/{name}", size),
        }
        return {k: raw(read, size, given.connections) for k, read in readers.items()}


def _plain_http(url: str, path: str, size: int) -> Callable[[int], bytes]:
    """A connection for each thread, and nothing but requests and answers on it."""
    mine = threading.local()

    def read(at: int) -> bytes:
        if not hasattr(mine, "connection"):
            mine.connection = http.client.HTTPConnection(url.removeprefix("http://"))
        asked = {"Range": f"bytes={at}-{min(size, at + PIECE) - 1}"}
        mine.connection.request("GET", path, headers=asked)
        return bytes(mine.connection.getresponse().read())

    return read


def cached(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The disk cache: the run that fills it, and one that finds it."""
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as place,
        FaultyServer(folder=folder, latency=given.latency, bandwidth=given.bandwidth) as server,
    ):
        os.environ["TABFEED_CACHE_DIR"] = place
        options = {**s3_options(server), "connections": given.connections}
        dataset = Dataset("s3://bucket", storage_options=options)
        filling = epochs(dataset, 1, cache="disk")
        server.calm()
        finding = epochs(Dataset("s3://bucket", storage_options=options), 1, cache="disk")
        sent = server.stats()["bytes"]
    return {"filling": filling, "finding": finding, "bytes_read_when_found": sent}


def ranks(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What each rank reads of 203 row groups in an epoch, a process and a server for each rank."""
    (folder / "ranks").mkdir()
    rows = 203 * 16_384  # which 8 ranks do not share evenly
    key = np.arange(rows, dtype=np.int32)
    table = pa.table({"key": key, "x": key * np.float32(0.5)})
    path = folder / "ranks/part.parquet"
    pq.write_table(table, path, row_group_size=16_384, compression="none", use_dictionary=False)
    with ExitStack() as stack:
        servers = [stack.enter_context(FaultyServer(folder=folder)) for _ in range(given.ranks)]
        storage = json.dumps([s3_options(server) for server in servers])
        script = Path(__file__).parents[1] / "tests/integration/rank_process.py"
        what = ["s3://ranks/part.parquet", str(folder / "log"), "8192", "0", storage]
        subprocess.run([sys.executable, str(script), str(given.ranks), *what], check=True)
        read = [server.stats()["bytes"] for server in servers]
    whole = path.stat().st_size
    return {"data_mb": round(whole / 1e6, 1), "mb_by_rank": [round(n / 1e6, 2) for n in read],
            "all_over_data": round(sum(read) / whole, 4)}  # fmt: skip


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--group", type=int, default=400_000, help="rows in a row group")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--connections", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--bandwidth", type=float, default=100e6)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--host-memory", help="as the loader takes it")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--json", type=Path, help="where to write the result as well")
    parser.add_argument("--page", type=Path, help="a page with a table of the result")
    return parser.parse_args(given)


def against_bare(given: argparse.Namespace, folder: Path, nbytes: int) -> dict[str, Any]:
    """The loader and bare clients by turns; the best of each."""
    clients, loaders = [], []
    for _ in range(given.rounds):
        clients.append(bare(given, folder, nbytes))
        loaders.append(through_loader(given, folder, nbytes))
    limit, found = (max(runs, key=lambda run: run["share"]) for runs in (clients, loaders))
    return {"bare": limit, **found, "of_bare": round(found["share"] / limit["share"], 3)}


def _variants(given: argparse.Namespace, numbers: list[int]) -> dict[str, dict[str, Any]]:
    """Each number of connections; many also with room for twice as much on its way."""
    found: dict[str, dict[str, Any]] = {f"{n} connections": {"connections": n} for n in numbers}
    for n in numbers:
        if n >= _MANY and given.host_memory is None:
            found[f"{n} connections, {_ROOMY}"] = {"connections": n, "host_memory": _ROOMY}
    return found


def table(found: dict[str, Any]) -> str:
    """The result for people."""
    head = ["connections", "only receiving", "the loader", "its first epoch", "its second",
            "processor seconds a GB"]  # fmt: skip
    size = found["data_mb"] * found["settings"]["epochs"] / 1e3
    return rows(
        head,
        *(
            [
                name.replace(" connections", "").replace(_ROOMY, f'`host_memory="{_ROOMY}"`'),
                *(f"{s:.2f}" for s in (run["bare"]["share"], run["share"])),
                *(f"{s:.2f}" for s in run["share_by_epoch"][:2]),
                f"{run['own_cpu_seconds'] / size:.1f}",
            ]
            for name, run in found["remote"].items()
        ),
    )


def library_table(found: dict[str, Any]) -> str:
    """What libraries alone take, for people."""
    return rows(
        ["library", "MB a second", "processor seconds a GB"],
        *(
            [name, f"{run['mb_a_second']:,}", f"{run['cpu_seconds_a_gb']:.2f}"]
            for name, run in found["libraries"].items()
        ),
    )


def _with(given: argparse.Namespace, **other: Any) -> argparse.Namespace:
    return argparse.Namespace(**(vars(given) | other))


def on_disk(given: argparse.Namespace, folder: Path, nbytes: int) -> dict[str, float]:
    """The loader on the same files, from the page cache."""
    found = epochs(Dataset(str(folder / "bucket")), given.epochs)
    return {**found, "mb_a_second": round(nbytes * given.epochs / found["seconds"] / 1e6, 1)}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        folder = Path(place)
        (folder / "bucket").mkdir()
        nbytes = write(folder / "bucket", given.rows, given.group)
        settings = {
            k: v for k, v in vars(given).items() if k not in ("folder", "parts", "json", "page")
        }
        numbers = given.connections
        given.connections = numbers[0]
        calls: dict[str, Callable[[], Any]] = {
            "remote": lambda: {
                name: against_bare(_with(given, **other), folder, nbytes)
                for name, other in _variants(given, numbers).items()
            },
            "local": lambda: on_disk(given, folder, nbytes),
            "disk_cache": lambda: cached(folder, given),
            "libraries": lambda: libraries(given, folder),
            "ranks": lambda: ranks(given, folder),
        }
        found = {name: calls[name]() for name in given.parts}
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    return {"settings": settings, "data_mb": round(nbytes / 1e6, 1), **found, "peak_mb": peak}


def main() -> None:
    """Measure and print."""
    given = arguments()
    text = json.dumps({**about(), **measure(given)}, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    if given.page:
        page, result = given.page.read_text(), json.loads(text)
        page = put(page, "remote.py", table(result))
        given.page.write_text(put(page, "remote.py, libraries", library_table(result)))


if __name__ == "__main__":
    main()
