"""Which of how many: from the arguments, or from what started this process.

A loader asks when it is made. Under Lightning, make it in ``train_dataloader``: only then do the
ranks know which they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from numbers import Integral
from typing import NamedTuple

from tabfeed.errors import ArgumentError

__all__ = ["Shard", "find_shard"]

# torchrun and Accelerate set the first pair; srun the second, for job steps only
# (SLURM_NTASKS is also set in a batch script that runs one process).
_ENVIRONMENTS = [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")]


class Shard(NamedTuple):
    """Rank and world size."""

    rank: int
    world: int


def find_shard(
    rank: int | None, world: int | None, environment: Mapping[str, str] = os.environ
) -> Shard:
    """Rank and world size: as given, else from the environment, else one process alone.

    Examples
    --------
    >>> find_shard(None, None, {"RANK": "1", "WORLD_SIZE": "4"})
    Shard(rank=1, world=4)
    >>> find_shard(4, 4)
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: global_rank is 4 of global_size 4; ranks go from 0 to 3
    """
    if rank is None and world is None:
        return _from_environment(environment)
    if rank is None or world is None:
        given, missing = (
            ("global_size", "global_rank")
            if rank is None
            else (
                "global_rank",
                "global_size",
            )
        )
        raise ArgumentError(f"{given} was given without {missing}; give both or neither")
    if not (isinstance(rank, Integral) and isinstance(world, Integral)):
        raise ArgumentError(
            f"global_rank is {rank!r} and global_size {world!r}; both must be integers"
        )
    return _checked(int(rank), int(world))


def _from_environment(environment: Mapping[str, str]) -> Shard:
    for rank_name, world_name in _ENVIRONMENTS:
        rank, world = environment.get(rank_name, ""), environment.get(world_name, "")
        if rank.isdigit() and world.isdigit():
            return _checked(int(rank), int(world))
    return _from_torch() or Shard(0, 1)


def _from_torch() -> Shard | None:
    """What a process group says, if the program has one: Lightning starts ranks without RANK."""
    torch = sys.modules.get("torch.distributed")
    if torch is None or not (torch.is_available() and torch.is_initialized()):
        return None
    return _checked(torch.get_rank(), torch.get_world_size())


def _checked(rank: int, world: int) -> Shard:
    if world < 1:
        raise ArgumentError(f"global_size is {world}; it must be 1 or more")
    if not 0 <= rank < world:
        raise ArgumentError(
            f"global_rank is {rank} of global_size {world}; ranks go from 0 to {world - 1}"
        )
    return Shard(rank, world)
