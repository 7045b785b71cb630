"""Kill processes that shuffle, fit, save and publish, and see what is left.

    .venv/bin/python benchmarks/kills.py --kills 100 --seed 0 --out benchmarks/results/kills.json

Each kill is a SIGKILL, half of them at a random time, half at a random call or return of one of
tabfeed's functions that write, spill or publish. The tasks:

- shuffle: a full shuffle that spills, into a new folder or over a dataset, on disk and on S3
- fit: an encoder and a grouping that spill, then the workflow is saved over an older one
- save: a fitted workflow is saved over an older one
- commit: a dataset of several files, into a new folder or over a dataset, on disk
- two writers: the same on S3 (moto's server), two at once into one folder; one or both are killed

After each kill the folder must hold the old dataset or workflow, or the new one, or be refused as
unfinished; on S3 an old dataset is never refused. A writer that reported success must be the one
whose rows are there. Then the task is run again: it must end well, its rows must be the right ones
by a checksum, and nothing may be left: no staged file, no temporary folder, no upload to S3. Prints
one JSON object; the exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

TASKS = ("shuffle", "fit", "save", "commit", "two writers")
WATCHED = (
    "io/commit/commit.py", "io/commit/object_store.py", "io/commit/unlocked.py",
    "io/commit/staged_files.py", "io/shuffle/distributed.py", "io/shuffle/local.py",
    "io/storage/local.py", "io/write/parquet.py", "ops/state/memory.py",
    "workflow/artefact.py",
)  # fmt: skip
PROBE = [f"a long enough text {i}" for i in range(0, 400, 7)]


# -- what is killed: runs in a forked child ---------------------------------------------


def rows_of(version: int) -> dict[str, Any]:
    """The rows of a version; each knows its version, and how many there are."""
    import numpy as np

    rows = 4000 + version % 7
    i = np.arange(rows)
    check = (i * 2654435761 + version * 40503) % 2**32
    columns = {"i": i, "version": np.full(rows, version), "rows": np.full(rows, rows)}
    return {**columns, "check": check}


def write(url: str, version: int, storage: dict[str, Any] | None, *, shuffle: bool) -> None:
    """Write a version of the dataset."""
    from tabfeed import Dataset

    extra: dict[str, Any] = {"shuffle": "FULL", "memory_limit": 1} if shuffle else {}
    Dataset(rows_of(version), npartitions=4).to_parquet(
        url, output_files=2 + version % 3, overwrite=True, storage_options=storage, **extra
    )


def fitted(version: int) -> Any:
    """A workflow that knows the texts of its version, spilled while it was fitted."""
    from tabfeed import Dataset, Workflow, ops

    texts = [f"a long enough text {(i * (version + 3)) % 400}" for i in range(3000)]
    data = Dataset({"c": texts, "x": [float(i) for i in range(3000)]}, npartitions=4)
    node = (["c"] >> ops.JoinGroupby("x")) + (["c"] >> ops.Categorify())
    return Workflow(node).fit(data, memory_limit="10kB")


def fit(folder: str, version: int) -> None:
    """Fit and save."""
    fitted(version).save(folder)


def do(task: str, where: str, version: int, storage: dict[str, Any] | None) -> None:
    """Do one task."""
    if task in ("fit", "save"):
        fit(where, version)
    else:
        write(where, version, storage, shuffle=task == "shuffle")


class Steps:
    """Counts calls and returns of the watched functions; kills this process at one of them."""

    def __init__(self, last: int, watched: tuple[str, ...]) -> None:
        self.count, self._last, self._watched = 0, last, watched

    def watch(self) -> None:
        """From now on, in all threads to come."""
        threading.setprofile(self._step)
        sys.setprofile(self._step)

    def _step(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "return") and frame.f_code.co_filename.endswith(self._watched):
            self.count += 1
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)


def nursery() -> None:
    """Imports once, and forks a child for each task: a line in, its process id out."""
    import duckdb  # noqa: F401
    import polars  # noqa: F401

    import tabfeed.workflow  # noqa: F401
    from tabfeed import Dataset

    Dataset({"i": [1]})  # what this imports, no child has to
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            os.waitpid(order["wait"], 0)
            print("{}", flush=True)
            continue
        child = os.fork()
        if child == 0:
            _child(order)
        print(json.dumps({"child": child}), flush=True)


def _child(order: dict[str, Any]) -> None:
    watched = ("workflow/artefact.py",) if order["task"] == "save" else WATCHED
    steps = Steps(order["step"], watched)
    outcome: dict[str, Any] = {}
    try:
        if order["step"] is not None:
            steps.watch()
        warnings.simplefilter("error")
        _note_manifests(Path(order["outcome"]))
        do(order["task"], order["where"], order["version"], order["storage"])
        outcome = {"ok": True, "steps": steps.count}
    except BaseException as e:
        where = traceback.format_exc(limit=-6)
        outcome = {"ok": False, "error": type(e).__name__, "text": str(e), "trace": where}
    finally:
        sys.setprofile(None)
        Path(order["outcome"]).write_text(json.dumps(outcome))
        os._exit(0)


def _note_manifests(outcome: Path) -> None:
    """Keep, beside the outcome, who this writer of S3 is and whose manifest it found to replace."""
    from tabfeed.io.commit.unlocked import ObjectPublisher

    begin = ObjectPublisher.begin

    def noting(publisher: ObjectPublisher) -> None:
        begin(publisher)
        found = publisher.base and json.loads(publisher.base[0])["writer"]
        outcome.with_suffix(".writers").write_text(json.dumps([publisher.writer, found]))

    ObjectPublisher.begin = noting  # type: ignore[method-assign]


# -- who kills --------------------------------------------------------------------------


class Nursery:
    """Starts, kills and ends children."""

    def __init__(self, scratch: Path) -> None:
        self.temporary = scratch / "tmp"
        self.temporary.mkdir()
        self._outcomes = scratch / "outcomes"
        self._outcomes.mkdir()
        self._count = 0
        root = Path(__file__).resolve().parents[1]
        path = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--nursery"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={
                **os.environ, "TMPDIR": str(self.temporary), "TABFEED_THREADS": "2",
                "TABFEED_PROGRESS": "0", "PYTHONPATH": path, "POLARS_MAX_THREADS": "2",
            },
        )  # fmt: skip

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def start(self, task: str, where: str, version: int, storage: Any, step: int | None) -> Child:
        """Begin a task; `step` is where it kills itself, None for never."""
        self._count += 1
        outcome = self._outcomes / str(self._count)
        order = {"task": task, "where": where, "version": version, "storage": storage}
        answer = self._ask({**order, "step": step, "outcome": str(outcome)})
        return Child(self, answer["child"], outcome)

    def end(self, child: Child) -> dict[str, Any] | None:
        """Wait for it; what it said, None if it was killed."""
        self._ask({"wait": child.process})
        return json.loads(child.outcome.read_text()) if child.outcome.exists() else None

    def close(self) -> None:
        """No more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


