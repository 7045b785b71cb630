"""What may slow the reading of Parquet files.

A rule looks at the footers. If something may slow reading, it returns a `Question`: the finding,
and how to write a sample so that only this thing differs. Whether it costs anything on this machine
is then measured. Two rules need no measurement: how well the loader's shuffle hides that files are
sorted, and how evenly several ranks share the row groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

from tabfeed.display import count, megabytes, percent
from tabfeed.doctor.files import DatasetFacts, StoredColumn, loader_of
from tabfeed.doctor.report import Cost, Finding
from tabfeed.doctor.sample import (
    PAGE_BYTES,
    PAGE_ROWS,
    Sample,
    WriteSettings,
    as_codes,
    filled,
    without,
)
from tabfeed.io.dataset import Dataset
from tabfeed.loader.plan import Plan
from tabfeed.loader.shuffle_quality import shuffle_quality

_GROUP_BYTES = 64 * 2**20
_MAX_GROUP_ROWS, _MIN_GROUP_ROWS = 1_000_000, 1_000
_GROUPS, _SHARED_ROWS = 16, 100_000
_SMALL = 4  # a quarter of what is good
_SMALL_PAGE = 2**18
_GOOD_ORDER = 0.95  # of a uniform shuffle
_UNEVEN = 1.2  # times its share


@dataclass(frozen=True)
class Question:
    """A finding, and how to write the sample without what it found.

    ``change`` is None where the files in place are compared to the baseline instead.
    """

    finding: Finding
    change: WriteSettings | None


def good_group_rows(facts: DatasetFacts) -> int:
    """Rows in a row group that suits a loader: about 64 MiB in memory, a million at most.

    Small datasets get smaller groups, so that threads and ranks can share them.
    """
    width = max(1, facts.memory // max(1, facts.rows))
    fits = max(_MIN_GROUP_ROWS, min(_MAX_GROUP_ROWS, _GROUP_BYTES // width))
    return min(fits, max(_SHARED_ROWS, -(-facts.rows // _GROUPS)))


def questions(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> list[Question]:
    """All questions about these files."""
    rules: tuple[Callable[[DatasetFacts, Sample, WriteSettings], Question | None], ...] = (
        _large_groups,
        _small_groups,
        _small_files,
        _codec,
        _encodings,
        _pages,
        _checksums,
        _nullable,
        _nulls,
        _text,
        _lists,
    )
    asked = (rule(facts, sample, baseline) for rule in rules)
    return [q for q in asked if q is not None]


# -- how rows are divided into files -------------------------------------------------------------


def _large_groups(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    if not sample.slices and not sample.few:
        return None
    largest, groups = max(facts.group_rows), len(facts.group_rows)
    if sample.slices:
        title = "Row groups too large"
        evidence = (
            f"up to {count(largest)} rows: too large to hold, so a loader reads slices and decodes "
            "the row group from its start for each"
        )
    else:
        title = "Too few row groups"
        evidence = f"{groups} of up to {count(largest)} rows, for {sample.threads} reading threads"
    good = count(good_group_rows(facts))
    return Question(
        Finding("large_groups", title, evidence, advice=f"row groups of about {good} rows"), None
    )


def _small_groups(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    good, middle = good_group_rows(facts), median(facts.group_rows)
    if middle >= good / _SMALL or len(facts.group_rows) < 2 * len(facts.file_rows):
        return None
    evidence = (
        f"{count(len(facts.group_rows))} row groups of about {count(middle)} rows; "
        f"{count(good)} suit {len(facts.columns)} columns"
    )
    finding = Finding("small_groups", "Row groups too small", evidence, advice="larger row groups")
    return Question(finding, replace(baseline, group_rows=good_group_rows(facts)))


def _small_files(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    good, files = good_group_rows(facts), len(facts.file_rows)
    middle = median(facts.file_rows)
    if files < 8 or middle >= good / _SMALL:
        return None
    finding = Finding(
        "small_files",
        "Many small files",
        f"{count(files)} files of about {count(middle)} rows ({megabytes(facts.stored / files)}); "
        "every read opens one",
        advice="fewer files",
    )
    return Question(finding, replace(baseline, one_file=True, group_rows=good_group_rows(facts)))


# -- how values are stored -----------------------------------------------------------------------


def _codec(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    compressed = [c for c in facts.columns if c.codecs and c.kind != "other"]
    if not compressed:
        return None
    codecs = Counter(c.codecs[0].lower() for c in compressed)
    stored, memory = sum(c.stored for c in compressed), sum(c.memory for c in compressed)
    finding = Finding(
        "codec",
        f"Compression ({', '.join(codecs)})",
        f"{_columns(compressed, facts)}, to {percent(stored / max(1, memory))} of memory size",
        advice="uncompressed pages (layout fast)",
    )
    return Question(finding, replace(baseline, codecs={}))


def _encodings(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    coded = [c for c in facts.columns if c.encoding != "PLAIN" and c.kind != "other"]
    if not coded:
        return None
    names = Counter(c.encoding.lower() for c in coded)
    finding = Finding(
        "encodings",
        f"Encoded values ({', '.join(names)})",
        f"{_columns(coded, facts)}; plain values are copied, encoded ones decoded",
        advice="plain values (layout fast)",
    )
    return Question(finding, replace(baseline, encodings={}))


def _pages(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    pages = facts.pages
    if pages is None or not pages.bytes or pages.bytes >= _SMALL_PAGE:
        return None
    finding = Finding(
        "pages",
        "Small pages",
        f"about {megabytes(pages.bytes)} and {count(pages.values)} values each, by their headers",
        advice="pages of 1 MiB (layout fast)",
    )
    return Question(finding, replace(baseline, page_bytes=PAGE_BYTES, page_rows=PAGE_ROWS))


def _checksums(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    if not baseline.checksums:
        return None
    finding = Finding(
        "checksums",
        "Page checksums",
        "verified whenever a compact file is read, but not in a fast one",
        advice="layout fast",
    )
    return Question(finding, replace(baseline, checksums=False))


# -- what the columns are ------------------------------------------------------------------------


def _nullable(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    unused = [c for c in facts.of_kind("number", "text") if c.nullable and c.nulls == 0]
    if not unused:
        return None
    finding = Finding(
        "nullable",
        "Nullable columns without nulls",
        f"{_columns(unused, facts)}: every value is checked for null",
        advice="columns declared without nulls (layout fast)",
    )
    return Question(finding, replace(baseline, required=True))


def _nulls(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    with_nulls = [c for c in facts.of_kind("number") if c.nulls]
    if not with_nulls or not facts.rows:
        return None
    most = max(with_nulls, key=lambda c: c.nulls or 0)
    finding = Finding(
        "nulls",
        "Nulls",
        f"{_columns(with_nulls, facts)}, up to {percent((most.nulls or 0) / facts.rows)} of "
        f"{most.name!r}; a tensor has no nulls, so they are filled in every epoch",
        cure="workflow",
        advice="fill them once: FillMissing in a Workflow",
    )
    names = [c.name for c in with_nulls]
    return Question(finding, replace(baseline, change=filled(names), required=True))


def _text(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    text = facts.of_kind("text")
    if not text:
        return None
    finding = Finding(
        "text",
        "Text columns",
        f"{_columns(text, facts)}, {percent(_memory(text) / max(1, facts.memory))} of the data in "
        "memory; compared to the same columns as 4-byte numbers",
        cure="workflow",
        advice="convert them to numbers once: Categorify in a Workflow, then to_parquet",
    )
    names = [c.name for c in text]
    plain = {n: e for n, e in baseline.encodings.items() if n not in names}
    return Question(finding, replace(baseline, change=as_codes(names), encodings=plain))


def _lists(facts: DatasetFacts, sample: Sample, baseline: WriteSettings) -> Question | None:
    lists = facts.of_kind("list", "text list")
    if not lists or len(lists) == len([c for c in facts.columns if c.kind != "other"]):
        return None
    finding = Finding(
        "lists",
        "List columns",
        f"{_columns(lists, facts)}, {percent(_memory(lists) / max(1, facts.memory))} of the data "
        "in memory; compared to reading without them",
        cure="workflow",
        advice="drop lists the model doesn't use; shorten the others once: ListSlice",
    )
    return Question(finding, replace(baseline, change=without(c.name for c in lists)))


def _memory(columns: Iterable[StoredColumn]) -> int:
    return sum(c.memory for c in columns)


def _columns(columns: list[StoredColumn], facts: DatasetFacts) -> str:
    """Their names if there are at most three, else their number."""
    if len(columns) <= 3:
        return ", ".join(c.name for c in columns)
    return f"{len(columns)} of {len(facts.columns)} columns"


# -- order and shares: arithmetic, nothing is read ------------------------------------------------


def sortedness(facts: DatasetFacts, sample: Sample) -> Finding | None:
    """Whether the footers show sorted columns, and how well the loader's shuffle mixes them."""
    if not facts.sorted_by:
        return None
    quality = shuffle_quality(sample.plan)
    learned = [c for c in facts.sorted_by if c in facts.targets]
    named = learned or list(facts.sorted_by)
    shown = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
    what = "the target" if learned else "row group after row group"
    poor = quality.score < _GOOD_ORDER
    return Finding(
        "sorted",
        f"Sorted by {shown}",
        f"{what}; the loader's shuffle reaches {quality.score:.2f} of a uniform one",
        note=f"order {quality.score:.2f}" if poor else "",
        cure="rewrite --shuffle full",
        advice="shuffle the files once",
    )


