"""What goes wrong while a file is read, as tabfeed's own errors.

Arrow reports a vanished file, a forbidden one and a damaged compressed stream all as
``OSError``. The difference matters to a user (fix the permissions, or write the file
again) and to ``on_bad_file="skip"``, so it is told apart here, once for every format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tabfeed.errors import (
    BadFileError,
    DuplicateColumnError,
    SchemaError,
    TabfeedError,
    UnreadableFileError,
)
from tabfeed.io.storage.file_ref import FileRef
from tabfeed.io.storage.retry import reason, remedy

__all__ = [
    "bad_file",
    "claims_more_than",
    "reading",
    "refuse_duplicates",
    "refuse_empty",
    "refuse_names",
]

_REMEDY = 'Write it again, remove it, or pass on_bad_file="skip"'


def bad_file(
    ref: FileRef, what: str, *, column: str | None = None, remedy: str = _REMEDY
) -> BadFileError:
    """The error for a damaged or foreign file: what is wrong with it, and what to do.

    Examples
    --------
    >>> import pyarrow.fs as pafs
    >>> print(bad_file(FileRef("a.csv", "a.csv", pafs.LocalFileSystem(), 0), "is empty"))
    a.csv is empty. Write it again, remove it, or pass on_bad_file="skip"
    """
    return BadFileError(f"{ref.name} {what}. {remedy}", file=ref.name, column=column)


@contextmanager
def reading(ref: FileRef, *, decoding: bool = False) -> Iterator[None]:
    """Turn the operating system's errors into `UnreadableFileError` or `BadFileError`.

    Parameters
    ----------
    ref
        The file.
    decoding
        Whether Arrow decodes meanwhile, whose complaints are ``OSError`` without a number.
    """
    try:
        yield
        ref.check()
    except TabfeedError as e:
        if isinstance(e, BadFileError):
            _confirm(ref)  # what looks like damage may be another file
        raise
    except PermissionError as e:
        raise UnreadableFileError(f"{ref.name} may not be read: {reason(e)}. {remedy(e)}") from e
    except FileNotFoundError as e:
        raise UnreadableFileError(
            f"{ref.name} was there when the dataset was opened and is gone now"
        ) from e
    except OSError as e:
        if (ref.compressed or decoding) and not e.errno:  # not the system's, then
            raise bad_file(ref, f"is cut short or damaged: {e}") from e
        raise UnreadableFileError(f"{ref.name} cannot be read: {reason(e)}. {remedy(e)}") from e


def _confirm(ref: FileRef) -> None:
    if ref.remote is None:
        ref.check()
    elif ref.tag:
        from tabfeed.io.storage.fetch import version_of

        version_of(ref)


def claims_more_than(error: MemoryError, nbytes: int) -> bool:
    """Whether Arrow wanted more memory at once than a sound file can ask for.

    Examples
    --------
    >>> claims_more_than(MemoryError("malloc of size 1152921504606846976 failed"), 2**40)
    True
    >>> claims_more_than(MemoryError("capacity too large"), 2**40)
    True
    """
    if "capacity too large" in str(error):  # more than an address can hold
        return True
    size = re.search(r"of size (\d+)", str(error))
    return size is not None and int(size[1]) > nbytes


def refuse_empty(ref: FileRef) -> None:
    """Raise `BadFileError` for a file of zero bytes."""
    if ref.size == 0:
        raise bad_file(ref, "is empty (0 bytes)")


def refuse_duplicates(ref: FileRef, names: Sequence[str]) -> None:
    """Raise `DuplicateColumnError` if a name occurs twice."""
    if len(set(names)) == len(names):
        return
    twice = next(n for n in names if list(names).count(n) > 1)
    raise DuplicateColumnError(
        f"{ref.name} has more than one column named {twice!r}; rename them: a column is "
        "found by its name"
    )


def refuse_names(ref: FileRef, names: Sequence[str]) -> None:
    """Refuse a file whose columns cannot all be found by their names, or that has none."""
    if not names:
        raise bad_file(ref, "has no columns, so there is nothing to read")
    if "" in names:
        raise SchemaError(
            f"{ref.name} has a column without a name, as column {list(names).index('')} "
            "(counted from 0); write the file again with a name for it: a column is found by its "
            "name"
        )
    refuse_duplicates(ref, names)
