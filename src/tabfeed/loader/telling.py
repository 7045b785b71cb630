"""What a loader says of itself: a line for a terminal, a small table for a notebook.

Only what is known is told; nothing is read and no thread starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabfeed.column_schema import counted
from tabfeed.loader.base import Feed
from tabfeed.loader.columns import Group, Layout
from tabfeed.notebook import box, facts

__all__ = ["line", "page"]

_SHOWN = 4


def line(kind: str, feed: Feed[Any], roles: Mapping[str, Sequence[str]] | None = None) -> str:
    """For a terminal; with `roles`, columns by what they come as."""
    columns = "".join(f"; {role}: {_names(n)}" for role, n in (roles or {}).items() if n)
    return f"<{kind}: {', '.join([*_summary(feed), *_where(feed)])}{columns}>"


def page(kind: str, feed: Feed[Any]) -> str:
    """For a notebook."""
    rows = [("order", _order(feed)), *_columns(feed), *_reader(feed)]
    rows.append(("stands at", ", ".join(_where(feed))))
    return box(kind, _summary(feed), facts(rows))


def _summary(feed: Feed[Any]) -> list[str]:
    plan, options = feed.plan, feed.options
    told = [
        f"{sum(plan.sizes):,} rows",
        f"{len(feed):,} batches of {options.batch_size:,}",
        "shuffled" if plan.shuffle else "in order",
    ]
    place = options.place
    return told if place.world == 1 else [*told, f"rank {place.rank} of {place.world}"]


def _where(feed: Feed[Any]) -> list[str]:
    return [f"epoch {feed.epoch}", f"{feed.rows_given:,} rows given"]


def _order(feed: Feed[Any]) -> str:
    plan = feed.plan
    if not plan.shuffle:
        return f"as in the data, from {counted(len(plan.sizes), 'partition')}"
    if plan.whole:
        return f"one permutation of all rows in every epoch, seed {plan.seed}"
    return (
        f"partitions and rows permuted in every epoch, seed {plan.seed}; "
        f"{min(plan.streams, len(plan.sizes)):,} of {len(plan.sizes):,} partitions mixed at a time"
    )


def _reader(feed: Feed[Any]) -> list[tuple[str, str]]:
    return [("read by", feed.reader_choice)] if feed.reader_choice else []


def _columns(feed: Feed[Any]) -> list[tuple[str, str]]:
    """Which columns come, by what they come as."""
    layout = getattr(feed.recipe.reader, "layout", None)
    if not isinstance(layout, Layout):
        return []
    named = [(_group(g), _names(g.columns)) for g in layout.groups if g.columns]
    named += [(f"lists of {dtype}", name) for name, dtype in layout.lists]
    named += [(f"{width} {dtype} each", name) for name, width, dtype in layout.fixed]
    return [*named, *([("as they are", _names(layout.extras))] if layout.extras else [])]


def _group(group: Group) -> str:
    """A group is named for its role, or for its dtype where columns come one by one."""
    return group.name if group.name == str(group.dtype) else f"{group.name}, {group.dtype}"


def _names(names: Sequence[str]) -> str:
    if len(names) <= _SHOWN + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])}, ... {names[-1]} ({len(names):,})"
