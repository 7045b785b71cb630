"""A table on a page that a benchmark writes anew."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["put", "rows"]

_END = "<!-- to here -->"


def rows(*lines: Sequence[str]) -> str:
    """A table: its head, then its rows; the first column is words, the others are figures.

    Examples
    --------
    >>> print(rows(["what", "how much"], ["fit", "7 s"]))
    | what | how much |
    | --- | ---: |
    | fit | 7 s |
    """
    rule = ["---", *["---:"] * (len(lines[0]) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def put(page: str, script: str, table: str) -> str:
    """A page with this table in the place of the one that a script wrote there before.

    Examples
    --------
    >>> print(put("a <!-- x.py writes from here --> b <!-- to here --> c", "x.py", "| t |"))
    a <!-- x.py writes from here -->
    <BLANKLINE>
    | t |
    <BLANKLINE>
    <!-- to here --> c
    """
    before, begin, rest = page.partition(f"<!-- {script} writes from here -->")
    if not begin or _END not in rest:
        raise SystemExit(f"the page has no place for what {script} writes")
    after = rest.partition(_END)[2]
    return f"{before}{begin}\n\n{table}\n\n{_END}{after}"
