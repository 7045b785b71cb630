"""``tabfeed doctor`` and ``tabfeed rewrite``: what slows reading, and files without it."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Literal

import typer

from tabfeed.cli.parameters import Out, Overwrite, ShuffleOption, source_of

__all__ = ["doctor_command", "rewrite_command"]


def doctor_command(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA", help="Parquet files, a folder, a glob or a URL.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    ranks: Annotated[
        int,
        typer.Option(metavar="N", help="Training processes that share the data, for skew."),
    ] = 8,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="About how long to read the sample.")
    ] = 5.0,
) -> None:
    """Find what slows the reading of Parquet files, and what each thing costs on this machine.

    A sample is written to a temporary folder as it is and with one thing changed at a time; a
    loader then reads all of them in turn. Exits with 1 if a file cannot be read.
    """
    from rich.console import Console

    from tabfeed.doctor import diagnose
    from tabfeed.doctor.report import show

    diagnosis = diagnose(source_of(data), ranks=ranks, seconds=seconds)
    if as_json:
        json.dump(diagnosis.to_dict(), sys.stdout, indent=2)
        print()
    else:
        show(diagnosis, Console())
    if diagnosis.unreadable:
        raise typer.Exit(1)


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
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the shuffle.")] = 0,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory for a full shuffle, such as 2GB."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out files that cannot be opened.")
    ] = False,
    overwrite: Overwrite = False,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="About how long to measure, twice.")
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write Parquet files again so that a loader reads them fast, and measure the gain.

    Streams the data; OUT appears only once complete.
    """
    from rich.console import Console

    from tabfeed.doctor import RewriteOptions, rewrite
    from tabfeed.doctor.rewriter import show_rewritten

    start = time.perf_counter()
    options = RewriteOptions(layout, row_group_rows, rows_per_file, shuffle, seed, memory_limit)
    written = rewrite(
        source_of(data), out, options, overwrite=overwrite, skip_bad=skip_bad, seconds=seconds
    )
    if as_json:
        json.dump(written.to_dict(), sys.stdout, indent=2)
        print()
    else:
        show_rewritten(written, out, time.perf_counter() - start, Console())
