"""`Profiler`: watches a training loop and says where its time went."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tabfeed.errors import ArgumentError
from tabfeed.profile.analyse.findings import Verdict
from tabfeed.profile.analyse.summary import Recorded, summarise
from tabfeed.profile.analyse.verdict import judge
from tabfeed.profile.collect import baseline, ceiling, probe
from tabfeed.profile.collect.accelerator import CudaMarks, Nvml, may_use_cuda
from tabfeed.profile.collect.batches import Pass, Phase, Watch
from tabfeed.profile.collect.sampler import Sampler
from tabfeed.profile.collect.spans import SpanLog
from tabfeed.profile.run import Ceiling, Part, Run
from tabfeed.trace import recording, span

__all__ = ["Profiler"]

_STARVED = 0.1


class Profiler:
    """Says whether a training loop waits for its data, and why.

    Parameters
    ----------
    name
        What to call the run, in reports and comparisons.
    model
        False if nothing is trained and the feed alone is timed.
    probe
        Whether, when a loop was starved by a loader that cannot be seen into, parts of that loader
        are timed on a sample afterwards; this reads some of the data again.

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
        self._passes: list[Pass] = []
        self._phase = Phase()
        self._marks = CudaMarks()
        self._log = SpanLog()
        self._sampler: Sampler | None = None
        self._recording: AbstractContextManager[None] | None = None
        self._nvml: Nvml | None = None
        self._gpus: list[str] = []
        self._training_thread = threading.current_thread().name
        self._ceiling: Ceiling | None = None
        self._failed = False
        self._parts: list[Part] = []
        self._waits_seen = True
        self._run: Run | None = None

    # -- while it runs ---------------------------------------------------------------------------

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._failed = kind is not None
        self.stop()

    def start(self) -> None:
        """Begin; a profiler is used once."""
        if self._sampler is not None:
            raise ArgumentError("this Profiler was used already; make a new one for another run")
        self._nvml = Nvml()
        self._gpus = self._nvml.names
        self._sampler = Sampler(self._phase, self._log, self._nvml)
        self._recording = recording(self._log)
        self._recording.__enter__()
        self._sampler.start()

    def stop(self) -> None:
        """End; nothing of the profiler runs after this. May be called again."""
        if self._recording is None or self._sampler is None or self._nvml is None:
            return
        for p in self._passes:
            p.finish()
        self._sampler.stop()
        self._recording.__exit__(None, None, None)
        self._recording = None
        self._marks.finish()
        self._nvml.close()

    def watch(self, iterable: Any) -> Watch:
        """The same batches, timed.

        Parameters
        ----------
        iterable
            A loader of tabfeed, a torch DataLoader, a tf.data.Dataset, or anything else that gives
            batches. Several may be watched, one after the other or one inside another's loop.
        """
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise ArgumentError(f"watch needs something to iterate, not {iterable!r}")
        return Watch(iterable, self._open_pass)

    def _open_pass(self, source: Any, begin: int | None = None) -> Pass:
        here = threading.get_ident()
        inner = any(not p.end and p.thread == here for p in self._passes)
        marks = self._marks if may_use_cuda() and not inner else None
        if self._recording is None:  # before or after: batches are given, times are not kept
            return Pass(source, Phase(), begin=begin)
        if not self._passes:
            self._training_thread = threading.current_thread().name
        new = Pass(source, self._phase, marks, inner=inner, begin=begin)
        self._passes.append(new)
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
        """Time the step on one batch that is there already: the most any input could give.

        Parameters
        ----------
        step
            The training step; it does train, so give it a model that may be changed.
        batch
            A batch, as the loop gets it.
        seconds
            About how long to measure.
        halves
            Time the step on half of the batch too, which tells what larger batches would gain.
        """
        self._ceiling = ceiling.measure(step, batch, seconds=seconds, halves=halves)
        if self._run is not None:
            self._run = replace(self._run, ceiling=self._ceiling)
        return self._ceiling

    # -- afterwards ------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """All that was measured."""
        if self._run is None:
            if self._sampler is None:
                raise ArgumentError(
                    "nothing was profiled yet: put the loop inside `with Profiler()`"
                )
            if self._recording is not None:
                raise ArgumentError("the profile is still being made: leave its with block first")
            self._run = self._look_closer(summarise(self._recorded(self._sampler)))
            for p in self._passes:
                p.first_batch = p.source = None
        return self._run

    def _recorded(self, sampler: Sampler) -> Recorded:
        extra: dict[str, Any] = {"model": self._model, "waits_seen": self._waits_seen}
        if self._ceiling is not None:
            extra["ceiling"] = self._ceiling
        if self._parts:
            extra["parts"] = tuple(self._parts)
        return Recorded(
            self.name,
            self._passes,
            sampler,
            self._marks,
            self._gpus,
            self._training_thread,
            extra,
        )

    def _look_closer(self, run: Run) -> Run:
        """Where the loop was starved by something that cannot be seen into, time its parts."""
        if not self._probe or self._failed or run.wait_share < _STARVED or not run.waits_seen:
            return run
        source, batch = self._passes[0].source, self._passes[0].first_batch
        with probe.random_state_kept():
            run = replace(run, parts=tuple(_parts(source, run)))
            if run.loader.kind != "tabfeed":
                run = replace(run, through=baseline.measure(batch))
        return run

    @property
    def verdict(self) -> Verdict:
        """What held the run up."""
        return judge(self.run)

    def report(self) -> str:
        """The report as text."""
        from tabfeed.profile.report.terminal import report

        return report(self.run)

    def save(self, path: str | Path) -> Path:
        """Write the report as a file: .html, .json or .txt.

        A web page holds everything it needs and opens offline; JSON can be compared with others
        later.
        """
        from tabfeed.profile.report.page import page

        path = Path(path)
        forms = {
            ".html": lambda: page(self.run),
            ".json": self.to_json,
            ".txt": self.report,
        }
        if path.suffix not in forms:
            raise ArgumentError(f"{path} must end in {', '.join(forms)}, which says what to write")
        path.write_text(forms[path.suffix](), "utf-8")
        return path

    def to_json(self) -> str:
        """The run and the verdict, for programs."""
        return json.dumps(run_as_dict(self.run), indent=1)


def run_as_dict(run: Run) -> dict[str, Any]:
    """A run and what follows from it, as plain values."""
    verdict = judge(run)
    told = {
        "cause": verdict.cause,
        "sentence": verdict.sentence,
        "evidence": list(verdict.evidence),
        "advice": [{"text": a.text, "gain": a.gain} for a in verdict.advice],
    }
    rates = {
        "steps_per_second": 1 / run.step_seconds if run.step_seconds else None,
        "rows_per_second": run.rows_per_second,
        "wait_share": run.wait_share,
        "efficiency": run.efficiency,
        "gpu_busy": run.gpu_busy_mean,
    }
    return {"verdict": told, "rates": rates, **run.to_dict()}


def _parts(source: Any, run: Run) -> list[Part]:
    if run.loader.kind == "tabfeed":
        slow = [s.name for s in run.stages if s.name in ("read", "transform", "gather", "finish")]
        return probe.probe_workflow(source) if slow[:1] == ["transform"] else []
    if run.loader.kind == "tf.data" and hasattr(source, "_inputs"):
        return probe.probe_tf_data(source, run.step_seconds)
    if run.loader.kind == "torch" and run.loader.processes:
        return probe.probe_torch(source)
    return []
