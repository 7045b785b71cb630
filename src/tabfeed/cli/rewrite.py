"""``tabfeed rewrite``: the same rows in files that a loader reads fast."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tabfeed.cli.arguments import Out, Overwrite, ShuffleOption, source_of

if TYPE_CHECKING:
    from tabfeed.doctor import Rewritten

__all__ = ["rewrite_command"]


def rewrite_command(
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA", help="Parquet files, a folder, a glob or a URL."),
    ],
    out: Out,
    layout: Annotated[
        Literal["fast", "compact"],
        typer.Option(help="Plain pages that read at the speed of a copy, or small files."),
    ] = "fast",
    row_group_rows: Annotated[
        int | None,
        typer.Option(metavar="ROWS", help="Rows in a row group; about 64 MiB of them by default."),
    ] = None,
    rows_per_file: Annotated[
        int | None,
        typer.Option(metavar="ROWS", help="Rows in a file; eight row groups by default."),
    ] = None,
    shuffle: ShuffleOption = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the shuffle.")] = 0,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What a full shuffle may hold in memory, such as 2GB."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Go on without files that cannot be opened.")
    ] = False,
    overwrite: Overwrite = False,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="About how long to measure, twice.")
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write Parquet files again so that a loader reads them fast, and tell what was gained.

    The data stream by, and OUT appears when all of it is whole.
    """
    from tabfeed.doctor import RewriteOptions, rewrite

    start = time.perf_counter()
    options = RewriteOptions(layout, row_group_rows, rows_per_file, shuffle, seed, memory_limit)
    told = rewrite(
        source_of(data), out, options, overwrite=overwrite, skip_bad=skip_bad, seconds=seconds
    )
    if as_json:
        json.dump(told.to_dict(), sys.stdout, indent=2)
        print()
    else:
        _tell(told, out, time.perf_counter() - start)


def _tell(told: Rewritten, out: str, seconds: float) -> None:
    from rich.console import Console

    from tabfeed.doctor.terminal import show_rewritten

    show_rewritten(told, out, seconds, Console())
