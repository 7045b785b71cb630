"""How much faster two Dask workers are than one, and what moves between them. Prints JSON.

    python benchmarks/scale.py --json benchmarks/results/scale.json --page docs/scaling.md

The README's Criteo workflow on one and on two worker processes of one thread each, started as
`tabfeed.Distributed` starts them, on the same data and with all files in the page cache. Each
number of workers runs `--rounds` times, in turn, after a run on one file that nobody times; the
figures are the best of each, since on a shared machine the rest is other people's work. "moved" are
the bytes that Dask counted, "cpu" processor seconds of the workers and of the client, which
has the scheduler in its process. The client works on the same cores as the workers.

"machine" is what the machine itself gives, in the same rounds: a process without Dask does half of
the data, alone; then two do a half each, at the same time. Twice the first over the second
is what two workers that lost nothing would reach; "of_machine" is the speed-up over that.

"storage" is the loader on object storage with a delay and a limit for each connection against local
disk, and the bytes that each of several ranks reads (`benchmarks/remote.py` has more of both).

`--page` writes the table of a page anew; a test holds the page to the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from tabfeed import Dataset, Workflow, ops
from tabfeed.execute import Executor, LocalExecutor, as_executor
from tabfeed.execute.dask_cluster import KEEP_MEMORY, disconnect, start_local

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import criteo_raw
from criteo_raw import CATS, CONTS

from benchmarks.harness.about import about
from benchmarks.page_table import put, rows

STEPS = ("fit", "transform", "full_shuffle", "storage")
ONE = {"POLARS_MAX_THREADS": "1", "TABFEED_THREADS": "1", "OMP_NUM_THREADS": "1"}
PART = "32MB"
Figures = dict[str, float]


def graph() -> Any:
    """The workflow of the README."""
    cats = CATS >> ops.Categorify(max_size=10_000_000)
    conts = CONTS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    return cats + conts + ["label"]


def work(executor: Executor, files: Sequence[Path], out: Path) -> dict[str, Callable[[], Any]]:
    """What is timed: each step needs those before it."""
    shutil.rmtree(out, ignore_errors=True)
    data = Dataset(list(files), part_size=PART)
    workflow = Workflow(graph(), executor=executor)
    return {
        "fit": lambda: workflow.fit(data),
        "transform": lambda: workflow.transform(data).to_parquet(out / "plain"),
        "full_shuffle": lambda: workflow.transform(data).to_parquet(out / "mixed", shuffle="FULL"),
    }


# -- with Dask --------------------------------------------------------------------------


@contextmanager
def cluster(workers: int) -> Iterator[Client]:
    """Worker processes of one thread."""
    client = start_local(workers, 1, "auto")
    try:
        yield client
    finally:
        disconnect(client)


def moved(client: Client) -> int:
    """Bytes the workers have sent, to each other and to the client, so far."""

    def sent(dask_worker: Any) -> int:
        return int(dask_worker.transfer_outgoing_bytes_total)

    return sum(client.run(sent).values())


def used(client: Client) -> Figures:
    """Processor seconds so far."""
    processes = {"workers": client.run(os.getpid).values(), "client": [os.getpid()]}
    return {
        who: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
        for who, pids in processes.items()
    }


def measure(client: Client, files: list[Path], out: Path, steps: Sequence[str]) -> Figures:
    """Seconds of each step, the bytes that moved, and the processor time it took."""
    found: Figures = {}
    for name, call in work(as_executor(client), files, out).items():
        if name not in steps:
            continue
        sent, cpu, start = moved(client), used(client), time.perf_counter()
        call()
        found[f"{name}_s"] = time.perf_counter() - start
        found |= {f"{name}_cpu_{who}_s": s - cpu[who] for who, s in used(client).items()}
        found[f"{name}_moved_mb"] = (moved(client) - sent) / 1e6
    return found


# -- what the machine gives -------------------------------------------------------------


class Alone:
    """A process without Dask, which does each step when it is told to."""

    def __init__(self, files: Sequence[Path], out: Path) -> None:
        command = [sys.executable, __file__, "--alone", str(out), *map(str, files)]
        memory = {name: str(value) for name, value in KEEP_MEMORY.items()}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=os.environ | ONE | memory, **pipes)
        self.answer()

    def ask(self, step: str) -> None:
        """Begin a step."""
        assert self._process.stdin is not None
        print(step, file=self._process.stdin, flush=True)

    def answer(self) -> float:
        """Seconds that it took."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()


