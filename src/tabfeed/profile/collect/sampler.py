"""The profiler's own thread, which samples the process at most 20 times a second.

Each time it wakes up it knows how late it is. Late by about the interpreter's switch interval, with
a core free to run on, means that another thread held the GIL all that time: that distinguishes
Python in the training loop from a model that computes without the GIL.

It also measures its own cost: its time on a core and, if it took the GIL from a loop, the time the
loop stood still until this thread got a core. If samples are expensive (many threads, a busy
machine), the next one comes later, so that after the first moments all of them together stay near
0.2 % of the time.

A sample of the training thread's stack stores only code objects and positions; what they mean is
worked out once, at the end. The result names the function and line nearest to the top of the stack
that belong to the user, and a guess at what it does (read, transform, copy), from its name and the
libraries around it.
"""

from __future__ import annotations

import itertools
import linecache
import os
import random
import re
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

from tabfeed.loader.prefetch import queue_depths
from tabfeed.profile.collect.batches import LoopPhase
from tabfeed.profile.collect.processors import (
    CpuTime,
    Nvml,
    RunDelay,
    child_times,
    system_name,
    thread_names,
    thread_times,
)
from tabfeed.profile.collect.spans import Curve, SpanLog, StageSums

_clock = time.perf_counter_ns
_EVERY = 0.05
_GIL_HELD_NS = 0.2e9 * sys.getswitchinterval()  # later than this: the GIL was held
_GPU_EVERY_NS = 200_000_000
_THREADS_FIRST_NS, _THREADS_MAX_NS = 125_000_000, 1_000_000_000
_SHARE = 0.002
_CREDIT_NS = 5_000_000  # the first samples may exceed their share by this much
_MAX_PAUSE = 0.5
_DRAIN_ABOVE = 20_000


class Sampler:
    """Samples the process until stopped.

    Parameters
    ----------
    phase
        What the training thread is doing.
    log
        Spans to sum up.
    nvml
        GPU readings.
    """

    def __init__(self, phase: LoopPhase, log: SpanLog, nvml: Nvml) -> None:
        self.origin = _clock()
        self._phase, self._log, self._nvml = phase, log, nvml
        self._running = threading.Lock()  # held while it runs; stop() releases it
        self._thread = threading.Thread(target=self._run, name="tabfeed-profiler", daemon=True)
        self.stages = StageSums(self.origin)
        self.stacks = StackLog()
        self.samples: Counter[int] = Counter()  # by phase
        self.held: Counter[int] = Counter()  # samples that found the GIL held
        self.queue = Curve()
        self.queue_most = 0
        self.cpu = Curve()
        self.gpu_busy = Curve()
        self.gpu_memory = Curve()
        self.threads = _ThreadTimes()
        self.own_cpu = self._stalls = 0
        self.elapsed = 0.0
        # Irregular, so that it never runs in step with the loop.
        self._chance = itertools.cycle([random.Random(i).uniform(0.5, 1.5) for i in range(61)])
        self._gpu_at = self._threads_at = self.origin
        self._cpu_before = (self.origin, time.process_time_ns())

    def start(self) -> None:
        """Start."""
        self._sample_threads()
        self._running.acquire()
        self._thread.start()

    def stop(self) -> None:
        """Stop, and take a last sample."""
        self._running.release()
        self._thread.join()
        self.threads.sample()
        now = _clock()
        self.elapsed = (now - self.origin) / 1e9
        self.stages.drain(self._log.entries)
        self.stages.add(self._log.unfinished(), until=now)

    def _run(self) -> None:
        delay = RunDelay()
        try:
            pause, waited = _EVERY / 2, delay()
            while True:
                due = _clock() + int(pause * 1e9)
                if self._running.acquire(timeout=pause):
                    return
                late, queued = _clock() - due, delay() - waited
                waited += queued
                late -= queued  # it can request the GIL only once it has a core
                if late > _GIL_HELD_NS:
                    self._stalls += queued
                self._sample(due + queued, late)
                pause = self._next_pause()
        finally:
            delay.close()

    def _next_pause(self) -> float:
        """Seconds until the cost so far is within its share of the elapsed time."""
        self.own_cpu = time.thread_time_ns()
        owed = max(0, self.own_cpu - _CREDIT_NS) + max(0, self._stalls - 3 * _CREDIT_NS)
        paid_at = self.origin + owed / _SHARE
        pause = min(max(_EVERY, (paid_at - _clock()) / 1e9), _MAX_PAUSE)
        return pause * next(self._chance)

    def _sample(self, due: int, late: int) -> None:
        now, phase = _clock(), self._phase.at()
        self._sample_gil(due, late)
        if phase:
            self.stacks.add(phase, sys._current_frames().get(self._phase.thread))
        self._sample_queue(now)
        if len(self._log.entries) > _DRAIN_ABOVE:  # otherwise they are summed up after the loop
            self.stages.drain(self._log.entries)
        if now >= self._gpu_at:
            self._gpu_at = now + _GPU_EVERY_NS
            self._sample_processors(now)
        if now >= self._threads_at:
            self._sample_threads()

    def _sample_threads(self) -> None:
        """Read the CPU time of all threads; often at first, so as not to miss short-lived ones.

        With hundreds of threads it takes long, and must not hold up other samples.
        """
        begin = time.thread_time_ns()
        self.threads.sample()
        spent, now = time.thread_time_ns() - begin, _clock()
        often = min(max(_THREADS_FIRST_NS, now - self.origin), _THREADS_MAX_NS)
        self._threads_at = now + max(often, int(2 * spent / _SHARE))

    def _sample_gil(self, due: int, late: int) -> None:
        """Count a held GIL for the phase in which this thread requested it."""
        wanted = self._phase.at(due)
        held = late > _GIL_HELD_NS
        if held or wanted == self._phase.at():  # else the phase ended too soon
            self.samples[wanted] += 1
            self.held[wanted] += held

    def _sample_queue(self, now: int) -> None:
        depths = queue_depths()
        if depths:
            self.queue.add(now - self.origin, float(sum(ready for ready, _ in depths)))
            self.queue_most = max(self.queue_most, sum(most for _, most in depths))

    def _sample_processors(self, now: int) -> None:
        then, before = self._cpu_before
        used = time.process_time_ns()
        if now > then:
            self.cpu.add(now - self.origin, (used - before) / (now - then))
        self._cpu_before = (now, used)
        reading = self._nvml.read()
        if reading is not None:
            self.gpu_busy.add(now - self.origin, reading.busy)
            self.gpu_memory.add(now - self.origin, float(reading.memory))
            # The driver may block the loop's own calls while it answers this one.
            self._gpu_at = max(self._gpu_at, now + int((_clock() - now) / _SHARE))


