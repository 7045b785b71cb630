"""`diagnose`: what slows the reading of Parquet files, measured on a sample.

The sample is written to a temporary folder as it is (the baseline), once for each `Question` of
`tabfeed.doctor.rules`, and once in each layout that `rewrite` can write. All of these are then read
in turn, several rounds. A cost is the ratio of the medians; the quartiles of the ratios of single
rounds show how certain it is.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tabfeed.display import Bar, progress
from tabfeed.doctor.files import (
    DatasetFacts,
    Source,
    facts_of,
    is_local,
    loader_of,
    name_of,
    open_parquet_files,
)
from tabfeed.doctor.report import Cost, Diagnosis, Finding, Forecast
from tabfeed.doctor.rules import Question, good_group_rows, questions, skew, sortedness
from tabfeed.doctor.sample import (
    NumberedTable,
    Sample,
    WriteSettings,
    settings_of,
    take_sample,
    write_sample,
)
from tabfeed.errors import ArgumentError
from tabfeed.io.dataset import Dataset
from tabfeed.io.partition import Partition
from tabfeed.loader.assemble.chunk import ChunkMaker
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.buffers import BufferPool

Layout = Literal["fast", "compact"]
LAYOUTS: tuple[Layout, ...] = ("fast", "compact")
_BASELINE, _IN_PLACE = "baseline", "in place"


@dataclass(frozen=True)
class Subject:
    """A dataset, the facts in its footers, and a sample of it."""

    dataset: Dataset
    facts: DatasetFacts
    sample: Sample

    @classmethod
    def of(cls, dataset: Dataset) -> Subject:
        """Read the footers and choose a sample."""
        facts = facts_of(dataset)
        return cls(dataset, facts, take_sample(dataset, facts))


@dataclass(frozen=True)
class Trial:
    """Measurements: rows per second of the files as they are, findings, forecasts."""

    rows_per_second: float
    findings: tuple[Finding, ...]
    forecasts: tuple[Forecast, ...]


def diagnose(
    data: Source,
    *,
    ranks: int = 8,
    seconds: float = 5.0,
    storage_options: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Find what slows the reading of Parquet files, and what each thing costs on this machine.

    A sample of the rows is written to a temporary folder as it is, and again with one thing
    changed at a time; a loader then reads all of these in turn. Everything is read from memory
    after a warm-up, so the figures leave out the time storage takes.

    Parameters
    ----------
    data
        A path, a list of paths, a glob, a folder, a URL, or a `Dataset`.
    ranks
        How many training processes share the data; for the skew between them.
    seconds
        About how long to read.
    storage_options
        For URLs, passed to the filesystem.

    Examples
    --------
    >>> import tempfile
    >>> from tabfeed import Dataset
    >>> folder = tempfile.mkdtemp()
    >>> _ = Dataset({"x": list(range(1000))}).to_parquet(folder)
    >>> diagnosis = diagnose(folder, seconds=0.1)
    >>> diagnosis.rows, [f.layout for f in diagnosis.forecasts]
    (1000, ['fast', 'compact'])
    """
    if ranks < 1:
        raise ArgumentError(f"ranks is {ranks}; it must be 1 or more")
    dataset, unreadable = open_parquet_files(data, storage_options)
    facts = facts_of(dataset)
    if not facts.rows:
        raise ArgumentError(f"{name_of(data)} has no rows, so there is nothing to measure")
    subject = Subject(dataset, facts, take_sample(dataset, facts))
    trial = try_out(subject, seconds)
    order = (sortedness(facts, subject.sample), skew(dataset, facts, ranks))
    return Diagnosis(
        path=name_of(data),
        rows=facts.rows,
        files=len(facts.file_rows),
        stored=facts.stored,
        sample_rows=subject.sample.rows,
        rows_per_second=trial.rows_per_second,
        findings=tuple(_by_weight([*trial.findings, *(f for f in order if f is not None)])),
        forecasts=trial.forecasts,
        left_out=tuple(c.name for c in facts.of_kind("other")),
        unreadable=tuple(unreadable),
    )


