"""A position as plain values, and what worker processes make of it."""

from __future__ import annotations

from dataclasses import replace

from tabfeed.loader.plan import Plan
from tabfeed.loader.position import Position, restore, save, split_plan


def test_workers_share_batches_of_the_same_size():
    plan = Plan((100, 60), batch=10, streams=2, chunk=7, ranks=2)
    assert split_plan(plan, 1) is plan
    shared = split_plan(plan, 3)
    assert (shared.batch, shared.streams, shared.chunk, shared.ranks) == (30, 6, 2, 6)
    assert shared.sizes == plan.sizes and shared.steps == 6
    assert split_plan(Plan((100,), batch=10, streams=8), 2).streams == 8
    assert split_plan(plan, 20).chunk == 1
    assert Position(plan, 0, 0, 3).steps == 18
    assert Position(plan, 4, 18, 3).upcoming == Position(plan, 5, 0)
    assert Position(plan, 4, 18, 3).upcoming.worker == 0
    assert Position(plan, 4, 17, 3).upcoming == Position(plan, 4, 17, 3)


def test_a_state_names_workers_and_whole_only_where_there_are():
    plan = Plan((100, 60), batch=10)
    assert (
        "workers" not in save(Position(plan, 0, 0))
        and "whole" not in save(Position(plan, 0, 0))["plan"]
    )
    state = save(Position(replace(plan, whole=True), 2, 5, workers=2))
    assert state["workers"] == 2 and state["plan"]["whole"] is True
    again = restore(state, replace(plan, whole=True, chunk=9))
    assert (again.epoch, again.step, again.workers) == (2, 5, 2)
    assert again.plan == replace(plan, whole=True, chunk=9)  # a chunk is the loader's own matter