class _ThreadTimes:
    """CPU time of threads and child processes since the first sample."""

    def __init__(self) -> None:
        self._first: dict[str, CpuTime] | None = None
        self._last: dict[str, CpuTime] = {}
        self._names: dict[str, str] = {}

    def sample(self) -> None:
        """Read the times of all threads."""
        found = {f"t{n}": t for n, t in thread_times().items()}
        children = {f"p{n}": t for n, t in child_times().items()}
        names = {f"t{n}": name for n, name in thread_names().items()}
        for key in found.keys() - self._names.keys():
            self._names[key] = names.get(key) or system_name(int(key[1:]))
        self._names.update({k: n for k, n in names.items() if k in found})
        self._names.update(dict.fromkeys(children, "child process"))
        found.update(children)
        if self._first is None:
            self._first = found
        self._last.update(found)

    def totals(self) -> list[tuple[str, int, int]]:
        """(name, nanoseconds on a CPU, nanoseconds waiting for one), the busiest first."""
        first = self._first or {}
        zero = CpuTime(0, 0)
        sums: dict[str, tuple[int, int]] = {}
        for key, last in self._last.items():  # threads with the same name count as one
            begin, name = first.get(key, zero), self._names[key]
            cpu, delay = sums.get(name, (0, 0))
            sums[name] = (cpu + last.cpu - begin.cpu, delay + last.delay - begin.delay)
        return sorted(((n, *times) for n, times in sums.items()), key=lambda row: -row[1])


_MAX_DEPTH = 48
_NEAR = 6
_MAX_STACKS = 4096
_PROFILER = os.path.dirname(os.path.dirname(__file__))
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_KIND_WORDS = {
    "read": "read load open fetch download query scan decode parse recv disk file",
    "transform": "transform augment preprocess process tokenize tokenise collate encode normalize "
    "normalise resize map featurize clean pad",
    "copy": "copy transfer upload device h2d cuda",
}
_KIND_OF_WORD = {word: kind for kind, words in _KIND_WORDS.items() for word in words.split()}
_COPY_CALL = re.compile(r"\.(to|cuda|copy_|pin_memory)\(|device_put\(|\.to_device\(")
_COPY_FUNCTIONS = {"move_data_to_device", "batch_to_device", "to_device", "send_to_device"}
_PARTS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_CALLED = re.compile(r"(\w+)\s*\(")
_LIBRARY_KINDS = (
    (os.path.join("torch", "utils", "data", "_utils", "collate.py"), "transform"),
    (os.path.join("torch", "utils", "data", "_utils", "pin_memory.py"), "copy"),
    (os.path.join("pyarrow", "parquet"), "read"),
    (os.path.join("pandas", "io"), "read"),
    (os.path.join("fsspec", ""), "read"),
    (os.path.join("h5py", ""), "read"),
)
_WAITERS = (
    (os.path.join("tabfeed", "loader", "prefetch.py"), "tabfeed"),
    (os.path.join("tensorflow", "python", "data"), "tf.data"),
    (os.path.join("multiprocessing", ""), "workers"),
)