def _by_weight(findings: Sequence[Finding]) -> list[Finding]:
    """The most expensive first, then those that don't affect the time of a single process."""
    timed = [f for f in findings if f.cost is not None and f.name != "skew"]
    rest = [f for f in findings if f not in timed]
    heavy = sorted(timed, key=lambda f: -f.cost.ratio if f.cost else 0.0)
    return sorted([*heavy, *rest], key=lambda f: not f.matters)


def try_out(
    subject: Subject,
    seconds: float,
    *,
    layouts: Sequence[Layout] = LAYOUTS,
    group_rows: int | None = None,
    ask: bool = True,
) -> Trial:
    """Write the sample in every variant there is a question about, and read them all in turn.

    Parameters
    ----------
    subject
        What to examine.
    seconds
        About how long to read.
    layouts
        The layouts to forecast.
    group_rows
        Rows in their row groups; by default what suits a loader.
    ask
        Whether to look for findings, or only to forecast.
    """
    facts, sample = subject.facts, subject.sample
    settings = settings_of(facts)
    asked = questions(facts, sample, settings) if ask else []
    rows = group_rows or good_group_rows(facts)
    with (
        tempfile.TemporaryDirectory(prefix="tabfeed-doctor-") as folder,
        progress("trying", len(asked) + len(layouts) + 2, unit="variants") as bar,
    ):
        variants = _write_variants(Path(folder), sample, settings, asked, bar)
        sizes = {}
        for layout in layouts:
            out = Path(folder) / f"layout_{layout}"
            variants[layout] = variants[_BASELINE].to_parquet(
                out, layout=layout, row_group_size=rows, output_files=1
            )
            stored = sum(os.path.getsize(f) for f in variants[layout].files)
            sizes[layout] = stored * facts.rows / sample.rows
            bar.advance()
        if is_local(subject.dataset):
            variants[_IN_PLACE] = sample.dataset
        times = read_in_turn(variants, facts, seconds, short=[_IN_PLACE] if sample.few else [])
    base = _IN_PLACE if _IN_PLACE in variants else _BASELINE
    return Trial(
        times.rate(base),
        tuple(_answer(q, times, base) for q in asked),
        tuple(Forecast(n, times.cost(base, n), sizes[n] / facts.stored) for n in layouts),
    )


# -- reading in turn -------------------------------------------------------------------------------

_MIN_SECONDS = 0.3  # an epoch, or its start would dominate
_ROUNDS = 5
_MAX_REPEATS = 1000
_POOL_BYTES = 2**28
_MIN_ROUNDS, _MAX_ROUNDS = 3, 15


@dataclass(frozen=True)
class RoundTimes:
    """Seconds per row in each round, by variant."""

    seconds: Mapping[str, tuple[float, ...]]

    def cost(self, slow: str, fast: str) -> Cost:
        """How many times as long `slow` took as `fast`.

        Examples
        --------
        >>> RoundTimes({"a": (2.0, 2.0, 8.0), "b": (1.0, 1.0, 1.0)}).cost("a", "b")
        Cost(ratio=2.0, low=2.0, high=5.0)
        """
        a, b = np.array(self.seconds[slow]), np.array(self.seconds[fast])
        low, high = np.percentile(a / b, [25, 75])
        return Cost(float(np.median(a) / np.median(b)), float(low), float(high))

    def rate(self, name: str) -> float:
        """Rows per second, in the median round."""
        return 1 / max(1e-12, float(np.median(self.seconds[name])))


