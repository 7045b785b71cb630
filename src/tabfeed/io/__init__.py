"""Files and frames in, Parquet out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.base import ReadOptions
from tabfeed.io.partition import Partition, Piece

if TYPE_CHECKING:
    from tabfeed.io.write.writer import Shuffle

__all__ = ["Dataset", "Partition", "Piece", "ReadOptions", "Shuffle"]


def __getattr__(name: str) -> Any:
    """What writes and shuffles is imported when it is first used: loaders only read."""
    if name == "Shuffle":
        from tabfeed.io.write.writer import Shuffle

        return Shuffle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
