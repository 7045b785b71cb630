"""Options are checked when they are given."""

from __future__ import annotations

import pytest

from tabfeed.errors import ArgumentError
from tabfeed.loader.options import GpuOptions, LoaderOptions, find_shard


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.5}, "batch_size is 2.5; it must be a positive integer"),
        ({"parts_per_chunk": 0}, "parts_per_chunk is 0"),
        ({"threads": True}, "threads is True"),
        ({"cache": "ram"}, "cache is 'ram'"),
        ({"last": "end"}, "last is 'end'"),
        ({"drop_last": True, "last": "wrap"}, "contradict each other"),
        ({"host_memory": "lots"}, "host_memory is 'lots'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ArgumentError, match=message):
        _ = LoaderOptions(**options).budget


def test_what_is_fetched_ahead_is_a_quarter_of_what_a_user_gives() -> None:
    assert LoaderOptions(8, host_memory="400MB").fetched == 100_000_000
    assert LoaderOptions(8).fetched == 2**29


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "3"}, (2, 3)),
        ({"WORLD_SIZE": "3"}, (0, 1)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # a batch script, not a job step
        (
            {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
            (0, 1),
        ),
    ],
)
def test_from_the_environment(environment, expected):
    assert find_shard(None, None, environment) == expected


def test_arguments_win():
    assert find_shard(0, 2, {"RANK": "2", "WORLD_SIZE": "3"}) == (0, 2)


@pytest.mark.parametrize(
    ("rank", "world", "message"),
    [
        (0, 0, "global_size is 0; it must be 1 or more"),
        (-1, 2, "ranks go from 0 to 1"),
        (None, 2, "global_size was given without global_rank"),
        (1, None, "global_rank was given without global_size"),
    ],
)
def test_what_does_not_fit_is_refused(rank, world, message):
    with pytest.raises(ArgumentError, match=message):
        find_shard(rank, world)


def test_a_process_group_of_torch_is_asked_where_the_environment_is_silent(monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 5)
    assert find_shard(None, None, {"WORLD_SIZE": "5", "LOCAL_RANK": "3"}) == (3, 5)
    assert find_shard(None, None, {"RANK": "0", "WORLD_SIZE": "2"}) == (0, 2)


def test_a_size_that_is_none_is_refused_without_a_gpu():
    with pytest.raises(ArgumentError, match="device_memory is 'much'"):
        GpuOptions(device_memory="much")


def test_an_unknown_reader_is_told():
    with pytest.raises(ArgumentError, match="reader is 'duck'; it must be one of auto, arrow"):
        GpuOptions("duck")
