r"""Where rows end in text whose quoted fields may hold line ends.

A quote opens a field only where a field starts: after a separator, a line end, or at the
very start; anywhere else it is a character like any other (``5" disk``). A doubled quote
inside a quoted field stands for one. These are the rules of Arrow's parser; whoever cuts
by other rules hands it half a row.

Text without quotes is cut by its last line end. Text with quotes is walked field by
quoted field, in Python: slow (about half a microsecond a quoted field), and needed only
for files read with ``newlines_in_values=True``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["first_row_end", "inside_quotes", "last_row_end"]


@lru_cache(maxsize=16)
def _quoted_field(sep: str) -> re.Pattern[bytes]:
    """A quoted field from its opening to its closing quote, or to the end if none closes it."""
    start = rb"(?:\A|(?<=[\r\n" + re.escape(sep.encode()) + rb"]))"
    return re.compile(start + rb'"[^"]*(?:""[^"]*)*(?P<closed>")?')


def _outside(text: bytes, sep: str) -> Iterator[tuple[int, int]]:
    """The stretches of text between quoted fields."""
    start = 0
    for field in _quoted_field(sep).finditer(text):
        yield start, field.start()
        start = field.end()
    yield start, len(text)


def first_row_end(text: bytes, sep: str) -> int:
    r"""Where the first row ends, its line end included; all of the text if none ends.

    Examples
    --------
    >>> first_row_end(b'1,"a\nb"\n2,c\n', ",")
    8
    """
    for start, end in _outside(text, sep):
        if (found := text.find(b"\n", start, end)) >= 0:
            return found + 1
    return len(text)


def last_row_end(text: bytes, sep: str) -> int:
    r"""Where the last whole row ends; 0 if none does.

    Examples
    --------
    >>> last_row_end(b'1,"a\nb"\n2,"c\n', ",")
    8
    """
    if b'"' not in text:
        return text.rfind(b"\n") + 1
    last = 0
    for start, end in _outside(text, sep):
        last = text.rfind(b"\n", start, end) + 1 or last
    return last


def inside_quotes(text: bytes, sep: str) -> bool:
    r"""Whether the text ends inside a quoted field.

    Examples
    --------
    >>> inside_quotes(b'1,"a\n', ","), inside_quotes(b'5" disk,1\n', ",")
    (True, False)
    """
    fields = _quoted_field(sep).finditer(text)
    return any(field["closed"] is None for field in fields)  # only the last one can be open
