"""What may slow the reading of Parquet files, and the one change that shows by how much.

A rule looks at what the footers say. If there is something to ask, it gives a `Question`: the
finding as far as it is known, and how to write a sample so that only this thing differs. Whether
it costs anything here is then measured; nothing is called slow because a rule of thumb says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

from tabfeed.doctor.facts import Column, Facts
from tabfeed.doctor.findings import Finding
from tabfeed.doctor.sample import Sample
from tabfeed.doctor.writing import PAGE_BYTES, PAGE_ROWS, Writing, as_codes, filled, without
from tabfeed.profile.format import count, megabytes, percent

__all__ = ["TWIN", "Question", "good_group_rows", "questions"]

TWIN = "as they are, written again"
_GROUP_BYTES = 64 * 2**20
_MOST_GROUP_ROWS, _FEWEST_GROUP_ROWS = 1_000_000, 1_000
_GROUPS, _SHARED_ROWS = 16, 100_000
_SMALL = 4  # a quarter of what is good
_SMALL_PAGE = 2**18


@dataclass(frozen=True)
class Question:
    """A finding, and how to write the sample without what it found.

    ``change`` is None where the files in place are held against their twin instead.
    """

    finding: Finding
    change: Writing | None


def good_group_rows(facts: Facts) -> int:
    """Rows of a row group that suits a loader: about 64 MiB in memory, a million at most.

    Of little data fewer, so that threads and ranks can share the groups.
    """
    width = max(1, facts.memory // max(1, facts.rows))
    fits = max(_FEWEST_GROUP_ROWS, min(_MOST_GROUP_ROWS, _GROUP_BYTES // width))
    return min(fits, max(_SHARED_ROWS, -(-facts.rows // _GROUPS)))


def questions(facts: Facts, sample: Sample, twin: Writing) -> list[Question]:
    """Everything worth asking about these files."""
    rules: tuple[Callable[[Facts, Sample, Writing], Question | None], ...] = (
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
    asked = (rule(facts, sample, twin) for rule in rules)
    return [q for q in asked if q is not None]


# -- how rows lie in files -----------------------------------------------------------------------


def _large_groups(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    if not sample.slices and not sample.few:
        return None
    largest, groups = max(facts.group_rows), len(facts.group_rows)
    if sample.slices:
        title = "Row groups too large"
        evidence = (
            f"up to {count(largest)} rows: more than a loader may hold, so it reads slices, and "
            "decodes a row group from its start for each"
        )
    else:
        title = "Too few row groups"
        evidence = f"{groups} of up to {count(largest)} rows, for {sample.threads} reading threads"
    good = count(good_group_rows(facts))
    return Question(
        Finding("large_groups", title, evidence, advice=f"row groups of about {good} rows"), None
    )


def _small_groups(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    good, middle = good_group_rows(facts), median(facts.group_rows)
    if middle >= good / _SMALL or len(facts.group_rows) < 2 * len(facts.file_rows):
        return None
    evidence = (
        f"{count(len(facts.group_rows))} row groups of about {count(middle)} rows; "
        f"{count(good)} would suit {len(facts.columns)} columns"
    )
    finding = Finding("small_groups", "Row groups too small", evidence, advice="larger row groups")
    return Question(finding, replace(twin, group_rows=good_group_rows(facts)))


def _small_files(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    good, files = good_group_rows(facts), len(facts.file_rows)
    middle = median(facts.file_rows)
    if files < 8 or middle >= good / _SMALL:
        return None
    finding = Finding(
        "small_files",
        "Many small files",
        f"{count(files)} files of about {count(middle)} rows ({megabytes(facts.stored / files)}); "
        "each is opened for every read",
        advice="fewer files",
    )
    return Question(finding, replace(twin, one_file=True, group_rows=good_group_rows(facts)))


# -- how values are stored -----------------------------------------------------------------------


def _codec(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    packed = [c for c in facts.columns if c.codecs and c.kind != "other"]
    if not packed:
        return None
    codecs = Counter(c.codecs[0].lower() for c in packed)
    stored, memory = sum(c.stored for c in packed), sum(c.memory for c in packed)
    finding = Finding(
        "codec",
        f"Compression ({', '.join(codecs)})",
        f"{_columns(packed, facts)}, to {percent(stored / max(1, memory))} of their size in memory",
        advice="uncompressed pages (layout fast)",
    )
    return Question(finding, replace(twin, codecs={}))


def _encodings(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    coded = [c for c in facts.columns if c.encoding != "PLAIN" and c.kind != "other"]
    if not coded:
        return None
    names = Counter(c.encoding.lower() for c in coded)
    finding = Finding(
        "encodings",
        f"Encoded values ({', '.join(names)})",
        f"{_columns(coded, facts)}; plain values are copied, these are decoded",
        advice="plain values (layout fast)",
    )
    return Question(finding, replace(twin, encodings={}))


def _pages(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    pages = facts.pages
    if pages is None or not pages.bytes or pages.bytes >= _SMALL_PAGE:
        return None
    finding = Finding(
        "pages",
        "Small pages",
        f"about {megabytes(pages.bytes)} and {count(pages.values)} values each, by their headers",
        advice="pages of 1 MiB (layout fast)",
    )
    return Question(finding, replace(twin, page_bytes=PAGE_BYTES, page_rows=PAGE_ROWS))


def _checksums(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    if not twin.checksums:
        return None
    finding = Finding(
        "checksums",
        "Page checksums",
        "verified at every read of a compact file; of a fast one only by Dataset.validate",
        advice="layout fast",
    )
    return Question(finding, replace(twin, checksums=False))


# -- what the columns are ------------------------------------------------------------------------


def _nullable(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    idle = [c for c in facts.of_kind("number", "text") if c.nullable and c.nulls == 0]
    if not idle:
        return None
    finding = Finding(
        "nullable",
        "Nulls allowed where there are none",
        f"{_columns(idle, facts)} may hold nulls and hold none; each value is looked at",
        advice="columns declared without nulls (layout fast)",
    )
    return Question(finding, replace(twin, required=True))


def _nulls(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    lacking = [c for c in facts.of_kind("number") if c.nulls]
    if not lacking or not facts.rows:
        return None
    most = max(lacking, key=lambda c: c.nulls or 0)
    finding = Finding(
        "nulls",
        "Nulls",
        f"{_columns(lacking, facts)}, up to {percent((most.nulls or 0) / facts.rows)} of "
        f"{most.name!r}; a tensor has none, so they are filled in every epoch",
        cure="workflow",
        advice="fill them once: FillMissing in a Workflow",
    )
    names = [c.name for c in lacking]
    return Question(finding, replace(twin, change=filled(names), required=True))


def _text(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    text = facts.of_kind("text")
    if not text:
        return None
    finding = Finding(
        "text",
        "Text columns",
        f"{_columns(text, facts)}, {percent(_memory(text) / max(1, facts.memory))} of the data in "
        "memory; held against the same column as numbers of 4 bytes",
        cure="workflow",
        advice="make numbers of them once: Categorify in a Workflow, then to_parquet",
    )
    names = [c.name for c in text]
    plain = {n: e for n, e in twin.encodings.items() if n not in names}
    return Question(finding, replace(twin, change=as_codes(names), encodings=plain))


def _lists(facts: Facts, sample: Sample, twin: Writing) -> Question | None:
    lists = facts.of_kind("list", "text list")
    if not lists or len(lists) == len([c for c in facts.columns if c.kind != "other"]):
        return None
    finding = Finding(
        "lists",
        "List columns",
        f"{_columns(lists, facts)}, {percent(_memory(lists) / max(1, facts.memory))} of the data "
        "in memory; held against reading without them",
        cure="workflow",
        advice="leave out what the model does not use; shorten the rest once: ListSlice",
    )
    return Question(finding, replace(twin, change=without(c.name for c in lists)))


def _memory(columns: Iterable[Column]) -> int:
    return sum(c.memory for c in columns)


def _columns(columns: list[Column], facts: Facts) -> str:
    """Their names if they are few, else how many they are."""
    if len(columns) <= 3:
        return ", ".join(c.name for c in columns)
    return f"{len(columns)} of {len(facts.columns)} columns"
