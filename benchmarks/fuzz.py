"""Read hostile inputs by the hundred thousand: no crash, no hang, no silently changed value.

    .venv/bin/python benchmarks/fuzz.py --count 200000 --out fuzz.json

Inputs are damaged copies of good ones: data files of every format, saved workflows with their
checksums made anew, manifests, schemas, loader states. Each is used in a forked worker. What may
happen: it is read, or refused by an error of tabfeed's own that names the file. What may not:

- signal: the process was killed, by a fault or by memory
- hang: no end within ten seconds
- memory: more than 2.25 GiB for one input
- foreign: an error that is not tabfeed's
- nameless: an error of tabfeed's that does not say which file
- changed: other values, though a checksum covers the damage

Input number `n` of a kind is the same for the same seed, so a failure is made again with
`--kind KIND --number N`. With `--out`, progress is kept, and the same command goes on where it
ended. Failing inputs are kept in a folder beside that file. Prints one JSON object; the exit status
is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fuzzing.targets import TARGETS, AfterLoading, Target

FAILURES = ("signal", "hang", "memory", "foreign", "nameless", "changed")
DEADLINE = 10.0  # seconds for one input
# Bytes that one input may take. A page of a Parquet file may claim 2 GiB, which pyarrow then takes
# before it sees that there are fewer.
GROWTH = 9 << 28
RUN = 250  # inputs in one worker, if nothing happens


def outcome_of(target: Target, where: Path, covered: bool) -> tuple[str, str]:
    """What using an input led to, in a word, and what there is to say of it."""
    from tabfeed.errors import TabfeedError

    try:
        same = target.use(where)
    except AfterLoading as e:
        return ("refused", "") if len(str(e)) > 15 else ("nameless", repr(e))
    except TabfeedError as e:
        named = target.names(where) in str(e)
        return ("refused", "") if named else ("nameless", f"{type(e).__name__}: {e}")
    except BaseException:
        return "foreign", traceback.format_exc(limit=-6)
    if same:
        return "read", ""
    return ("changed", "other values than before") if covered else ("other", "")


def make_input(target: Target, source: Path, scratch: Path, seed: int, number: int) -> bool:
    """Write input `number`; whether a checksum covers its damage."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return target.damage(source, scratch, random.Random(f"{seed} {target.name} {number}"))


def work(
    target: Target, source: Path, base: Path, seed: int, numbers: Sequence[int], pipe: int
) -> None:
    """Use inputs one after another; say before each which it is, after it what happened."""
    space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + 6 * GROWTH, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        sys.setrecursionlimit(5_000)  # to write what is nested deeper than may be read
        scratch = base / f"{target.name}{number}"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        covered = make_input(target, source, scratch, seed, number)
        sys.setrecursionlimit(1_000)
        _say(pipe, {"number": number})
        outcome, text = outcome_of(target, scratch, covered)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        if grown > GROWTH:
            outcome, text = "memory", f"{grown >> 20} MB for one input, which was {outcome}"
        _say(pipe, {"number": number, "outcome": outcome, "text": text[-2000:]})
        if outcome not in FAILURES:
            shutil.rmtree(scratch, ignore_errors=True)
        if outcome == "memory":
            return


def _say(pipe: int, what: dict[str, Any]) -> None:
    os.write(pipe, json.dumps(what).encode() + b"\n")


