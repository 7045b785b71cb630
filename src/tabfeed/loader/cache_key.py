"""What a decoded partition depends on, as a name for it that holds across runs.

Two partitions have one name only if they would decode alike: the same rows of the same content of
the same files, the same columns in the same types, the same filter. Content is told by an object's
version, or by a local file's size and times of change. Functions cannot be compared, so what a
transform made has no name and is kept for one run alone; nor have frames in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from functools import cached_property
from typing import Any

from tabfeed.loader.readers import PartReader

__all__ = ["PartNames"]

_FORMAT = 2


class PartNames:
    """Names for the partitions of a reader."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    @cached_property
    def _common(self) -> Any:
        """What all partitions share; None if they cannot be named."""
        reader = self._reader
        if not isinstance(reader, PartReader) or reader.transforms or reader.dataset.mapped:
            return None
        if reader.dataset.fileset.skips.allowed:
            return None
        layout, schema = reader.layout, reader.dataset.schema
        types = {name: str(schema[name].dtype) for name in layout.columns}
        condition = reader.dataset.condition
        # As text an expression may be shortened; its serialised form is only hashed, never loaded.
        exact = "" if condition is None else pickle.dumps(condition.expression).hex()
        return [_FORMAT, repr(layout), types, exact]

    def name(self, number: int) -> str | None:
        """The name of a partition; None if it has none."""
        if self._common is None:
            return None
        files, contents = self._reader.dataset.fileset, []
        for piece in self._reader.partitions[number].pieces:
            content = _content(files.files[piece.file])
            if content is None:
                return None
            contents.append([*content, piece.unit, piece.start, piece.rows, piece.whole])
        text = json.dumps([self._common, contents, sorted(files.schema.names)], default=str)
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _content(file: Any) -> list[Any] | None:
    """What tells the content of a file from any other; None for what lies in memory."""
    location = getattr(file, "location", None)
    if location is None:
        return None
    if location.remote is not None:
        return [location.name, location.size, location.tag] if location.tag else None
    facts = os.stat(location.path)
    # The last is set by the system alone: a file that another one was copied over, with that one's
    # time of change, has it too.
    times = [facts.st_mtime_ns, facts.st_ctime_ns]
    return [location.name, facts.st_size, facts.st_ino, *times]
