"""Files and row groups that could not be read and were left out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tabfeed.errors import BadFileError, SkippedFileWarning, UnreadableFileError

__all__ = ["CannotRead", "SkipList", "Skipped", "unannounced"]

CannotRead = BadFileError | UnreadableFileError


_quiet: ContextVar[bool] = ContextVar("_quiet", default=False)


@contextmanager
def unannounced() -> Iterator[None]:
    """Suppress the warnings for files left out, in this thread: the caller reports them."""
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)


@dataclass(frozen=True)
class Skipped:
    """A file, or a row group of one, that could not be read and was left out."""

    file: str
    row_group: int | None
    rows: int | None
    reason: str

    def __str__(self) -> str:
        where = self.file if self.row_group is None else f"{self.file}, row group {self.row_group}"
        rows = "" if self.rows is None else f" ({self.rows:,} rows)"
        return f"{where}{rows}: {self.reason}"


class SkipList:
    """What was left out so far; threads add to it.

    Parameters
    ----------
    allowed
        Whether anything may be left out. If not, the first attempt raises the error.
    """

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self._items: dict[tuple[str, int | None], Skipped] = {}

    @property
    def items(self) -> list[Skipped]:
        """All of them, in the order they were found."""
        return list(self._items.values())

    def __contains__(self, place: tuple[str, int | None]) -> bool:
        return place in self._items

    def add(self, found: list[tuple[Skipped, CannotRead]]) -> None:
        """Note unreadable files in one warning; or raise if skipping is not allowed."""
        if found and not self.allowed:
            raise found[0][1]
        new = [
            item
            for item, _ in found
            if self._items.setdefault((item.file, item.row_group), item) is item
        ]
        if _quiet.get():
            return
        if len(new) == 1:
            warnings.warn(f"left out {new[0]}", SkippedFileWarning, stacklevel=3)
        elif new:
            warnings.warn(
                f"left out {len(new)} files, such as {new[0]}. The dataset's `skipped` lists all",
                SkippedFileWarning,
                stacklevel=3,
            )
