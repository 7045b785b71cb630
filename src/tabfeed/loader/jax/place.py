"""Who makes chunks for a device of JAX that has memory of its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from tabfeed.errors import TabfeedWarning
from tabfeed.loader.base import Feed
from tabfeed.loader.columns import Group
from tabfeed.loader.gpu_options import GpuOptions
from tabfeed.loader.jax.carry import Carrier, in_whole_chunks
from tabfeed.loader.jax.widths import Widths

__all__ = ["on_device"]


def on_device(
    feed: Feed[Any],
    carry: Carrier,
    groups: Sequence[Group],
    options: GpuOptions,
    apart: str | None = None,
) -> Feed[Any]:
    """The same batches, cut on the device from chunks that come there whole.

    Parameters
    ----------
    feed
        Makes them of chunks in the computer's memory.
    carry
        Takes arrays to the device.
    groups
        The columns that are cut there.
    options
        Reader and memory.
    apart
        Why columns are to come one by one instead, as `feed` gives them; None if they are not.
    """
    plain = in_whole_chunks(feed) if apart is None else feed
    made = apart or _made_there(feed, carry, groups, options, plain)
    if isinstance(made, Feed):
        return made
    plain.reader_choice = f"Arrow: batches are made in the computer's memory, and copied: {made}"
    if options.reader == "cudf":
        warnings.warn(f"reading with Arrow: {made}", TabfeedWarning, stacklevel=4)
    return plain


def _made_there(
    feed: Feed[Any],
    carry: Carrier,
    groups: Sequence[Group],
    options: GpuOptions,
    plain: Feed[Any],
) -> Feed[Any] | str:
    """The same batches of chunks that are made on the device; or why they cannot be."""
    if find_spec("torch") is None:
        return "PyTorch, which makes batches on a GPU, is not installed"
    from tabfeed.loader.torch.for_jax import made_by_torch

    return made_by_torch(feed, carry.hardware_number, options, plain, Widths(tuple(groups)))
