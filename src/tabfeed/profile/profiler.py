"""`Profiler`: measures where the time of a training loop goes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tabfeed.errors import ArgumentError
from tabfeed.profile.collect import probe
from tabfeed.profile.collect.batches import EpochTimer, LoopPhase, Watch
from tabfeed.profile.collect.probe import measure_baseline, measure_ceiling
from tabfeed.profile.collect.processors import CudaMarks, Nvml, may_use_cuda
from tabfeed.profile.collect.sampler import Sampler
from tabfeed.profile.collect.spans import SpanLog
from tabfeed.profile.judge import judge
from tabfeed.profile.run import Ceiling, Run, TimedPart
from tabfeed.profile.summary import summarise
from tabfeed.profile.verdict import Verdict
from tabfeed.trace import recording, span

_STARVED = 0.1


class Profiler:
    """Measures whether a training loop waits for its data, and why.

    Parameters
    ----------
    name
        The name of the run in reports and comparisons.
    model
        False if the loader is timed alone, without training.
    probe
        Whether to time parts of the loader on a sample afterwards, if the loop waited for a loader
        whose inside is not visible. This reads some of the data again.

    Examples
    --------
    >>> with Profiler("example") as prof:
    ...     for batch in prof.watch([[1, 2], [3, 4]] * 4):
    ...         total = sum(batch)
    >>> prof.run.steps.count
    8
    """

    def __init__(self, name: str = "run", *, model: bool = True, probe: bool = True) -> None:
        self.name = name
        self._model = model
        self._probe = probe
        self._epochs: list[EpochTimer] = []
        self._phase = LoopPhase()
        self._marks = CudaMarks()
        self._log = SpanLog()
        self._sampler: Sampler | None = None
        self._recording: AbstractContextManager[None] | None = None
        self._nvml: Nvml
        self._training_thread = threading.current_thread().name
        self._ceiling: Ceiling | None = None
        self._failed = False
        self.parts: list[TimedPart] = []
        self.waits_seen = True
        self._run: Run | None = None

    # -- during the run --------------------------------------------------------------------------

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = kind is not None
        self.stop()

    def start(self) -> None:
        """Start; a profiler can be used only once."""
        if self._sampler is not None:
            raise ArgumentError("this Profiler was used already; create a new one for each run")
        self._nvml = Nvml()
        self._sampler = Sampler(self._phase, self._log, self._nvml)
        self._recording = recording(self._log)
        self._recording.__enter__()
        self._sampler.start()

    def stop(self) -> None:
        """Stop all measurements; may be called again."""
        if self._recording is None or self._sampler is None:
            return
        for p in self._epochs:
            p.finish()
        self._sampler.stop()
        self._recording.__exit__(None, None, None)
        self._recording = None
        self._marks.finish()
        self._nvml.close()

    def watch(self, iterable: Any) -> Watch:
        """Iterate over a loader and time each batch.

        Parameters
        ----------
        iterable
            A tabfeed loader, a torch DataLoader, a tf.data.Dataset, or any other iterable of
            batches. Several can be watched, one after another or nested.
        """
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise ArgumentError(f"watch needs an iterable, not {iterable!r}")
        return Watch(iterable, self.start_epoch)

    def start_epoch(self, source: Any, begin: int | None = None) -> EpochTimer:
        """Start to time an epoch over `source`; for callbacks that `watch` doesn't fit."""
        here = threading.get_ident()
        inner = any(not p.end and p.thread == here for p in self._epochs)
        marks = self._marks if may_use_cuda() and not inner else None
        if self._recording is None:  # not running: times are not kept
            return EpochTimer(source, LoopPhase(), begin=begin)
        if not self._epochs:
            self._training_thread = threading.current_thread().name
        new = EpochTimer(source, self._phase, marks, inner=inner, begin=begin)
        self._epochs.append(new)
        return new

    @staticmethod
    def span(name: str) -> AbstractContextManager[None]:
        """Mark work in the training loop, such as ``with prof.span("copy"): x = x.cuda()``."""
        return span(name)

    def measure_ceiling(
        self,
        step: Callable[[Any], Any],
        batch: Any,
        *,
        seconds: float = 1.0,
        halves: bool = False,
    ) -> Ceiling:
        """Time the step on a batch in memory: the highest speed any input could reach.

        Parameters
        ----------
        step
            The training step. It really trains, so use a model that may be changed.
        batch
            A batch as the loop receives it.
        seconds
            About how long to measure.
        halves
            Also time the step on half of the batch, to predict the gain of larger batches.
        """
        self._ceiling = measure_ceiling(step, batch, seconds=seconds, halves=halves)
        if self._run is not None:
            self._run = replace(self._run, ceiling=self._ceiling)
        return self._ceiling

    # -- after the run ---------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """Everything that was measured."""
        if self._run is None:
            if self._sampler is None:
                raise ArgumentError(
                    "nothing was profiled yet: run the loop inside `with Profiler()`"
                )
            if self._recording is not None:
                raise ArgumentError("the profiler is still running: leave its with block first")
            run = summarise(
                self.name,
                self._epochs,
                self._sampler,
                self._marks,
                self._training_thread,
                self._nvml.names,
                model=self._model,
                waits_seen=self.waits_seen,
                ceiling=self._ceiling,
                parts=tuple(self.parts),
            )
            self._run = self._with_probes(run)
            for p in self._epochs:
                p.first_batch = p.source = None
        return self._run

    def _with_probes(self, run: Run) -> Run:
        """If the loop waited for a loader whose inside is not visible, time parts of it."""
        if not self._probe or self._failed or run.wait_share < _STARVED or not run.waits_seen:
            return run
        source, batch = self._epochs[0].source, self._epochs[0].first_batch
        with probe.random_state_kept():
            run = replace(run, parts=tuple(_parts(source, run)))
            if run.loader.kind != "tabfeed":
                run = replace(run, through=measure_baseline(batch))
        return run

    @property
    def verdict(self) -> Verdict:
        """What limits the run."""
        return judge(self.run)

    def report(self) -> str:
        """The report as text."""
        from tabfeed.profile.report import report

        return report(self.run)

    def save(self, path: str | Path) -> Path:
        """Write the report as a file: .html, .json or .txt.

        The web page opens offline. JSON files can be compared later, with `compare`.
        """
        from tabfeed.profile.page import page

        path = Path(path)
        forms = {".html": lambda: page(self.run), ".json": self.to_json, ".txt": self.report}
        if path.suffix not in forms:
            raise ArgumentError(f"{path} must end in {', '.join(forms)}")
        path.write_text(forms[path.suffix](), "utf-8")
        return path

    def to_json(self) -> str:
        """The run, its rates and its verdict as JSON."""
        run = self.run
        rates = {
            "steps_per_second": 1 / run.step_seconds if run.step_seconds else None,
            "rows_per_second": run.rows_per_second,
            "wait_share": run.wait_share,
            "efficiency": run.efficiency,
            "gpu_busy": run.gpu_busy_mean,
        }
        found = {"verdict": asdict(self.verdict), "rates": rates, **run.to_dict()}
        return json.dumps(found, indent=1)


def _parts(source: Any, run: Run) -> list[TimedPart]:
    if run.loader.kind == "tabfeed":
        slow = [s.name for s in run.stages if s.name in ("read", "transform", "gather", "finish")]
        return probe.probe_workflow(source) if slow[:1] == ["transform"] else []
    if run.loader.kind == "tf.data" and hasattr(source, "_inputs"):
        return probe.probe_tf_data(source, run.step_seconds)
    if run.loader.kind == "torch" and run.loader.processes:
        return probe.probe_torch(source)
    return []