@dataclass(frozen=True)
class Child:
    """A process at work."""

    nursery: Nursery
    process: int
    outcome: Path

    def replaces(self, others: Iterable[Child]) -> bool:
        """Whether it found the manifest of one of the others, and so may replace it."""
        found = self._writers()[1]
        return found is not None and found in [other._writers()[0] for other in others]

    def _writers(self) -> list[str | None]:
        note = self.outcome.with_suffix(".writers")
        return list(json.loads(note.read_text() or "[null, null]")) if note.exists() else [None] * 2

    def kill(self, after: float) -> None:
        """Kill it then; it is still there, even if it ended, until it is waited for."""
        time.sleep(after)
        os.kill(self.process, signal.SIGKILL)


def _make_puts_atomic() -> None:
    """Let moto check a request's condition and store its object in one step, as S3 does.

    Its threads check first and store later: two writers could both find that there is no manifest.
    """
    from moto.s3.responses import S3Response

    put, lock = S3Response._key_response_put, threading.Lock()

    def alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return put(self, *args, **kwargs)

    S3Response._key_response_put = alone  # type: ignore[method-assign]


class Store:
    """moto's S3 server."""

    def __init__(self) -> None:
        import boto3
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        _make_puts_atomic()
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        url = f"http://{host}:{port}"
        names = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
        self._client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **names)
        self._client.create_bucket(Bucket="data")
        self.options = {"key": "k", "secret": "s", "endpoint_url": url}
        self.options["client_kwargs"] = {"region_name": "us-east-1"}  # type: ignore[assignment]

    def names(self, prefix: str) -> list[str]:
        """Objects below a folder, the uploads that are not finished among them."""
        listed = self._client.list_objects_v2(Bucket="data", Prefix=f"{prefix}/")
        uploads = self._client.list_multipart_uploads(Bucket="data", Prefix=f"{prefix}/")
        names = [o["Key"] for o in listed.get("Contents", ())]
        names += [f"upload of {u['Key']}" for u in uploads.get("Uploads", ())]
        return sorted(n.removeprefix(f"{prefix}/") for n in names)

    def close(self) -> None:
        """No more."""
        self._client.close()
        self._server.stop()


