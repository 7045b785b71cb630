"""`diagnose`: what in these files slows training, by measurement on a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabfeed.doctor.facts import facts_of
from tabfeed.doctor.findings import Diagnosis, Finding
from tabfeed.doctor.opening import Source, name_of, open_parquet_files
from tabfeed.doctor.order import skew, sortedness
from tabfeed.doctor.sample import take_sample
from tabfeed.doctor.trial import Subject, try_out
from tabfeed.errors import ArgumentError

__all__ = ["diagnose"]


def diagnose(
    data: Source,
    *,
    ranks: int = 8,
    seconds: float = 5.0,
    storage_options: Mapping[str, Any] | None = None,
) -> Diagnosis:
    """Say what in Parquet files slows training, and what each thing costs on this machine.

    A sample of the rows is written to a temporary folder as it is, and again with one thing
    changed at a time; all of these are read in turn, the way a loader reads. Everything is
    read from memory, once warm: what storage costs is not in these figures.

    Parameters
    ----------
    data
        A path, a list of paths, a glob, a folder, a URL, or a `Dataset`.
    ranks
        How many processes would share the data; for the skew between them.
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
    >>> told = diagnose(folder, seconds=0.1)
    >>> told.rows, [f.layout for f in told.forecasts]
    (1000, ['fast', 'compact'])
    """
    if ranks < 1:
        raise ArgumentError(f"ranks is {ranks}; it must be 1 or more")
    dataset, unreadable = open_parquet_files(data, storage_options)
    facts = facts_of(dataset)
    if not facts.rows:
        raise ArgumentError(f"there are no rows in {name_of(data)}, so nothing can be measured")
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
    """What costs most first; what is not a matter of one process's time after that."""
    timed = [f for f in findings if f.cost is not None and f.name != "skew"]
    rest = [f for f in findings if f not in timed]
    heavy = sorted(timed, key=lambda f: -f.cost.ratio if f.cost else 0.0)
    return sorted([*heavy, *rest], key=lambda f: not f.matters)