class Worker:
    """A forked process that uses some inputs of one kind."""

    def __init__(
        self, target: Target, source: Path, base: Path, seed: int, numbers: Sequence[int]
    ) -> None:
        self.target, self.left = target, list(numbers)
        self.errors = base / f"{target.name}.stderr"
        self.reading, writing = os.pipe()
        self.at: int | None = None
        self.text = b""
        self.since = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.reading)
                descriptor = os.open(self.errors, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                work(target, source, base, seed, numbers, writing)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(writing)

    def results(self) -> list[tuple[int, str, str]] | None:
        """What it has to say; None once it has ended."""
        data = os.read(self.reading, 1 << 16)
        if not data:
            return None
        *lines, self.text = (self.text + data).split(b"\n")
        found = []
        for line in map(json.loads, lines):
            self.since = time.monotonic()
            if "outcome" in line:
                self.at = None
                self.left.remove(line["number"])
                found.append((line["number"], line["outcome"], line["text"]))
            else:
                self.at = line["number"]
        return found

    @property
    def late(self) -> bool:
        """Whether its input takes too long."""
        return self.at is not None and time.monotonic() - self.since > DEADLINE

    def end(self, *, kill: bool = False) -> tuple[int, str, str] | None:
        """Wait for its end; the input that ended it, if one did."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.reading)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if kill and self.at is not None:
            self.left.remove(self.at)
            return self.at, "hang", f"no end within {DEADLINE:.0f} s"
        if self.at is not None:
            self.left.remove(self.at)
            return self.at, "signal", f"exit {status}: {self.errors.read_text()[-1500:]}"
        if status != 0:
            raise RuntimeError(f"a worker failed: {self.errors.read_text()[-3000:]}")
        return None


class Progress:
    """What was done so far, kept in a file."""

    def __init__(self, path: Path | None, seed: int) -> None:
        self.path, self.seed = path, seed
        self.done: dict[str, int] = {}
        self.outcomes: dict[str, Counter[str]] = {}
        self.failures: list[dict[str, Any]] = []
        if path is not None and path.exists():
            old = json.loads(path.read_text())
            if old["seed"] == seed:
                self.done = old["done"]
                self.outcomes = {k: Counter(v) for k, v in old["outcomes"].items()}
                self.failures = old["failures"]

    def add(self, kind: str, number: int, outcome: str, text: str, base: Path) -> None:
        """Count one result; keep the input if it failed."""
        self.outcomes.setdefault(kind, Counter())[outcome] += 1
        if outcome not in FAILURES:
            return
        self.failures.append({"kind": kind, "number": number, "outcome": outcome, "text": text})
        scratch = base / f"{kind}{number}"
        if self.path is not None and scratch.exists():
            kept = self.path.with_suffix("") / f"{kind}-{number}-{outcome}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(scratch, kept, symlinks=True)
        shutil.rmtree(scratch, ignore_errors=True)

    def as_json(self) -> dict[str, Any]:
        """The whole of it."""
        total = sum((c for c in self.outcomes.values()), Counter())
        return {
            "seed": self.seed,
            "inputs": sum(total.values()),
            "failed": {name: total[name] for name in FAILURES},
            "outcomes": {k: dict(sorted(v.items())) for k, v in sorted(self.outcomes.items())},
            "done": self.done,
            "failures": self.failures,
        }

    def save(self) -> None:
        """Replace the file in one step."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.as_json(), indent=1))
            part.rename(self.path)


def prepare(target: Target, folder: Path) -> None:
    """Write the good material in a process of its own, so that this one starts no threads."""
    folder.mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            target.prepare(folder)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise RuntimeError(f"the good material of {target.name} could not be made")


def run(
    kinds: Sequence[str], each: int, seed: int, *, workers: int = 2, out: Path | None = None
) -> dict[str, Any]:
    """Use inputs 0 to `each` of each kind; counts of what happened, and each failure."""
    import tabfeed.loader.torch
    import tabfeed.ops
    import tabfeed.workflow.artefact  # noqa: F401

    progress = Progress(out, seed)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        for kind in kinds:
            prepare(TARGETS[kind], base / "good" / kind)
        queue = [
            (kind, list(range(start, min(start + RUN, each))))
            for start in range(0, each, RUN)
            for kind in kinds
            if start >= progress.done.get(kind, 0)
        ]
        _run_queue(queue, base, seed, workers, progress)
    progress.save()
    return progress.as_json()


def _run_queue(
    queue: list[tuple[str, list[int]]], base: Path, seed: int, workers: int, progress: Progress
) -> None:
    selector = selectors.DefaultSelector()
    running: dict[int, tuple[Worker, Path]] = {}
    rooms = 0

    def start(kind: str, numbers: list[int]) -> None:
        nonlocal rooms
        room = base / f"room{rooms}"
        room.mkdir()
        rooms += 1
        worker = Worker(TARGETS[kind], base / "good" / kind, room, seed, numbers)
        running[worker.reading] = (worker, room)
        selector.register(worker.reading, selectors.EVENT_READ)

    def finish(worker: Worker, room: Path, *, kill: bool = False) -> None:
        selector.unregister(worker.reading)
        del running[worker.reading]
        kind = worker.target.name
        ended = worker.end(kill=kill)
        if ended is not None:
            progress.add(kind, *ended, base=room)
        shutil.rmtree(room, ignore_errors=True)
        if worker.left:
            start(kind, worker.left)
            return
        if not any(w.target.name == kind for w, _ in running.values()):
            waiting = [numbers[0] for k, numbers in queue if k == kind]
            progress.done[kind] = min(waiting, default=progress.outcomes[kind].total())
            progress.save()

    try:
        while queue or running:
            busy = {w.target.name for w, _ in running.values()}
            for item in [q for q in queue if q[0] not in busy]:
                if len(running) >= workers or item[0] in busy:
                    continue
                queue.remove(item)
                busy.add(item[0])
                start(*item)
            if not running:
                start(*queue.pop(0))
            for key, _ in selector.select(timeout=1.0):
                worker, room = running[key.fd]
                results = worker.results()
                if results is None:
                    finish(worker, room)
                    continue
                for result in results:
                    progress.add(worker.target.name, *result, base=room)
            for worker, room in [pair for pair in running.values() if pair[0].late]:
                finish(worker, room, kill=True)
    finally:
        for worker, _ in running.values():
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)


def again(kind: str, seed: int, number: int, folder: Path) -> int:
    """Make one input and use it here, with its traceback shown."""
    target = TARGETS[kind]
    good = Path(tempfile.mkdtemp()) / "good"
    prepare(target, good)
    scratch = folder / f"{kind}{number}"
    covered = make_input(target, good, scratch, seed, number)
    print(f"{scratch}", flush=True)
    outcome, text = outcome_of(target, scratch, covered)
    print(outcome, text)
    return int(outcome in FAILURES)


def main() -> int:
    """Run by the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="inputs of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", nargs="*", choices=sorted(TARGETS), default=list(TARGETS))
    parser.add_argument("--number", type=int, help="use this one input here, and keep it")
    parser.add_argument("--out", type=Path, help="where progress and results are kept")
    args = parser.parse_args()
    if args.number is not None:
        return again(args.kind[0], args.seed, args.number, Path(tempfile.mkdtemp()))
    each = -(-args.count // len(args.kind))
    result = run(args.kind, each, args.seed, workers=args.workers, out=args.out)
    print(json.dumps(result, indent=1))
    return int(any(result["failed"].values()))


if __name__ == "__main__":
    sys.exit(main())
