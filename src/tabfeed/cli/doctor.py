"""``tabfeed doctor``: what in these files slows training."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from tabfeed.cli.arguments import source_of

__all__ = ["doctor_command"]


def doctor_command(
    data: Annotated[
        list[str], typer.Argument(metavar="DATA", help="Parquet files, a folder, a glob or a URL.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    ranks: Annotated[
        int,
        typer.Option(metavar="N", help="How many processes would share the data, for skew."),
    ] = 8,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="About how long to read the sample.")
    ] = 5.0,
) -> None:
    """Say what in Parquet files slows training, and what each thing costs on this machine.

    A sample is written to a temporary folder as it is and with one thing changed at a time, and
    all are read in turn as a loader reads. Exits with 1 if some file cannot be read.
    """
    from rich.console import Console

    from tabfeed.doctor import diagnose
    from tabfeed.doctor.terminal import show

    told = diagnose(source_of(data), ranks=ranks, seconds=seconds)
    if as_json:
        json.dump(told.to_dict(), sys.stdout, indent=2)
        print()
    else:
        show(told, Console())
    if told.unreadable:
        raise typer.Exit(1)
