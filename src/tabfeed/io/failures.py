"""What goes wrong while a file is read, as tabfeed's own errors.

Arrow reports a vanished file, a forbidden one and a damaged compressed stream all as
``OSError``. The difference matters to a user (fix the permissions, or write the file
again) and to ``on_bad_file="skip"``, so it is told apart here, once for every format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tabfeed.errors import BadFileError, DuplicateColumnError, TabfeedError, UnreadableFileError
from tabfeed.io.source import Location

__all__ = ["bad_file", "reading", "refuse_duplicates", "refuse_empty"]

_REMEDY = 'Write it again, remove it, or pass on_bad_file="skip"'


def bad_file(
    location: Location, what: str, *, column: str | None = None, remedy: str = _REMEDY
) -> BadFileError:
    """The error for a damaged or foreign file: what is wrong with it, and what to do.

    Examples
    --------
    >>> import pyarrow.fs as pafs
    >>> print(bad_file(Location("a.csv", "a.csv", pafs.LocalFileSystem(), 0), "is empty"))
    a.csv is empty. Write it again, remove it, or pass on_bad_file="skip"
    """
    return BadFileError(f"{location.name} {what}. {remedy}", file=location.name, column=column)


@contextmanager
def reading(location: Location, *, decoding: bool = False) -> Iterator[None]:
    """Turn the operating system's errors into `UnreadableFileError` or `BadFileError`.

    Parameters
    ----------
    location
        The file.
    decoding
        Whether Arrow decodes meanwhile, whose complaints are ``OSError`` without a number.
    """
    try:
        yield
    except TabfeedError:
        raise
    except PermissionError as e:
        raise UnreadableFileError(f"{location.name} may not be read: {e.strerror or e}") from e
    except FileNotFoundError as e:
        raise UnreadableFileError(
            f"{location.name} was there when the dataset was opened and is gone now"
        ) from e
    except OSError as e:
        if (location.compressed or decoding) and not e.errno:  # not the system's, then
            raise bad_file(location, f"is cut short or damaged: {e}") from e
        raise UnreadableFileError(f"{location.name} cannot be read: {e}") from e


def refuse_empty(location: Location) -> None:
    """Raise `BadFileError` for a file of zero bytes."""
    if location.size == 0:
        raise bad_file(location, "is empty (0 bytes)")


def refuse_duplicates(location: Location, names: Sequence[str]) -> None:
    """Raise `DuplicateColumnError` if a name occurs twice."""
    if len(set(names)) == len(names):
        return
    twice = next(n for n in names if list(names).count(n) > 1)
    raise DuplicateColumnError(
        f"{location.name} has more than one column named {twice!r}; rename them: a column is "
        "found by its name"
    )