def read_in_turn(
    variants: Mapping[str, Dataset],
    facts: DatasetFacts,
    seconds: float,
    *,
    short: Sequence[str] = (),
) -> RoundTimes:
    """Read datasets of the same rows in turn for about `seconds` in total, at least three rounds.

    The order is reversed every second round, so that a busy spell of the machine hits all of them.
    The first epoch of each warms up and is not counted. A variant with few row groups is read as if
    it had many copies of them, so that all threads have work and the start of an epoch does not
    matter. The variants in `short` are read as they are.
    """
    # The start of an epoch costs the same for all, which would blur their differences.
    shortest = min(_MIN_SECONDS, seconds / len(variants) / _ROUNDS)
    pool = BufferPool(keep=_POOL_BYTES)
    pipelines = {}
    for name, data in variants.items():
        loader = _loader(data, facts)
        if name not in short:
            loader = _loader(_long_enough(data, loader, shortest), facts)
        pipelines[name] = _with_pool(loader, pool)
    times: dict[str, list[float]] = {name: [] for name in pipelines}
    end = time.monotonic() + seconds
    for number in range(_MAX_ROUNDS):
        for name in list(pipelines) if number % 2 else reversed(pipelines):
            times[name].append(_time(pipelines[name]) / pipelines[name].plan.rows)
        if number + 1 >= _MIN_ROUNDS and time.monotonic() > end:
            break
    return RoundTimes({name: tuple(seconds) for name, seconds in times.items()})


def _loader(dataset: Dataset, facts: DatasetFacts) -> Pipeline[Any]:
    """A loader of some of the columns; those of text may have been written as codes."""
    kinds = {c.name: c.kind for c in facts.columns if c.name in dataset.schema}
    coded = [n for n in kinds if kinds[n] == "text" and str(dataset.schema[n].dtype) == "int32"]
    return loader_of(dataset, {**kinds, **dict.fromkeys(coded, "number")})


def _with_pool(pipeline: Pipeline[Any], pool: BufferPool) -> Pipeline[Any]:
    """The pipeline with a shared buffer pool: one runs at a time, so one pool is enough."""
    reader, maker = pipeline.stages.reader, pipeline.stages.maker
    if isinstance(reader, BlockReader) and isinstance(maker, ChunkMaker):
        reader, maker = replace(reader, pool=pool), replace(maker, pool=pool)
        return replace(pipeline, stages=replace(pipeline.stages, reader=reader, maker=maker))
    return pipeline


def _long_enough(data: Dataset, pipeline: Pipeline[Any], shortest: float) -> Dataset:
    """The data, repeated until an epoch takes `shortest` seconds and has work for all threads."""
    _time(pipeline)
    by_time = round(shortest / max(_time(pipeline), 1e-6))
    by_threads = -(-2 * pipeline.options.workers // len(pipeline.plan.sizes))
    return data.with_partitions(data.partitions * min(max(by_time, by_threads), _MAX_REPEATS))


def _time(pipeline: Pipeline[Any]) -> float:
    """Seconds of an epoch."""
    start = time.perf_counter()
    for _ in pipeline:
        pass
    return time.perf_counter() - start


# -- the variants ----------------------------------------------------------------------------------


def _write_variants(
    folder: Path, sample: Sample, settings: WriteSettings, asked: Sequence[Question], bar: Bar
) -> dict[str, Dataset]:
    """The sample as it is, and once for each question that another way of writing answers."""
    baseline = write_sample(sample.tables(), folder / _BASELINE, settings)
    bar.advance()
    variants = {_BASELINE: baseline}
    for question in asked:
        if question.change is not None:
            name = question.finding.name
            variants[name] = write_sample(_row_groups(baseline), folder / name, question.change)
        bar.advance()
    return variants


def _row_groups(dataset: Dataset) -> Iterator[NumberedTable]:
    """Each row group as a table."""
    for part in dataset.partitions:
        for piece in part.pieces:
            yield piece.file, dataset.read(Partition((piece,)))


def _answer(question: Question, times: RoundTimes, base: str) -> Finding:
    finding = question.finding
    if question.change is not None:
        return replace(finding, cost=times.cost(_BASELINE, finding.name))
    if base == _BASELINE:
        return replace(finding, note="not measured")
    return replace(finding, cost=times.cost(base, _BASELINE))
