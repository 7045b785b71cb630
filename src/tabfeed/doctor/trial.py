"""A sample of the data written in several ways, and each of them read in turn."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tabfeed.doctor.facts import Facts, facts_of
from tabfeed.doctor.findings import Finding, Forecast
from tabfeed.doctor.measure import Times, measure
from tabfeed.doctor.opening import is_local
from tabfeed.doctor.reading import loader_of
from tabfeed.doctor.rules import Question, good_group_rows, questions
from tabfeed.doctor.sample import Sample, take_sample
from tabfeed.doctor.writing import NumberedTable, Writing, write_sample, writing_as
from tabfeed.io.dataset import Dataset
from tabfeed.io.partition import Partition
from tabfeed.progress import Bar, progress

__all__ = ["LAYOUTS", "Subject", "Trial", "read_in_turn", "try_out"]

LAYOUTS = ("fast", "compact")
_TWIN, _IN_PLACE = "twin", "in place"


@dataclass(frozen=True)
class Subject:
    """A dataset, what its footers say, and a sample of it."""

    dataset: Dataset
    facts: Facts
    sample: Sample

    @classmethod
    def of(cls, dataset: Dataset) -> Subject:
        """Look at a dataset."""
        facts = facts_of(dataset)
        return cls(dataset, facts, take_sample(dataset, facts))


@dataclass(frozen=True)
class Trial:
    """What came out: rows a second as the files are, answers, and what rewriting would give."""

    rows_per_second: float
    findings: tuple[Finding, ...]
    forecasts: tuple[Forecast, ...]


def try_out(
    subject: Subject,
    seconds: float,
    *,
    layouts: Sequence[str] = LAYOUTS,
    group_rows: int | None = None,
    ask: bool = True,
) -> Trial:
    """Write the sample in every way that there is a question about, and read them all in turn.

    Parameters
    ----------
    subject
        What to look at.
    seconds
        About how long to read.
    layouts
        The layouts to foretell.
    group_rows
        Rows in their row groups, if not what suits a loader.
    ask
        Whether to look for what slows reading at all.
    """
    facts, sample = subject.facts, subject.sample
    twin = writing_as(facts)
    asked = questions(facts, sample, twin) if ask else []
    rows = group_rows or good_group_rows(facts)
    with (
        tempfile.TemporaryDirectory(prefix="tabfeed-doctor-") as folder,
        progress("trying", len(asked) + len(layouts) + 2, unit="ways") as bar,
    ):
        ways = _write_ways(Path(folder), sample, twin, asked, bar)
        sizes = {}
        for layout in layouts:
            ways[layout] = _laid_out(ways[_TWIN], Path(folder) / f"layout_{layout}", layout, rows)
            sizes[layout] = _stored(ways[layout]) * facts.rows / sample.rows
            bar.advance()
        if is_local(subject.dataset):
            ways[_IN_PLACE] = sample.dataset
        times = read_in_turn(ways, facts, seconds, short=[_IN_PLACE] if sample.few else [])
    base = _IN_PLACE if _IN_PLACE in ways else _TWIN
    return Trial(
        times.rate(base),
        tuple(_answer(q, times, base) for q in asked),
        tuple(Forecast(n, times.cost(base, n), sizes[n] / facts.stored) for n in layouts),
    )


def read_in_turn(
    ways: Mapping[str, Dataset], facts: Facts, seconds: float, *, short: Sequence[str] = ()
) -> Times:
    """Read datasets of the same columns in turn, as loaders do; see `measure`."""
    kinds = {c.name: c.kind for c in facts.columns}
    return measure(ways, lambda way: loader_of(way, _kinds_in(way, kinds)), seconds, short=short)


def _kinds_in(dataset: Dataset, kinds: Mapping[str, str]) -> dict[str, str]:
    """What the columns are; what was text may be written as codes."""
    coded = {c.name for c in dataset.schema if kinds[c.name] == "text" and str(c.dtype) == "int32"}
    return {n: "number" if n in coded else kinds[n] for n in dataset.column_names}


def _write_ways(
    folder: Path, sample: Sample, twin: Writing, asked: Sequence[Question], bar: Bar
) -> dict[str, Dataset]:
    """The sample as it is, and once for each question that writing answers."""
    first = write_sample(sample.tables(), folder / _TWIN, twin)
    bar.advance()
    ways = {_TWIN: first}
    for question in asked:
        if question.change is not None:
            name = question.finding.name
            ways[name] = write_sample(_row_groups(first), folder / name, question.change)
        bar.advance()
    return ways


def _row_groups(dataset: Dataset) -> Iterator[NumberedTable]:
    """Every row group as a table of its own."""
    for part in dataset.partitions:
        for piece in part.pieces:
            yield piece.file, dataset.read(Partition((piece,)))


def _laid_out(sample: Dataset, folder: Path, layout: str, group_rows: int) -> Dataset:
    """The sample as `Dataset.to_parquet` writes it."""
    if layout == "fast":
        return sample.to_parquet(folder, layout="fast", row_group_size=group_rows, output_files=1)
    return sample.to_parquet(folder, row_group_size=group_rows, output_files=1)


def _stored(dataset: Dataset) -> int:
    return sum(os.path.getsize(f) for f in dataset.files)


def _answer(question: Question, times: Times, base: str) -> Finding:
    finding = question.finding
    if question.change is not None:
        return replace(finding, cost=times.cost(_TWIN, finding.name))
    if base == _TWIN:
        return replace(finding, note="not measured")
    return replace(finding, cost=times.cost(base, _TWIN))