def skew(dataset: Dataset, facts: DatasetFacts, ranks: int) -> Finding | None:
    """How much more than its share the busiest rank reads."""
    if ranks < 2 or facts.rows < ranks:
        return None
    kinds = {c.name: c.kind for c in facts.columns}
    load = rank_load(loader_of(dataset, kinds, ranks=ranks).plan)
    by_file = _load_by_file(facts.file_rows, ranks)
    if load < _UNEVEN and by_file < _UNEVEN:
        return None
    whole = "some have none" if by_file == float("inf") else f"{by_file:.2f} times its share"
    evidence = (
        f"{len(facts.group_rows)} row groups in {len(facts.file_rows)} files of up to "
        f"{count(max(facts.file_rows))} rows: the busiest rank decodes {load:.2f} times its "
        f"share here; with whole files per rank, {whole}"
    )
    return Finding(
        "skew",
        f"Skew over {ranks} ranks",
        evidence,
        cost=Cost(load, load, load) if load >= _UNEVEN else None,
        note="" if load >= _UNEVEN else "not here",
        advice="files and row groups of equal rows, several for each rank",
    )


def rank_load(plan: Plan) -> float:
    """Rows the busiest rank of a plan decodes, divided by its even share.

    Examples
    --------
    >>> one_group = Plan((8000,), batch=80, streams=8, chunk=10, ranks=8)
    >>> many_groups = Plan((100,) * 80, batch=80, streams=8, chunk=10, ranks=8)
    >>> rank_load(one_group), rank_load(many_groups)
    (8.0, 1.0)
    """
    epoch, ranks = plan.epoch(0), plan.ranks
    loads = [sum(map(epoch.block_rows, epoch.last_use(rank, ranks))) for rank in range(ranks)]
    return max(loads) * ranks / max(1, plan.rows)


def _load_by_file(rows: tuple[int, ...], ranks: int) -> float:
    """The same if rank r reads the files r, r + ranks, ..."""
    loads = [sum(rows[rank::ranks]) for rank in range(ranks)]
    if not min(loads):
        return float("inf")
    return max(loads) * ranks / sum(rows)
