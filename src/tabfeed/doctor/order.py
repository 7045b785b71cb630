"""What follows from the order and the sizes of row groups alone: arithmetic, no reading.

How well a loader's shuffling makes up for files sorted by what is to be learned, and how evenly
several ranks share the reading.
"""

from __future__ import annotations

from tabfeed.doctor.facts import Facts
from tabfeed.doctor.findings import Finding
from tabfeed.doctor.measure import Cost
from tabfeed.doctor.reading import loader_of
from tabfeed.doctor.sample import Sample
from tabfeed.io.dataset import Dataset
from tabfeed.loader.plan.order import Plan
from tabfeed.loader.plan.shuffle_quality import shuffle_quality
from tabfeed.profile.format import count

__all__ = ["rank_load", "skew", "sortedness"]

_GOOD_ORDER = 0.95
_UNEVEN = 1.2


def sortedness(facts: Facts, sample: Sample) -> Finding | None:
    """Files sorted by something, as their footers show, and what shuffling makes of it."""
    if not facts.sorted_by:
        return None
    quality = shuffle_quality(sample.plan)
    learned = [c for c in facts.sorted_by if c in facts.targets]
    named = learned or list(facts.sorted_by)
    shown = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
    what = "which is to be learned" if learned else "row group after row group"
    poor = quality.score < _GOOD_ORDER
    return Finding(
        "sorted",
        f"Sorted by {shown}",
        f"{what}; the loader's own shuffling reaches {quality.score:.2f} of a uniform one",
        note=f"order {quality.score:.2f}" if poor else "",
        cure="rewrite --shuffle full",
        advice="shuffle once on disk",
    )


def skew(dataset: Dataset, facts: Facts, ranks: int) -> Finding | None:
    """How much more than its share the busiest of several ranks reads."""
    if ranks < 2 or facts.rows < ranks:
        return None
    kinds = {c.name: c.kind for c in facts.columns}
    loaded = rank_load(loader_of(dataset, kinds, ranks=ranks).plan)
    by_file = _deal_files(facts.file_rows, ranks)
    if loaded < _UNEVEN and by_file < _UNEVEN:
        return None
    evidence = (
        f"{len(facts.group_rows)} row groups in {len(facts.file_rows)} files of up to "
        f"{count(max(facts.file_rows))} rows: the busiest rank decodes {loaded:.2f} times its "
        f"share here; where files are dealt out, {_times(by_file)}"
    )
    return Finding(
        "skew",
        f"Skew over {ranks} ranks",
        evidence,
        cost=Cost(loaded, loaded, loaded) if loaded >= _UNEVEN else None,
        note="" if loaded >= _UNEVEN else "not here",
        advice="files and row groups of equal rows, several for each rank",
    )


def _times(load: float) -> str:
    return "some have nothing to read" if load == float("inf") else f"{load:.2f} times its share"


def rank_load(plan: Plan) -> float:
    """Rows the busiest of a plan's ranks decodes, over its even share.

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


def _deal_files(rows: tuple[int, ...], ranks: int) -> float:
    """The same where rank r takes the files r, r + ranks, ..."""
    loads = [sum(rows[rank::ranks]) for rank in range(ranks)]
    if not min(loads):
        return float("inf")
    return max(loads) * ranks / sum(rows)
