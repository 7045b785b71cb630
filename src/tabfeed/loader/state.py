"""Where a loader stands, as plain values that any checkpoint can hold.

A state is a few numbers: the plan's own, the epoch, the step. It says nothing about ranks that
read or threads that ran, so it may be loaded on another number of ranks: the global batches go
on as they were planned, divided anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tabfeed.errors import StateError
from tabfeed.loader.plan import Plan

__all__ = ["Position", "fingerprint", "restore", "save"]

VERSION = 2
_PLAN = ("batch", "streams", "chunk", "shuffle", "seed", "ranks", "last", "lot")


class Position(NamedTuple):
    """The next batch: its epoch and step, and the plan they belong to."""

    plan: Plan
    epoch: int
    step: int


def fingerprint(plan: Plan) -> str:
    """What tells one dataset from another: the rows of its partitions, in order."""
    sizes = np.asarray(plan.sizes, dtype=np.int64)
    return hashlib.blake2b(sizes.tobytes(), digest_size=8).hexdigest()


def save(position: Position) -> dict[str, Any]:
    """A position as plain values."""
    plan = position.plan
    return {
        "tabfeed_loader": VERSION,
        "data": fingerprint(plan),
        "rows": plan.rows,
        "plan": {name: getattr(plan, name) for name in _PLAN},
        "epoch": position.epoch,
        "step": position.step,
    }


def restore(state: Mapping[str, Any], plan: Plan) -> Position:
    """The position a state speaks of, in terms of this dataset.

    Parameters
    ----------
    state
        What `save` made.
    plan
        The plan this loader was made with.
    """
    try:
        version, saved = state["tabfeed_loader"], dict(state["plan"])
        epoch, step, data = int(state["epoch"]), int(state["step"]), state["data"]
        fields = {name: saved[name] for name in _PLAN}
    except (KeyError, TypeError, ValueError) as e:
        raise StateError(f"this is not the state of a tabfeed loader: {e!r} is missing") from e
    if version != VERSION:
        raise StateError(f"the state is of format {version}; this tabfeed reads {VERSION}")
    if data != fingerprint(plan):
        raise StateError(
            f"the state is of a dataset of {state.get('rows')} rows cut otherwise than this one of "
            f"{plan.rows} rows in {len(plan.sizes)} partitions; load it with the same files, "
            "columns, filters and part_size"
        )
    _check_same_run(fields, plan)
    return _checked(Position(replace(plan, **fields), epoch, step))


def _check_same_run(saved: dict[str, Any], plan: Plan) -> None:
    if saved["shuffle"] != plan.shuffle:
        raise StateError(
            f"the state was made with shuffle={saved['shuffle']}, this loader with {plan.shuffle}"
        )
    same_global = saved["batch"] == plan.batch
    same_per_rank = saved["batch"] * plan.ranks == plan.batch * saved["ranks"]
    if not (same_global or same_per_rank):
        raise StateError(
            f"the state was made with batches of {saved['batch']} rows over {saved['ranks']} "
            f"ranks, this loader with {plan.batch} over {plan.ranks}; a state cannot change that"
        )


def _checked(position: Position) -> Position:
    if not 0 <= position.step <= position.plan.steps or position.epoch < 0:
        raise StateError(
            f"the state stands at step {position.step} of epoch {position.epoch}; an epoch has "
            f"{position.plan.steps} steps"
        )
    if position.step == position.plan.steps:
        return Position(position.plan, position.epoch + 1, 0)
    return position
