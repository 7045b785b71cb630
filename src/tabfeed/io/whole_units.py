"""Units that can only be decoded whole: blocks of Avro, compressed record batches of Arrow IPC.

Any of their rows takes the memory of all of them. One that cannot fit within a limit of memory is
refused before it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tabfeed.errors import ArgumentError, BadFileError, TabfeedError, UnreadableFileError
from tabfeed.execute import Executor, LocalExecutor
from tabfeed.io.fileset import FileSet

__all__ = ["few_readers", "refuse_large_units"]


def refuse_large_units(
    files: FileSet,
    columns: Sequence[str],
    limit: int,
    *,
    most: int,
    option: str,
    error: type[TabfeedError] = ArgumentError,
) -> int:
    """The most bytes that reading a few rows takes at once; an error if it is over `most`.

    Parameters
    ----------
    files, columns
        What will be read.
    limit, option
        The user's limit of memory, and its name.
    most
        The part of it that reading may take.
    error
        What is raised.
    """
    largest = 0
    for name, file in zip(files.names, files.files, strict=True):
        if not file.indivisible:
            continue
        own = [c for c in columns if c in file.schema.names]
        with suppress(BadFileError, UnreadableFileError):  # reading says so
            for unit in range(len(file.unit_rows)):
                needed = file.bytes_at_once(unit, own, most)
                if needed > most:
                    raise error(
                        f"{name} has a {file.indivisible} (in unit {unit}) that takes about "
                        f"{needed / 1e6:,.1f} MB while it is read, since it can only be decoded "
                        f"whole: raise {option}, which is {limit / 1e6:,.1f} MB, to at least "
                        f"{needed * limit / most / 1e6:,.0f} MB, or write the file with fewer "
                        f"rows in each {file.indivisible}"
                    )
                largest = max(largest, needed)
    return largest


def few_readers(files: FileSet, columns: Sequence[str], limit: int, executor: Executor) -> Executor:
    """As many threads as can each read such a unit within half the limit; an error if none can."""
    most = limit // 2
    at_once = refuse_large_units(files, columns, limit, most=most, option="memory_limit")
    fits = max(1, most // max(1, at_once))
    if isinstance(executor, LocalExecutor) and executor.threads > fits:
        return LocalExecutor(fits)
    return executor
