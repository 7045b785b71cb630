"""Files and frames in, Parquet out."""

from __future__ import annotations

from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.base import ReadOptions
from tabfeed.io.partition import Partition, Piece
from tabfeed.io.write.writer import Shuffle

__all__ = ["Dataset", "Partition", "Piece", "ReadOptions", "Shuffle"]
