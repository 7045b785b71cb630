"""Who makes chunks for a device of JAX that has memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import jax

from tabfeed.loader.base import Feed
from tabfeed.loader.columns import Group
from tabfeed.loader.jax.carry import Carrier, in_whole_chunks

__all__ = ["on_device"]


def on_device(feed: Feed[Any], carry: Carrier, groups: Sequence[Group]) -> Feed[Any]:
    """The same batches, cut on the device from chunks that come there whole.

    Parameters
    ----------
    feed
        Makes them of chunks in the computer's memory.
    carry
        Takes arrays to the device.
    groups
        The columns that are cut there.
    """
    made = None
    if find_spec("torch") is not None and _all_known(groups):
        from tabfeed.loader.torch.for_jax import made_by_torch

        made = made_by_torch(feed, carry.hardware_number)
    return made or in_whole_chunks(feed)


def _all_known(groups: Sequence[Group]) -> bool:
    """Whether JAX has the dtypes of these columns: 32 bits unless ``jax_enable_x64`` is on."""
    config: Any = jax.config
    return bool(config.jax_enable_x64) or all(group.dtype.itemsize < 8 for group in groups)
