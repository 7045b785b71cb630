"""What files that are read from start to end, without a footer, have in common."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

__all__ = ["StreamedFile"]


class StreamedFile:
    """A file whose units are found by reading it, once, under a lock.

    Attributes
    ----------
    schema
        The columns it has.
    """

    schema: pa.Schema
    _lock: threading.Lock

    def _empty(self, columns: Sequence[str]) -> pa.Table:
        return pa.schema([self.schema.field(c) for c in columns]).empty_table()

    def _at_least_one(self, columns: Sequence[str]) -> list[str]:
        """No reader counts rows without reading a column; a table without one forgets them."""
        return list(columns) or self.schema.names[:1]

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())
