"""Loops whose bottleneck is known, because it was put there: sleeps for what does not take a core,
loops of Python for what takes the interpreter. Ratios are ten to one, so that a noisy machine does
not change the answer."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from tabfeed.io import Dataset
from tabfeed.io.fileset import FileSet
from tabfeed.loader.build import Steps, build_pipeline, dict_layout
from tabfeed.loader.options import LoaderOptions
from tabfeed.profile import Profiler
from tabfeed.profile.collect.probe import _cut
from tabfeed.trace import span
from tests.waiting import HANG

SLOW, QUICK, STEP = 0.02, 0.002, 0.05
BATCHES = 20


def spin(seconds: float) -> int:
    """Hold the interpreter."""
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        turns += sum(range(50))
    return turns


def work(seconds: float) -> None:
    """Take a core, not the interpreter, as a decoder does."""
    end, pages = time.perf_counter() + seconds, bytes(1_000_000)
    while time.perf_counter() < end:
        hashlib.sha256(pages)


def pause(seconds: float) -> None:
    """Not even the shortest sleep if there is none: on a busy machine it can be long."""
    if seconds:
        time.sleep(seconds)


class Timed(Profiler):
    """A profiler beside a clock of our own, to hold its times against.

    The first request and the end of the epoch lie between two readings each, so the epoch takes
    from `least` to `most` seconds, however long other work on the machine comes in between.
    """

    least = most = 0.0

    @property
    def looks(self) -> int:
        """How often it has looked whether the interpreter is held."""
        return sum(self._sampler.samples.values())


def profile(batches: Any, step: Callable[..., Any], **options: Any) -> Timed:
    with Timed(**options) as prof:
        before = time.perf_counter()
        watched = iter(prof.watch(batches))
        done = begun = time.perf_counter()
        for batch in watched:
            step(batch, prof) if step is python_loop else step(batch)
            done = time.perf_counter()
        prof.least, prof.most = done - begun, time.perf_counter() - before
        del watched  # after the clock: taking down a tf.data iterator takes long, and is no step
    return prof


def quick_step(batch: Any) -> None:
    time.sleep(QUICK)


def slow_model(batch: Any) -> None:
    time.sleep(STEP)


def python_loop(batch: Any, prof: Timed) -> None:
    """Hold the interpreter until the profiler has looked, which takes long on a busy machine."""
    looks, end = prof.looks, time.monotonic() + HANG
    spin(STEP)
    while prof.looks == looks and time.monotonic() < end:
        spin(QUICK)


def copy_to_device(batch: Any) -> None:
    time.sleep(STEP)


def step_with_copy(batch: Any) -> None:
    copy_to_device(batch)
    time.sleep(QUICK)


def tiny_step(batch: Any) -> None:
    spin(0.0001)


# -- our loader ----------------------------------------------------------------------------------


def slow_transform(table: pa.Table) -> pa.Table:
    time.sleep(SLOW)
    return table


def slow_finish(chunk: Any) -> list[Any]:
    with span("copy"):
        time.sleep(SLOW * chunk.steps)
    return _cut(chunk)


def ours(
    transform: Callable[[pa.Table], pa.Table] | None = None,
    finish: Callable[[Any], list[Any]] = _cut,
    *,
    batch: int = 1000,
    batches: int = BATCHES,
) -> Any:
    """A feed of one thread over one partition a batch."""
    rows = batch * batches
    parts = max(1, rows // 1000)
    table = pa.table({"x": np.arange(rows), "y": np.zeros(rows, np.float32)})
    ds = Dataset(table, npartitions=parts)
    options = LoaderOptions(batch_size=batch, threads=1, depth=1, buffer_size=12_000)
    steps = Steps(() if transform is None else (transform,))
    return build_pipeline(ds, dict_layout(ds.schema, ["x", "y"]), options, finish, steps).start()


@contextmanager
def slow_storage(monkeypatch: Any, how: Callable[[float], Any] = time.sleep) -> Iterator[None]:
    """Reading takes long; `how` says whether by waiting or by working."""
    real = FileSet._read_run

    def slow(self: FileSet, *args: Any) -> pa.Table:
        how(SLOW)
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(FileSet, "_read_run", slow)
        yield


# -- torch ---------------------------------------------------------------------------------------


class Rows:
    """A map-style dataset: `read` then `transform`, as most are written."""

    def __init__(self, *, reading: float = 0.0, transforming: float = 0.0, rows: int = 0) -> None:
        self.reading, self.transforming = reading, transforming
        self.rows = rows or BATCHES * 4

    def __len__(self) -> int:
        return self.rows

    def read_row(self, index: int) -> Any:
        pause(self.reading)
        return np.full(3, index, np.float32)

    def transform(self, row: Any) -> Any:
        pause(self.transforming)
        return row * 2

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read_row(index))