def version_of(url: str, storage: dict[str, Any] | None) -> int | str:
    """The version of a dataset that is there, whole; or in a word what is there instead."""
    from tabfeed import Dataset
    from tabfeed.errors import SourceNotFoundError, UnfinishedDatasetError

    try:
        table = Dataset(url, storage_options=storage).to_arrow()
    except UnfinishedDatasetError:
        return "refused"
    except SourceNotFoundError:
        return "nothing"
    versions = set(table["version"].to_pylist())
    if len(versions) != 1:
        return f"a mix of {sorted(versions)}"
    version = int(versions.pop())
    table = table.sort_by("i")
    wanted = rows_of(version)
    if any(table[name].to_pylist() != wanted[name].tolist() for name in wanted):
        return f"version {version}, wrong rows"
    return version


def workflow_of(folder: str, known: dict[str, int]) -> int | str:
    """The version of a saved workflow, by the ids it gives."""
    from tabfeed import Workflow
    from tabfeed.errors import ArtefactError

    if not Path(folder).exists():
        return "nothing"
    try:
        ids = ids_of(Workflow.load(folder))
    except ArtefactError as e:
        return f"an artefact that does not load: {e}"
    return known.get(ids, "a workflow nobody saved")


def ids_of(workflow: Any) -> str:
    """What a workflow makes of some texts."""
    from tabfeed import Dataset

    table = workflow.transform(Dataset({"c": PROBE, "x": [0.0] * len(PROBE)})).to_arrow()
    return repr(table.to_pydict())


@dataclass
class Figures:
    """What happened."""

    kills: int = 0
    by_task: Counter[str] = field(default_factory=Counter)
    after_kill: Counter[str] = field(default_factory=Counter)
    survivors: Counter[str] = field(default_factory=Counter)
    too_late: int = 0  # the task had ended before it was to be killed
    wrong: list[str] = field(default_factory=list)


