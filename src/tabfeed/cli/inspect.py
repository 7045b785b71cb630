"""``tabfeed inspect``: what is in these files, as tables."""

from __future__ import annotations

import json
import posixpath
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tabfeed.cli.parameters import Engine, Separator, separator, source_of

if TYPE_CHECKING:
    from tabfeed.io.inspect import ColumnFacts, FileFacts, Inspection

__all__ = ["inspect_command"]

_MOST_FILES = 12
_MAIN_ROLES = ("target", "categorical", "continuous")
_SHORT = {"PLAIN_DICTIONARY": "dict", "RLE_DICTIONARY": "dict", "PLAIN": "plain"}


def inspect_command(
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="Files, a folder, a glob or a URL; any format."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    engine: Engine = None,
    sep: Separator = None,
) -> None:
    """Show schema, files, row groups, sizes, null counts and encodings.

    Of Parquet files only the footers are read, however large the data.
    """
    from tabfeed.io import Dataset
    from tabfeed.io.inspect import inspect

    facts = inspect(Dataset(source_of(data), engine=engine, sep=separator(sep)))
    if as_json:
        json.dump(facts.to_dict(), sys.stdout, indent=2)
        print()
        return
    console = Console()
    console.print(_headline(facts), _folder(facts), sep="\n", highlight=False)
    console.print(_columns_table(facts))
    console.print(_files_table(facts.files, _folder(facts)))
    if facts.index:
        names = ", ".join(facts.index)
        console.print(
            f"[yellow]left out:[/] {names}, a pandas index; name it in columns= to read it",
            highlight=False,
        )
    for reason in facts.skipped:
        console.print(f"[yellow]left out:[/] {reason}")


def _headline(facts: Inspection) -> str:
    rows = "rows not counted" if facts.rows is None else f"[bold]{facts.rows:,}[/] rows"
    stored = [f.stored_bytes for f in facts.files if f.stored_bytes is not None]
    on_disk = f", {human_bytes(sum(stored))} on disk" if stored else ""
    memory = facts.memory_bytes
    in_memory = "" if memory is None else f", {human_bytes(memory)} in memory"
    return (
        f"{rows}, [bold]{len(facts.columns)}[/] columns, {len(facts.files):,} files, "
        f"{facts.partitions:,} partitions{on_disk}{in_memory}"
    )


def _folder(facts: Inspection) -> str:
    return posixpath.dirname(posixpath.commonprefix([f.name for f in facts.files]))


def _columns_table(facts: Inspection) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for name in ("column", "type", "role"):
        table.add_column(name, overflow="fold")
    for name in ("values", "nulls", "stored", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("pages", overflow="fold")
    for column in facts.columns:
        table.add_row(*_column_row(column, facts.rows))
    return table


def _column_row(column: ColumnFacts, rows: int | None) -> list[Text]:
    stored = "" if column.stored_bytes is None else human_bytes(column.stored_bytes)
    cells = [
        column.name,
        column.dtype,
        _role(column.tags),
        column.values,
        _share(column.nulls, rows),
        stored,
        "" if column.memory_bytes is None else human_bytes(column.memory_bytes),
        _pages(column),
    ]
    return [Text(c) for c in cells]


def _role(tags: tuple[str, ...]) -> str:
    """The most important tag, and the number of others."""
    main = next((t for t in _MAIN_ROLES if t in tags), next(iter(tags), ""))
    return main if len(tags) < 2 else f"{main} +{len(tags) - 1}"


def _pages(column: ColumnFacts) -> str:
    """Encodings and codecs, abbreviated; "plain" is left out beside "dict"."""
    encodings = dict.fromkeys(_SHORT.get(e, e.lower()) for e in column.encodings)
    if "dict" in encodings:
        encodings.pop("plain", None)
    return " ".join((*encodings, *(c.lower() for c in column.codecs if c != "UNCOMPRESSED")))


def _share(nulls: int | None, rows: int | None) -> str:
    if nulls is None:
        return "?"
    if not nulls or not rows:
        return "0"
    return f"{nulls / rows:.1%}" if nulls / rows >= 0.001 else "<0.1%"


def _files_table(files: tuple[FileFacts, ...], folder: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    table.add_column("file", overflow="fold")
    for name in ("rows", "row groups", "rows in a group", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    for file in files[:_MOST_FILES]:
        name = file.name.removeprefix(folder).lstrip("/")
        size = "" if file.stored_bytes is None else human_bytes(file.stored_bytes)
        rows = "?" if file.rows is None else f"{file.rows:,}"
        table.add_row(Text(name), rows, f"{file.units:,}", _span(file), size)
    if len(files) > _MOST_FILES:
        table.add_row(f"... and {len(files) - _MOST_FILES:,} more", "", "", "", "")
    return table


def _span(file: FileFacts) -> str:
    low, high = file.smallest_unit, file.largest_unit
    if low is None or high is None:
        return "?"
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def human_bytes(count: int) -> str:
    """A size in bytes as readable text.

    Examples
    --------
    >>> human_bytes(999), human_bytes(1_500_000), human_bytes(26_843_545_600)
    ('999 B', '1.5 MB', '26.8 GB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
