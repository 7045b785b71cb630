"""The profiler's own thread, which samples the process at most 20 times a second.

Each time it wakes up it knows how late it is. Late by about the interpreter's switch interval, with
a core free to run on, means that another thread held the GIL all that time: that distinguishes
Python in the training loop from a model that computes without the GIL.

It also measures its own cost: its time on a core and, if it took the GIL from a loop, the time the
loop stood still until this thread got a core. If samples are expensive (many threads, a busy
machine), the next one comes later, so that after the first moments all of them together stay near
0.2 % of the time.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections import Counter

from tabfeed.loader.prefetch import queue_depths
from tabfeed.profile.collect import proc
from tabfeed.profile.collect.accelerator import Nvml
from tabfeed.profile.collect.batches import LoopPhase
from tabfeed.profile.collect.spans import SpanLog
from tabfeed.profile.collect.stacks import StackLog
from tabfeed.profile.collect.sums import Curve, StageSums

__all__ = ["Sampler"]

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
        delay = proc.RunDelay()
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
        self._first: dict[str, proc.CpuTime] | None = None
        self._last: dict[str, proc.CpuTime] = {}
        self._names: dict[str, str] = {}

    def sample(self) -> None:
        """Read the times of all threads."""
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
        for key, last in self._last.items():  # threads with the same name count as one
            begin, name = first.get(key, zero), self._names[key]
            cpu, delay = sums.get(name, (0, 0))
            sums[name] = (cpu + last.cpu - begin.cpu, delay + last.delay - begin.delay)
        return sorted(((n, *times) for n, times in sums.items()), key=lambda row: -row[1])