def alone(out: Path, files: list[Path]) -> None:
    """What such a process does: read the name of a step, do it, print the seconds."""
    for call in list(work(LocalExecutor(1), files[:1], out).values())[:2]:
        call()
    print(0.0, flush=True)
    steps = work(LocalExecutor(1), files, out)
    for line in sys.stdin:
        start = time.perf_counter()
        steps[line.strip()]()
        print(time.perf_counter() - start, flush=True)


def halves(files: list[Path], out: Path, steps: Sequence[str]) -> Figures:
    """Seconds of half of the work, by one process, and by each of two at the same time."""
    parts = [files[: len(files) // 2], files[len(files) // 2 :]]
    found: Figures = {}
    with ExitStack() as stack:
        both = [stack.enter_context(Alone(part, out / f"half_{i}")) for i, part in enumerate(parts)]
        for step in (s for s in ("fit", "transform") if s in steps):
            for how, some in (("one", both[:1]), ("two", both)):
                for process in some:
                    process.ask(step)
                found[f"{step}_{how}_s"] = max(process.answer() for process in some)
                shutil.rmtree(out, ignore_errors=True)
    return found


# -- storage ----------------------------------------------------------------------------


def storage() -> dict[str, Any]:
    """Object storage against local disk, and who reads what of it."""
    import remote  # which imports torch, and workers import this file

    parts = ["--connections", "2", "--parts", "remote", "local", "ranks"]
    found: dict[str, Any] = remote.measure(
        remote.arguments(["--rows", "4800000", "--epochs", "1", "--rounds", "2", *parts])
    )
    return found


# -- all of it --------------------------------------------------------------------------


def best(runs: list[Figures]) -> Figures:
    """The least of each figure."""
    return {name: round(min(run[name] for run in runs), 2) for name in runs[0]}


def features(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One worker, two workers and the machine, in turn."""
    raw, out = options.raw or folder / "raw", folder / "out"
    criteo_raw.write(raw, options.rows)
    files = sorted(raw.glob("*.parquet"))
    runs: dict[int, list[Figures]] = {1: [], 2: []}
    machine: list[Figures] = []
    with cluster(1) as one, cluster(2) as two:
        clients = {1: one, 2: two}
        for client in clients.values():
            measure(client, files[:1], out, options.steps)
        for _ in range(options.rounds):
            for workers, client in clients.items():
                runs[workers].append(measure(client, files, out, options.steps))
            machine.append(halves(files, folder / "halves", options.steps))
    figures = {workers: best(found) for workers, found in runs.items()}
    result: dict[str, Any] = {"rows": options.rows, "workers": figures, "machine": best(machine)}
    limits = result["machine"]
    for name in (s for s in STEPS[:3] if s in options.steps):
        gain = {"speedup": round(figures[1][f"{name}_s"] / figures[2][f"{name}_s"], 2)}
        if f"{name}_one_s" in limits:
            gain["machine"] = round(2 * limits[f"{name}_one_s"] / limits[f"{name}_two_s"], 2)
            gain["of_machine"] = round(gain["speedup"] / gain["machine"], 2)
        result[name] = gain
    return result


def table(found: dict[str, Any]) -> str:
    """The result for people."""
    head = [
        f"{found['rows']:,} rows", "1 worker", "2 workers", "times as fast",
        "two processes without Dask", "processor seconds of workers, with one and two",
        "of client and scheduler",
    ]  # fmt: skip
    labels = {"fit": "fit", "transform": "transform and write"}
    return rows(head, *([label, *_figures(found, name)] for name, label in labels.items()))


def _figures(found: dict[str, Any], name: str) -> list[str]:
    each, gain = [found["workers"][n] for n in "12"], found[name]
    cpu = (
        ", ".join(f"{run[f'{name}_cpu_{who}_s']:.1f}" for run in each)
        for who in ("workers", "client")
    )
    seconds = [f"{run[f'{name}_s']:.1f} s" for run in each]
    return [*seconds, f"{gain['speedup']:.2f}", f"{gain['machine']:.2f}", *cpu]


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--steps", nargs="+", default=("fit", "transform", "storage"), choices=STEPS
    )
    parser.add_argument("--raw", type=Path, help="where the data is, or is to be kept")
    parser.add_argument("--json", type=Path, help="where to write the result as well")
    parser.add_argument("--page", type=Path, help="a page with a table of the result")
    parser.add_argument("--alone", nargs="+", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        return alone(options.alone[0], options.alone[1:])
    found: dict[str, Any] = about()
    if set(options.steps) - {"storage"}:
        with tempfile.TemporaryDirectory() as folder:
            found |= features(options, Path(folder))
    if "storage" in options.steps:
        found["storage"] = storage()
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    if options.page:
        options.page.write_text(put(options.page.read_text(), "scale.py", table(json.loads(text))))


if __name__ == "__main__":
    main()
