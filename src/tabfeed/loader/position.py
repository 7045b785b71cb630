"""Where a loader stands, as plain values that any checkpoint can hold.

A state is a few numbers: the plan's own, the epoch, the step. It says nothing about ranks that
read or threads that ran, so it may be loaded on another number of ranks: the global batches go
on as they were planned, divided anew.

Where a rank's batches come from several worker processes, they come from each in turn. A step
then counts the batches of all of them, so that one number still says where every one stands.
"""

from __future__ import annotations

import hashlib
import operator
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tabfeed.errors import StateError
from tabfeed.loader.plan import LAST, Plan

VERSION = 3
_VERSION = "tabfeed_loader"
_PLAN = ("batch", "streams", "chunk", "shuffle", "seed", "ranks", "last", "block")
_KEYS = {"block": "lot"}  # names of fields in a state that differ
_WHOLE = "whole"  # in a state only where it is so
_MOST_PROCESSES = 2**17
_MOST_BLOCK = 2**20


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

    def with_chunk(self, chunk: int) -> Position:
        """The same step of an epoch, in chunks of so many steps."""
        return self._replace(plan=replace(self.plan, chunk=chunk))

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
        _VERSION: VERSION,
        "data": fingerprint(plan),
        "rows": plan.rows,
        "plan": {_KEYS.get(name, name): getattr(plan, name) for name in _PLAN} | whole,
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
    saved = _read(state, plan)
    if saved["data"] != fingerprint(plan) or saved["rows"] != plan.rows:
        raise StateError(
            f"the state is of a dataset of {saved['rows']} rows cut otherwise than this one of "
            f"{plan.rows} rows in {len(plan.sizes)} partitions; load it with the same files, "
            "columns, filters and part_size"
        )
    fields = saved["plan"]
    _check_same_run(fields, plan)
    fields["chunk"] = plan.chunk  # changes nothing of the order, and is what memory was shared by
    position = Position(replace(plan, **fields), saved["epoch"], saved["step"], saved["workers"])
    if position.step > position.steps:
        raise StateError(
            f"the state stands at step {position.step} of epoch {position.epoch}; an epoch has "
            f"{position.steps} steps"
        )
    return position


# -- the schema of a state ----------------------------------------------------------------------


def _read(state: Any, plan: Plan) -> dict[str, Any]:
    """The values of a state, each of its type and within bounds; the plan's as a dict."""
    top = _Keys(state, "")
    version = top.number(_VERSION, 0)
    if version != VERSION:
        raise StateError(f"the state is of format {version}; this tabfeed reads {VERSION}")
    saved = {
        "data": top.text("data"),
        "rows": top.number("rows", 0),
        "epoch": top.number("epoch", 0),
        "step": top.number("step", 0),
        "workers": top.number("workers", 1, _MOST_PROCESSES, default=1),
        "plan": _read_plan(_Keys(top.take("plan"), "plan."), plan),
    }
    top.check_known()
    return saved


def _read_plan(keys: _Keys, plan: Plan) -> dict[str, Any]:
    batch = keys.number("batch", 1)
    ranks = keys.number("ranks", 1, min(batch, _MOST_PROCESSES))
    # More streams than a batch has rows are never planned, and each costs time.
    streams = max(plan.streams, min(batch, max(plan.rows, ranks), _MOST_PROCESSES))
    found = {
        "batch": batch,
        "ranks": ranks,
        "streams": keys.number("streams", 1, streams),
        "chunk": keys.number("chunk", 1),
        "block": keys.number("lot", 1, max(plan.block, _MOST_BLOCK)),
        "seed": keys.number("seed", None, None),
        "shuffle": keys.flag("shuffle"),
        "last": keys.text("last"),
        _WHOLE: keys.flag(_WHOLE, default=False),
    }
    if found["last"] not in LAST:
        raise StateError(
            f"plan.last of the state is {reprlib.repr(found['last'])}; it must be one of "
            f"{', '.join(LAST)}"
        )
    if batch % ranks:
        raise StateError(
            f"plan.batch of the state is {batch}, which its plan.ranks, {ranks}, do not divide"
        )
    keys.check_known()
    return found


class _Keys:
    """Takes values out of a mapping that anybody may have written."""

    def __init__(self, values: Any, within: str) -> None:
        if not isinstance(values, Mapping):
            what = f"{within.rstrip('.')} of the state" if within else "a loader's state"
            raise StateError(f"{what} must be a dict, not {reprlib.repr(values)}")
        self._values, self._within = values, within
        self._taken: list[str] = []

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        self._taken.append(key)
        if key not in self._values and default is None:
            raise StateError(
                f"this is not the state of a tabfeed loader: {self._within}{key} is missing; give "
                "what state_dict() of a loader returned"
            )
        return self._values.get(key, default)

    def number(
        self, key: str, low: int | None, high: int | None = 2**63 - 1, default: int | None = None
    ) -> int:
        """An integer; NumPy's are as good as Python's."""
        value = self.take(key, default)
        if not isinstance(value, bool | np.bool_):
            with suppress(TypeError, ValueError):
                number = operator.index(value)
                if (low is None or low <= number) and (high is None or number <= high):
                    return number
        bounds = "" if low is None else f" from {low} to {high}"
        raise self._wrong(key, value, f"an integer{bounds}")

    def text(self, key: str) -> str:
        """A string."""
        value = self.take(key)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or False; NumPy's are as good as Python's."""
        value = self.take(key, default)
        if not isinstance(value, bool | np.bool_):
            raise self._wrong(key, value, "True or False")
        return bool(value)

    def _wrong(self, key: str, value: Any, wanted: str) -> StateError:
        return StateError(
            f"{self._within}{key} of the state is {reprlib.repr(value)}; it must be {wanted}"
        )

    def check_known(self) -> None:
        """Refuse keys that were not taken."""
        for key in self._values:
            if key not in self._taken:
                raise StateError(
                    f"the state has {self._within}{str(key)[:80]}, which a loader's "
                    "state has not: a later tabfeed or another library wrote it"
                )


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
            f"the state was made with batches of {saved['batch'] // saved['ranks']} rows on "
            f"{saved['ranks']} ranks, this loader with {plan.batch // plan.ranks} on "
            f"{plan.ranks}: keep batch_size, or batch_size times the number of ranks"
        )