class Run:
    """All kills."""

    def __init__(
        self, scratch: Path, seed: int, tasks: tuple[str, ...] = TASKS, *, by_time: bool = True
    ) -> None:
        self._by_time = by_time
        self.figures = Figures()
        self._scratch, self._dice, self._tasks = scratch, random.Random(seed), tasks
        self._nursery = Nursery(scratch)
        self._store = Store()
        self._version = 0
        self._usual: dict[str, tuple[float, int]] = {}
        self._known: dict[str, int] = {}

    def close(self) -> None:
        """End what was started."""
        self._nursery.close()
        self._store.close()

    def go(self, kills: int, tell: Callable[[Figures], None]) -> Figures:
        """Kill so many; `tell` gets the figures after each attempt."""
        number = 0
        while self.figures.kills < kills and number < 3 * kills:
            task = self._tasks[number % len(self._tasks)]
            self._attempt(task, number)
            number += 1
            tell(self.figures)
        return self.figures

    def _next(self, is_workflow: bool = False) -> int:
        """Another version than the last; of workflows there are a few, since they take time."""
        self._version += 1
        return self._version % 5 if is_workflow else self._version

    def _workflow(self, version: int) -> Path:
        """A workflow of that version, saved in peace."""
        place = self._scratch / "workflows" / str(version)
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            self._whole("fit", -1, str(place), version, None)
            from tabfeed import Workflow

            self._known[ids_of(Workflow.load(place))] = version
        return place

    def _complain(self, task: str, number: int, what: str) -> None:
        self.figures.wrong.append(f"{task}, attempt {number}: {what}")

    def _attempt(self, task: str, number: int) -> None:
        remote = task == "two writers" or (task == "shuffle" and number % 2 == 1)
        name = f"{number}"
        where = f"s3://data/{name}" if remote else str(self._scratch / name)
        storage = self._store.options if remote else None
        if remote and number % 3 == 2:  # through s3fs
            storage = {**self._store.options, "default_block_size": 2**23}
        is_workflow = task in ("fit", "save")
        look: Callable[[], int | str] = (
            (lambda: workflow_of(where, self._known)) if is_workflow
            else (lambda: version_of(where, storage))
        )  # fmt: skip
        if is_workflow:
            for version in range(5):
                self._workflow(version)
        seconds, steps = self._measure(task, remote, storage)
        old: int | str = "nothing"
        if is_workflow:
            old = self._next(is_workflow)
            shutil.copytree(self._workflow(old), where)
        elif self._dice.random() < 0.6:
            old = self._next()
            self._whole(task, number, where, old, storage)
        versions = [self._next(is_workflow) for _ in range(2 if task == "two writers" else 1)]
        children, ended = self._kill_some(task, where, versions, storage, seconds, steps)
        found = look()
        self._judge(task, number, old, versions, children, ended, found, remote)
        again = self._next(is_workflow)
        self._whole(task, number, where, again, storage)
        if look() != again:
            self._complain(task, number, f"run again, there is {look()}, not {again}")
        self._look_for_rests(task, number, name, remote, again)
        if not remote:
            shutil.rmtree(where)

    def _measure(self, task: str, remote: bool, storage: Any) -> tuple[float, int]:
        """Seconds and steps that a task takes."""
        key = f"{task} {remote}"
        if key not in self._usual:
            where = f"s3://data/{key}" if remote else str(self._scratch / key)
            self._whole(task, -1, where, 0, storage)
            began = time.perf_counter()
            child = self._nursery.start(task, where, 1, storage, -1)
            outcome = self._nursery.end(child) or {}
            self._usual[key] = (time.perf_counter() - began, outcome.get("steps", 1))
            if not remote:
                shutil.rmtree(where)
        return self._usual[key]

    def _whole(self, task: str, number: int, where: str, version: int, storage: Any) -> None:
        """Do a task in peace."""
        outcome = self._nursery.end(self._nursery.start(task, where, version, storage, None))
        if outcome is None or not outcome["ok"]:
            self._complain(task, number, f"in peace it ended with {outcome}")

    def _kill_some(
        self, task: str, where: str, versions: list[int], storage: Any, seconds: float, steps: int
    ) -> tuple[list[Child], list[dict[str, Any] | None]]:
        """Start all, kill the first, and the second now and then; how each ended."""
        victims = 1 if len(versions) == 1 or self._dice.random() < 0.5 else 2
        by_time = self._dice.random() < 0.5 and self._by_time
        at = [self._dice.randint(1, steps) if not by_time and i < victims else None
              for i in range(len(versions))]  # fmt: skip
        children = [
            self._nursery.start(task, where, version, storage, step)
            for version, step in zip(versions, at, strict=True)
        ]
        if by_time:
            when = sorted(self._dice.uniform(0, seconds) for _ in range(victims))
            for child, a, b in zip(children, when, [0.0, *when], strict=False):
                child.kill(a - b)
        ended = [self._nursery.end(child) for child in children]
        killed = sum(e is None for e in ended)
        self.figures.kills += killed
        self.figures.by_task[task] += killed
        self.figures.too_late += victims - killed
        return children, ended

    def _judge(
        self, task: str, number: int, old: int | str, versions: list[int],
        children: list[Child], ended: list[dict[str, Any] | None], found: int | str, remote: bool,
    ) -> None:  # fmt: skip
        allowed: list[int | str] = [old, *versions]
        if not remote or old == "nothing":
            allowed.append("refused")
        published: list[int | str] = []  # one after the other, in either order
        for version, outcome in zip(versions, ended, strict=True):
            if outcome is None:
                continue
            if outcome["ok"]:
                published.append(version)
                self.figures.survivors["published"] += 1
            elif outcome["error"] == "WriteError" and "another writer" in outcome["text"]:
                self.figures.survivors["told that another published"] += 1
            else:
                self._complain(task, number, f"the survivor ended with {outcome}")
        if published:  # a writer that found it there may have replaced it before it was killed
            later = zip(versions, children, ended, strict=True)
            allowed = published + [
                v for v, child, end in later if end is None and child.replaces(children)
            ]
        word = found if isinstance(found, str) else "old" if found == old else "new"
        self.figures.after_kill[word] += 1
        if found not in allowed:
            self._complain(task, number, f"there is {found}, and only {allowed} may be; {ended}")

    def _look_for_rests(
        self, task: str, number: int, name: str, remote: bool, version: int
    ) -> None:
        """Files that are no part of what is there now."""
        if remote:
            names = self._store.names(name)
        else:
            folder = self._scratch / name
            names = [p.relative_to(folder).as_posix() for p in folder.rglob("*")]
        hidden = [p.name for p in self._scratch.glob(f".*{name}*")]
        if task in ("fit", "save"):
            rests = [n for n in names if not n.startswith(("workflow.json", "checksums", "tables"))]
        else:
            data = [n for n in names if n.startswith("part_") and n.endswith(".parquet")]
            rests = [n for n in names if n not in data and n not in ("_tabfeed.json", "")]
            if len(data) != 2 + version % 3:
                rests += data
        rests += hidden + [p.name for p in self._nursery.temporary.iterdir()]
        if rests:
            self._complain(task, number, f"left: {rests}")


def kill(
    kills: int,
    seed: int,
    tasks: tuple[str, ...] = TASKS,
    out: Path | None = None,
    *,
    by_time: bool = True,
) -> dict[str, Any]:
    """Kill so many processes; what happened. With `out` it is kept from attempt to attempt.

    `by_time` says whether half of the kills are at a random time.
    """
    began = time.perf_counter()
    told: dict[str, Any] = {}

    def tell(figures: Figures) -> None:
        told.update(
            kills=figures.kills,
            seed=seed,
            by_task=dict(figures.by_task),
            found_after_the_kill=dict(figures.after_kill),
            survivors=dict(figures.survivors),
            ended_before_the_kill=figures.too_late,
            wrong=figures.wrong,
            seconds=round(time.perf_counter() - began, 1),
        )
        if out is not None:
            out.write_text(json.dumps(told, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(Path(scratch), seed, tasks, by_time=by_time)
        try:
            run.go(kills, tell)
        finally:
            run.close()
    return told


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nursery", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nursery:
        nursery()
        return 0
    figures = kill(given.kills, given.seed, tuple(given.tasks), given.out)
    print(json.dumps(figures, indent=1))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
