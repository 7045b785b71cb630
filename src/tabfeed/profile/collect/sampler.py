"""The profiler's own thread: looks, 20 times a second at most, at what cannot be told otherwise.

Each time it wakes it knows how late it is. Late by about the interpreter's switch interval, with a
core free to run on, means that another thread held the interpreter all that while: that is how
Python in the training loop is told from a model that computes outside the interpreter.

Its cost is measured too: its own time on a core, and, where it took the interpreter from a loop,
the time the loop stood still until there was a core to look with. If looks cost much (a process of
many threads, a crowded machine), the next one comes later, so that after the first moments all of
them together stay near a five-hundredth of the time.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections import Counter

from tabfeed.loader.prefetch import queue_depths
from tabfeed.profile.analyse.stages import StageSums
from tabfeed.profile.collect import proc
from tabfeed.profile.collect.accelerator import Nvml
from tabfeed.profile.collect.batches import Phase
from tabfeed.profile.collect.curves import Curve
from tabfeed.profile.collect.spans import SpanLog
from tabfeed.profile.collect.stacks import StackLog

__all__ = ["Sampler"]

_clock = time.perf_counter_ns
_EVERY = 0.05
_TAKEN_NS = 0.2e9 * sys.getswitchinterval()  # later than this: the interpreter was taken
_GPU_EVERY_NS = 200_000_000
_THREADS_FIRST_NS, _THREADS_MOST_NS = 125_000_000, 1_000_000_000
_SHARE = 0.002
_CREDIT_NS = 5_000_000  # the first looks may cost this much more, once
_LONGEST = 0.5
_MANY = 20_000


class Sampler:
    """Looks at the process until stopped.

    Parameters
    ----------
    phase
        What the training thread is doing.
    log
        Spans, to be added up.
    nvml
        GPU readings.
    """

    def __init__(self, phase: Phase, log: SpanLog, nvml: Nvml) -> None:
        self.origin = _clock()
        self._phase, self._log, self._nvml = phase, log, nvml
        self._running = threading.Lock()  # held while it runs: one call to wait for, no more
        self._thread = threading.Thread(target=self._run, name="tabfeed-profiler", daemon=True)
        self.stages = StageSums(self.origin)
        self.stacks = StackLog()
        self.looks: Counter[int] = Counter()  # by phase
        self.held: Counter[int] = Counter()  # looks that found the interpreter taken
        self.queue = Curve()
        self.queue_most = 0
        self.cpu = Curve()
        self.gpu_busy = Curve()
        self.gpu_memory = Curve()
        self.threads = _ThreadTable()
        self.own_cpu = self._stalls = 0
        self.elapsed = 0.0
        # Never in step with the loop it looks at.
        self._chance = itertools.cycle([random.Random(i).uniform(0.5, 1.5) for i in range(61)])
        self._gpu_at = self._threads_at = self.origin
        self._cpu_before = (self.origin, time.process_time_ns())

    def start(self) -> None:
        """Begin."""
        self._look_at_threads()
        self._running.acquire()
        self._thread.start()

    def stop(self) -> None:
        """End, and take a last look."""
        self._running.release()
        self._thread.join()
        self.threads.look()
        now = _clock()
        self.elapsed = (now - self.origin) / 1e9
        self.stages.drain(self._log.entries)
        self.stages.add(self._log.unfinished(), until=now)

    def _run(self) -> None:
        delay = proc.RunDelay()
        try:
            pause, waited = _EVERY / 2, delay()
            while True:
                due = _clock() + int(pause * 1e9)
                if self._running.acquire(timeout=pause):
                    return
                late, queued = _clock() - due, delay() - waited
                waited += queued
                late -= queued  # it could only ask for the interpreter once it had a core
                if late > _TAKEN_NS:
                    self._stalls += queued
                self._look(due + queued, late)
                pause = self._next_pause()
        finally:
            delay.close()

    def _next_pause(self) -> float:
        """Long enough that what was spent so far is within its share of the time so far."""
        self.own_cpu = time.thread_time_ns()
        owed = max(0, self.own_cpu - _CREDIT_NS) + max(0, self._stalls - 3 * _CREDIT_NS)
        paid_at = self.origin + owed / _SHARE
        pause = min(max(_EVERY, (paid_at - _clock()) / 1e9), _LONGEST)
        return pause * next(self._chance)

    def _look(self, asked: int, late: int) -> None:
        now, phase = _clock(), self._phase.at()
        self._look_at_interpreter(asked, late)
        if phase:
            self.stacks.add(phase, sys._current_frames().get(self._phase.thread))
        self._look_at_queue(now)
        if len(self._log.entries) > _MANY:  # else they are added up when the loop is over
            self.stages.drain(self._log.entries)
        if now >= self._gpu_at:
            self._gpu_at = now + _GPU_EVERY_NS
            self._look_at_processors(now)
        if now >= self._threads_at:
            self._look_at_threads()

    def _look_at_threads(self) -> None:
        """Soon at first, for short runs: a thread that ends between two looks is not seen.

        Where there are hundreds of them it takes long, and other looks must not wait for it.
        """
        begin = time.thread_time_ns()
        self.threads.look()
        spent, now = time.thread_time_ns() - begin, _clock()
        often = min(max(_THREADS_FIRST_NS, now - self.origin), _THREADS_MOST_NS)
        self._threads_at = now + max(often, int(2 * spent / _SHARE))

    def _look_at_interpreter(self, asked: int, late: int) -> None:
        """Whoever had the interpreter when it was asked for is who kept it."""
        wanted = self._phase.at(asked)
        held = late > _TAKEN_NS
        if held or wanted == self._phase.at():  # else the phase ended too soon to tell
            self.looks[wanted] += 1
            self.held[wanted] += held

    def _look_at_queue(self, now: int) -> None:
        depths = queue_depths()
        if depths:
            self.queue.add(now - self.origin, float(sum(ready for ready, _ in depths)))
            self.queue_most = max(self.queue_most, sum(most for _, most in depths))

    def _look_at_processors(self, now: int) -> None:
        then, before = self._cpu_before
        used = time.process_time_ns()
        if now > then:
            self.cpu.add(now - self.origin, (used - before) / (now - then))
        self._cpu_before = (now, used)
        reading = self._nvml.read()
        if reading is not None:
            self.gpu_busy.add(now - self.origin, reading.busy)
            self.gpu_memory.add(now - self.origin, float(reading.memory))
            # The driver may keep the loop's own calls waiting as long as it takes to answer us.
            self._gpu_at = max(self._gpu_at, now + int((_clock() - now) / _SHARE))


class _ThreadTable:
    """CPU time of threads and child processes since the first look."""

    def __init__(self) -> None:
        self._first: dict[str, proc.CpuTime] | None = None
        self._last: dict[str, proc.CpuTime] = {}
        self._names: dict[str, str] = {}

    def look(self) -> None:
        """Note where every thread stands."""
        found = {f"t{n}": t for n, t in proc.thread_times().items()}
        children = {f"p{n}": t for n, t in proc.child_times().items()}
        names = {f"t{n}": name for n, name in proc.thread_names().items()}
        for key in found.keys() - self._names.keys():
            self._names[key] = names.get(key) or proc.system_name(int(key[1:]))
        self._names.update({k: n for k, n in names.items() if k in found})
        self._names.update(dict.fromkeys(children, "child process"))
        found.update(children)
        if self._first is None:
            self._first = found
        self._last.update(found)

    def totals(self) -> list[tuple[str, int, int]]:
        """(name, nanoseconds on a CPU, nanoseconds waiting for one), the busiest first."""
        first = self._first or {}
        zero = proc.CpuTime(0, 0)
        sums: dict[str, tuple[int, int]] = {}
        for key, last in self._last.items():  # threads of one name, in each epoch say, count as one
            begin, name = first.get(key, zero), self._names[key]
            cpu, delay = sums.get(name, (0, 0))
            sums[name] = (cpu + last.cpu - begin.cpu, delay + last.delay - begin.delay)
        return sorted(((n, *times) for n, times in sums.items()), key=lambda row: -row[1])
