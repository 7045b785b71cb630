"""``tabfeed inspect``, ``convert``, ``datagen``: look at data, write it as Parquet, make it up."""

from __future__ import annotations

import functools
import os
import posixpath
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tabfeed.cli.usage import (
    AsJson,
    Engine,
    Out,
    Overwrite,
    ReadableCommand,
    ReadableGroup,
    Separator,
    ShuffleOption,
    print_json,
    separator,
    source_of,
)
from tabfeed.display import megabytes

if TYPE_CHECKING:
    from tabfeed.io import Dataset
    from tabfeed.io.inspect import ColumnFacts, FileFacts, Inspection


_MOST_FILES = 12
_MAIN_ROLES = ("target", "categorical", "continuous")
_SHORT = {"PLAIN_DICTIONARY": "dict", "RLE_DICTIONARY": "dict", "PLAIN": "plain"}


def inspect_command(
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="Files, a folder, a glob or a URL; any format."),
    ],
    as_json: AsJson = False,
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
        print_json(facts.to_dict())
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
    on_disk = f", {megabytes(sum(stored))} on disk" if stored else ""
    memory = facts.memory_bytes
    in_memory = "" if memory is None else f", {megabytes(memory)} in memory"
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
    for c in facts.columns:
        sizes = ("" if n is None else megabytes(n) for n in (c.stored_bytes, c.memory_bytes))
        nulls = _share(c.nulls, facts.rows)
        cells = (c.name, c.dtype, _role(c.tags), c.values, nulls, *sizes, _pages(c))
        table.add_row(*(Text(cell) for cell in cells))
    return table


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
        size = "" if file.stored_bytes is None else megabytes(file.stored_bytes)
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


def convert_command(
    source: Annotated[
        list[str],
        typer.Argument(metavar="IN", help="Files, a folder, a glob or a URL; any format."),
    ],
    out: Out,
    engine: Engine = None,
    sep: Separator = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Read only this column; may be repeated."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE", help="Such as tags=list<string>; may be repeated."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and list it.")
    ] = False,
    shuffle: ShuffleOption = None,
    files: Annotated[int | None, typer.Option(metavar="N", help="How many files to write.")] = None,
    row_group_size: Annotated[
        int | None, typer.Option(metavar="ROWS", help="Rows in a row group.")
    ] = None,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Write larger files that are read at the speed of a copy."),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write files of any format as Parquet, which reads much faster.

    Streams the data; OUT appears only once complete.
    """
    from tabfeed.io import Dataset

    start = time.perf_counter()
    dataset = Dataset(
        source_of(source),
        engine=engine,
        sep=separator(sep),
        columns=column or None,
        dtypes=_types(dtype or []),
        on_bad_file="skip" if skip_bad else "raise",
    )
    written = dataset.to_parquet(
        out,
        shuffle=shuffle,
        output_files=files,
        row_group_size=row_group_size,
        layout="fast" if fast else "compact",
        overwrite=overwrite,
    )
    _report(dataset, written, out, time.perf_counter() - start)


def _types(texts: list[str]) -> dict[str, str]:
    """``NAME=TYPE`` as a dict; a name may hold ``=``, a type may not."""
    pairs = {}
    for text in texts:
        name, found, dtype = text.rpartition("=")
        if not found or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=TYPE", param_hint="--dtype")
        pairs[name] = dtype
    return pairs


def _report(read: Dataset, written: Dataset, out: str, seconds: float) -> None:
    rows = written.num_rows
    sizes = [_size(read.files), _size(written.files)]
    typer.echo(
        f"{out}: {rows:,} rows of {len(written.column_names)} columns in "
        f"{len(written.files):,} files"
    )
    if all(sizes):
        typer.echo(f"{megabytes(sizes[0])} became {megabytes(sizes[1])}")
    typer.echo(f"converted in {seconds:.1f} s, {rows / seconds:,.0f} rows per second")
    for skipped in read.skipped:
        typer.secho(f"left out {skipped}", fg=typer.colors.YELLOW, err=True)


def _size(files: list[str]) -> int:
    """Bytes of local files; 0 if some are not local."""
    paths = [Path(f) for f in files]
    return sum(p.stat().st_size for p in paths) if all(p.exists() for p in paths) else 0


datagen_app = typer.Typer(
    help="Write synthetic data as Parquet: seeded, the same bytes for the same options.",
    epilog="Example: tabfeed datagen criteo --rows 1_000_000 --raw clicks",
    cls=ReadableGroup,
    no_args_is_help=True,
)

Rows = Annotated[int, typer.Option(metavar="ROWS", help="How many; 1_000_000 is allowed.")]
Files = Annotated[int, typer.Option(metavar="N", help="Files in each dataset.")]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Another seed gives other rows of the same kind.")
]


def _kind(declared: Callable[..., None]) -> None:
    """Add a command that calls the function of this name in `tabfeed.datagen`.

    The signature is the command's options and the docstring its help. The function itself is
    imported when the command runs.
    """

    @functools.wraps(declared)
    def command(out: str, **options: Any) -> None:
        from tabfeed import datagen

        start = time.perf_counter()
        made = getattr(datagen, declared.__name__)(out, **options)
        seconds = time.perf_counter() - start
        several = made._asdict() if hasattr(made, "_asdict") else {"": made}
        total = 0
        for name, dataset in several.items():
            path = os.path.join(out, name) if name else out
            columns = len(dataset.column_names)
            typer.echo(f"{path}: {dataset.num_rows:,} rows of {columns} columns")
            total += dataset.num_rows
        typer.echo(f"made in {seconds:.1f} s, {total / seconds:,.0f} rows per second")

    datagen_app.command(cls=ReadableCommand)(command)


@_kind
def criteo(
    out: Out,
    rows: Rows = 1_000_000,
    raw: Annotated[
        bool, typer.Option("--raw", help="Hex strings, integers and nulls, as in a log.")
    ] = False,
    files: Files = 4,
    row_group_size: Annotated[
        int, typer.Option(metavar="ROWS", help="Rows in a Parquet row group.")
    ] = 250_000,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Click logs shaped like Criteo's: a label, 13 counts, 26 categories."""


@_kind
def movielens(
    out: Out,
    rows: Annotated[int, typer.Option(metavar="N", help="How many ratings.")] = 1_000_000,
    users: Annotated[int, typer.Option(metavar="N", help="How many users.")] = 6_040,
    movies: Annotated[int, typer.Option(metavar="N", help="How many movies.")] = 3_883,
    files: Files = 1,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Film ratings shaped like MovieLens: users, movies with genres, ratings."""


@_kind
def outbrain(
    out: Out,
    displays: Annotated[
        int, typer.Option(metavar="N", help="How many; each shows about 5 ads.")
    ] = 100_000,
    documents: Annotated[int, typer.Option(metavar="N", help="How many documents.")] = 20_000,
    ads: Annotated[int, typer.Option(metavar="N", help="How many ads.")] = 10_000,
    files: Files = 1,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Displays of ads and who clicked them, in the spirit of Outbrain's click data."""


@_kind
def reviews(
    out: Out,
    rows: Rows = 100_000,
    users: Annotated[int, typer.Option(metavar="N", help="How many users.")] = 5_000,
    items: Annotated[int, typer.Option(metavar="N", help="How many items.")] = 2_000,
    words: Annotated[int, typer.Option(metavar="N", help="Size of the vocabulary.")] = 5_000,
    files: Files = 4,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Review texts of users and of items, and ratings that follow from their words."""
