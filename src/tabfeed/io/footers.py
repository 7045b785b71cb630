"""Footers of remote Parquet files, kept for the next time the same content is opened.

A footer is small and is needed before anything else; over a network it costs two round trips.
Those of a dataset's files are fetched side by side when it is opened (`tabfeed.io.fileset`), and
kept here up to 64 MiB, by the object's version: what has changed is read anew.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.io.source import Location

__all__ = ["read_footer"]

_MOST_BYTES = 64 * 2**20
_kept: OrderedDict[tuple[str, int, str], pq.FileMetaData] = OrderedDict()
_lock = threading.Lock()


def read_footer(location: Location, file: pa.NativeFile) -> pq.FileMetaData:
    """The footer of a Parquet file, from memory if the same content was opened before."""
    if not location.tag:
        return pq.read_metadata(file)
    key = (location.name, location.size, location.tag)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    footer = pq.read_metadata(file)
    with _lock:
        _kept[key] = footer
        while sum(f.serialized_size for f in _kept.values()) > _MOST_BYTES:
            _kept.popitem(last=False)
    return footer


def _unlock() -> None:
    """In a forked child, whoever held the lock in the parent."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