Position = tuple[CodeType, int]  # a code object, and an offset in its bytecode


@dataclass(frozen=True)
class CodeLine:
    """A line of code, and in how many samples the thread was there.

    Attributes
    ----------
    phase
        1 while waiting for data, 2 while computing.
    kind
        "read", "transform" or "copy", by its name; "tabfeed", "tf.data" or "workers" if the thread
        waited for work in other threads or processes; else "python".
    where
        Function, file and line.
    count
        How many samples.
    """

    phase: int
    kind: str
    where: str
    count: int


class StackLog:
    """Samples of one thread's stack."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, tuple[tuple[int, int], ...]]] = Counter()
        self._codes: dict[int, CodeType] = {}

    def add(self, phase: int, frame: FrameType | None) -> None:
        """Add a sample."""
        spots: list[tuple[int, int]] = []
        codes = self._codes
        while frame is not None and len(spots) < _MAX_DEPTH:
            code = frame.f_code
            spots.append((id(code), frame.f_lasti))
            codes[id(code)] = code
            frame = frame.f_back
        key = (phase, tuple(spots))
        if key in self._seen or len(self._seen) < _MAX_STACKS:
            self._seen[key] += 1

    def lines(self) -> list[CodeLine]:
        """The lines of code, the most frequent first."""
        counts: Counter[tuple[int, str, str]] = Counter()
        for (phase, spots), count in self._seen.items():
            stack = [(self._codes[code], last) for code, last in spots]
            counts[(phase, *_meaning(phase, stack))] += count
        return [CodeLine(*key, count) for key, count in counts.most_common()]


def _meaning(phase: int, stack: Sequence[Position]) -> tuple[str, str]:
    """The kind of a stack, and the line that shows it, else the user's innermost line."""
    inside = list(_until_profiler(stack)) if phase == 1 else list(stack)
    if not inside:
        return "python", "?"
    own = [spot for spot in inside if _is_own(spot[0].co_filename)]
    first = own[0] if own else inside[0]
    for code, _ in inside:
        for part, kind in _WAITERS:
            if part in code.co_filename and phase == 1:
                return kind, _describe(first)
    kind, spot = _kind(phase, inside, own)
    return kind, _describe(spot or first)


def _kind(
    phase: int, inside: Sequence[Position], own: Sequence[Position]
) -> tuple[str, Position | None]:
    if any(code.co_name in _COPY_FUNCTIONS for code, _ in inside):
        return "copy", None
    for spot in own[
        : _NEAR if phase == 1 else 1
    ]:  # in the loop itself only the innermost line counts
        kind = _kind_of_names(*_names(spot))
        if kind and (phase == 1 or kind == "copy"):
            return kind, spot
        if _COPY_CALL.search(_expression(spot)):
            return "copy", spot
    for code, _ in inside if phase == 1 else ():
        for part, kind in _LIBRARY_KINDS:
            if part in code.co_filename:
                return kind, None
    return "python", None


def _until_profiler(stack: Sequence[Position]) -> Iterator[Position]:
    """The frames above the profiler's own: the loader's work for a batch."""
    for spot in stack:
        if spot[0].co_filename.startswith(_PROFILER):
            return
        yield spot


def _is_own(filename: str) -> bool:
    return (
        not filename.startswith((*_LIBRARIES, "<frozen", _PROFILER))
        and "tabfeed" + os.sep + "loader" not in filename
    )


def _names(spot: Position) -> list[str]:
    """The function a frame is in, and those its current expression calls."""
    return [spot[0].co_name, *_CALLED.findall(_expression(spot))]


def _kind_of_names(*names: str) -> str | None:
    for name in names:
        for word in _PARTS.findall(name):
            kind = _KIND_OF_WORD.get(word.lower())
            if kind:
                return kind
    return None


def _line(spot: Position) -> int:
    code, last = spot
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= last < end and number is not None:
            line = number
    return line


def _expression(spot: Position) -> str:
    """The source of the current expression; before Python 3.11, of its line."""
    code, last = spot
    text = linecache.getline(code.co_filename, _line(spot))
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return text
    for index, (first, final, low, high) in enumerate(positions()):
        if index == last // 2 and first == final and low is not None and high is not None:
            return text.encode()[low:high].decode(errors="replace")
    return text


def _describe(spot: Position) -> str:
    code = spot[0]
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    return f"{name} ({os.path.basename(code.co_filename)}:{_line(spot)})"
