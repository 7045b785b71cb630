"""Where a loader stands, as plain values that any checkpoint can hold.

A state is a few numbers: the plan's own, the epoch, the step. It says nothing about ranks that
read or threads that ran, so it may be loaded on another number of ranks: the global batches go
on as they were planned, divided anew.

Where a rank's batches come from several worker processes, they come from each in turn. A step
then counts the batches of all of them, so that one number still says where every one stands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tabfeed.errors import StateError
from tabfeed.loader.plan import Plan

__all__ = ["Position", "fingerprint", "restore", "save", "split_plan"]

VERSION = 3
_PLAN = ("batch", "streams", "chunk", "shuffle", "seed", "ranks", "last", "lot")
_WHOLE = "whole"  # in a state only where it is so


class Position(NamedTuple):
    """The next batch: its epoch and step, and the plan they belong to.

    With `workers`, processes that give a rank's batches in turn, `step` counts the batches of all
    of them; number `worker` gives the batch `worker` steps on, and then every `workers`-th.
    """

    plan: Plan
    epoch: int
    step: int
    workers: int = 1
    worker: int = 0

    @property
    def steps(self) -> int:
        """Batches of a rank in an epoch."""
        return split_plan(self.plan, self.workers).steps * self.workers

    @property
    def upcoming(self) -> Position:
        """The same; from the end of an epoch on, the start of the next one."""
        if self.step < self.steps:
            return self
        return Position(self.plan, self.epoch + 1, 0)

    def in_worker(self, worker: int, workers: int) -> Position:
        """The position of one of `workers` processes; refused if they cannot go on from here."""
        if self.step and self.workers != workers:
            raise StateError(
                f"the state was made with {_processes(self.workers)} and cannot go on with "
                f"{_processes(workers)}: load it with the same num_workers"
            )
        return self._replace(workers=workers, worker=worker)


def _processes(workers: int) -> str:
    return f"batches from {workers} worker processes" if workers > 1 else "batches from one process"


def split_plan(plan: Plan, workers: int) -> Plan:
    """The plan for `workers` processes on each rank, each giving batches of the same size."""
    if workers == 1:
        return plan
    return replace(
        plan,
        batch=plan.batch * workers,
        streams=max(plan.streams, plan.ranks * workers),
        chunk=max(1, plan.chunk // workers),
        ranks=plan.ranks * workers,
    )


def fingerprint(plan: Plan) -> str:
    """What tells one dataset from another: the rows of its partitions, in order."""
    sizes = np.asarray(plan.sizes, dtype=np.int64)
    return hashlib.blake2b(sizes.tobytes(), digest_size=8).hexdigest()


def save(position: Position) -> dict[str, Any]:
    """A position as plain values."""
    plan = position.plan
    workers = {"workers": position.workers} if position.workers > 1 else {}
    whole = {_WHOLE: True} if plan.whole else {}
    return {
        "tabfeed_loader": VERSION,
        "data": fingerprint(plan),
        "rows": plan.rows,
        "plan": {name: getattr(plan, name) for name in _PLAN} | whole,
        "epoch": position.epoch,
        "step": position.step,
        **workers,
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
        workers = int(state.get("workers", 1))
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
    _check_same_run(fields | {_WHOLE: bool(saved.get(_WHOLE, False))}, plan)
    fields["chunk"] = plan.chunk  # changes nothing of the order, and is what memory was shared by
    return _checked(Position(replace(plan, **fields), epoch, step, workers))


def _check_same_run(saved: dict[str, Any], plan: Plan) -> None:
    if saved["shuffle"] != plan.shuffle:
        raise StateError(
            f"the state was made with shuffle={saved['shuffle']}, this loader with {plan.shuffle}"
        )
    if saved[_WHOLE] != plan.whole:
        which = "another than" if plan.whole else "that of"
        raise StateError(
            f'the state is of an order that is {which} cache="device": go on with the same cache='
        )
    same_global = saved["batch"] == plan.batch
    same_per_rank = saved["batch"] * plan.ranks == plan.batch * saved["ranks"]
    if not (same_global or same_per_rank):
        raise StateError(
            f"the state was made with batches of {saved['batch']} rows over {saved['ranks']} "
            f"ranks, this loader with {plan.batch} over {plan.ranks}; a state cannot change that"
        )


def _checked(position: Position) -> Position:
    if position.workers < 1 or position.epoch < 0 or not 0 <= position.step <= position.steps:
        raise StateError(
            f"the state stands at step {position.step} of epoch {position.epoch}; an epoch has "
            f"{position.steps} steps"
        )
    return position
