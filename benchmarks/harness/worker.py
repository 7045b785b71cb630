"""The process a contender lives in: one JSON object a line in, one out.

    python -m benchmarks.harness.worker NAME [PACKAGE]

It imports, converts, opens and runs when told to, so that the harness decides who runs when.
Whatever libraries print goes to standard error, which is a log file.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from .contender import Case, Contender, contender
from .sums import Sums, written
from .usage import peak_memory, processor_seconds, spent

__all__ = ["cells", "main"]


class Worker:
    """Answers commands for one contender."""

    def __init__(self, who: Contender) -> None:
        self.who = who
        self.cases: list[Case] = []
        self.opened: list[Callable[[], Any]] = []

    def load(self) -> dict[str, Any]:
        """Import; say which versions these are, and the memory that takes.

        What importing made is put aside for the garbage collector. Before every run it would look
        at all of it, longer than many runs take; and within a run it would, for those alone that
        make many objects, once or not at all, by chance.
        """
        for name in self.who.modules:
            importlib.import_module(name)
        gc.freeze()
        return {
            "versions": _versions(self.who.modules),
            "memory": peak_memory(os.getpid()),
        }

    def convert(self, case: dict[str, Any]) -> dict[str, Any]:
        """Make the contender's own files, unless they are there; the seconds it took when made."""
        if self.who.convert is None:
            return {}
        given = Case.from_json(case).at_most(self.who.most_rows)
        scratch = Path(given.scratch)
        done = scratch / "done.json"
        found: dict[str, Any] = json.loads(done.read_text("utf-8")) if done.exists() else {}
        if found.get("rows") != given.rows:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            start = time.perf_counter()
            self.who.convert(given)
            found = {"seconds": time.perf_counter() - start, "rows": given.rows}
            done.write_text(json.dumps(found), "utf-8")
        return found

    def open(self, case: dict[str, Any]) -> dict[str, Any]:
        """Get ready for a case."""
        given = Case.from_json(case).at_most(self.who.most_rows)
        start = time.perf_counter()
        self.opened.append(
            partial(passes, self.who, given) if given.epochs else self.who.open(given)
        )
        self.cases.append(given)
        return {"seconds": time.perf_counter() - start, "rows": given.rows}

    def run(self, number: int, seconds_limit: float, check: bool) -> dict[str, Any]:
        """Go over the data of a case, or as far as the seconds allow; some epochs are never cut."""
        gc.collect()
        before = processor_seconds(os.getpid())
        seconds_limit = math.inf if self.cases[number].epochs else seconds_limit
        if self.cases[number].batch == 0:
            found = dict(self.opened[number]())
        else:
            found = go_over(
                self.opened[number](),
                self.cases[number],
                seconds_limit,
                check and not self.who.limit,
            )
        return {**found, "cpu": spent(before, processor_seconds(os.getpid()))}

    def memory(self) -> dict[str, Any]:
        """The most this process had."""
        return {"memory": peak_memory(os.getpid())}


def passes(who: Contender, case: Case) -> Iterator[tuple[int, Any]]:
    """Get ready, and go over the data some times."""
    epoch = who.open(case)
    for _ in range(case.epochs):
        yield from epoch()


def go_over(batches: Any, case: Case, limit: float, check: bool) -> dict[str, Any]:
    """Count rows, and the time until the last batch or, if all came, until the end.

    The seconds that may cut it short are counted from the first batch: who gets much ready before
    that is given the time to hand it over.
    """
    rows, steps, whole, sums = 0, 0, True, Sums()
    start = time.perf_counter()
    first = end = start
    for count, batch in batches:
        rows += count
        steps += 1
        end = time.perf_counter()
        if steps == 1:
            first = end
        if check:
            check_batch(batch, count, case)
            sums.add(batch)
        if end - first > limit or rows >= case.total:
            whole = rows >= case.total
            break
    else:
        end = time.perf_counter()
    close = getattr(batches, "close", None)
    if close is not None:
        close()
    if whole and rows < case.total:
        raise ValueError(f"{rows} rows came instead of {case.total}")
    if check and whole:
        check_sums(rows, sums, case)
    found = {"rows": rows, "batches": steps, "seconds": end - start, "whole": whole}
    return {**found, "first_s": first - start}


def check_sums(rows: int, sums: Sums, case: Case) -> None:
    """Every value must have come, where the sum of all of them is known."""
    noted = written(Path(case.folder))
    if noted is not None and rows == noted["rows"] * max(1, case.epochs) and not case.lists:
        sums.check(noted, max(1, case.epochs))


def check_batch(batch: Any, rows: int, case: Case) -> None:
    """Every column must have come; lists have a length of their own and are left out."""
    wanted = rows * (len(case.columns) - len(case.lists))
    found = cells(batch)
    if found < wanted or (found != wanted and not case.lists):
        raise ValueError(f"a batch of {rows} rows has {found} values instead of {wanted}")


def cells(batch: Any) -> int:
    """How many numbers there are in a batch of arrays, however nested.

    Examples
    --------
    >>> import numpy as np
    >>> cells(({"a": np.zeros(3), "b": [np.zeros((3, 2))]}, np.zeros(3)))
    12
    """
    if isinstance(batch, dict):
        return sum(cells(value) for value in batch.values())
    if isinstance(batch, (tuple, list)):
        return sum(cells(value) for value in batch)
    shape = getattr(batch, "shape", None)
    if shape is None:
        return 0
    total = 1
    for length in shape:
        total *= int(length)
    return total


def _versions(modules: tuple[str, ...]) -> dict[str, str]:
    tops = dict.fromkeys(m.partition(".")[0] for m in modules)
    return {name: version(name) for name in tops if name != "benchmarks"}


_distributions = cache(metadata.packages_distributions)


def version(module: str) -> str:
    """Of the package a module comes from."""
    top = module.partition(".")[0]
    packages = _distributions().get(top, [top])
    try:
        return metadata.version(packages[0])
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(top), "__version__", "unknown"))


def answer(worker: Worker, command: dict[str, Any]) -> dict[str, Any]:
    """One command; what goes wrong is an answer too."""
    try:
        return {"ok": True, **getattr(worker, command.pop("do"))(**command)}
    except Exception as e:
        import traceback

        traceback.print_exc()
        return {"ok": False, "error": f"{type(e).__name__}: {e}".strip()[:500]}


def serve(worker: Worker, commands: TextIO, replies: TextIO) -> None:
    """Until there are no more commands."""
    for line in commands:
        print(json.dumps(answer(worker, json.loads(line))), file=replies, flush=True)


def main() -> None:
    """Keep standard output for replies; send what libraries print to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    commands = os.fdopen(os.dup(0), "r", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    serve(Worker(contender(*sys.argv[1:])), commands, replies)
    os._exit(0)  # some libraries take long to end, or never do


if __name__ == "__main__":
    main()
