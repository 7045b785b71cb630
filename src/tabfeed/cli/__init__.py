"""The ``tabfeed`` command.

Commands are thin calls into the library. They import it when they run, so ``--help`` answers at
once.

An error is printed to stderr as one sentence and a hint, with exit status 1; ``--debug`` prints the
traceback instead. Wrong usage exits with 2, an interrupt with 130.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

import typer

from tabfeed.cli.data import convert_command, datagen_app, inspect_command
from tabfeed.cli.speed import SETTINGS, doctor_command, profile_command, rewrite_command
from tabfeed.cli.usage import ErrorReportingGroup, ReadableCommand, prose

__all__ = ["app", "main"]

app = typer.Typer(
    name="tabfeed",
    cls=ErrorReportingGroup,
    help="tabfeed feeds tables to models: inspect data, write it, find what slows training.",
    epilog="Tab completes commands and options after: tabfeed --install-completion",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(
    name: str,
    function: Callable[..., None],
    panel: str,
    *examples: str,
    settings: dict[str, Any] | None = None,
) -> None:
    lines = ["Examples:" if len(examples) > 1 else "Example:", *(f"  {e}" for e in examples)]
    app.command(
        name,
        cls=ReadableCommand,
        rich_help_panel=panel,
        help=prose(function.__doc__ or ""),
        epilog="\n".join(lines),
        context_settings=settings,
    )(function)


_add(
    "inspect",
    inspect_command,
    "Data",
    "tabfeed inspect raw",
    "tabfeed inspect 's3://bucket/day_*.parquet' --json",
)
_add(
    "convert",
    convert_command,
    "Data",
    "tabfeed convert 'logs/*.csv.gz' clicks --dtype 'tags=list<string>'",
    "tabfeed convert day_0 day_1 clicks --engine csv --sep '\\t' --shuffle full",
)
app.add_typer(datagen_app, name="datagen", rich_help_panel="Data")
_add(
    "profile",
    profile_command,
    "Speed",
    "tabfeed profile --save report.html train.py --epochs 1",
    "tabfeed profile clicks --model none",
    "tabfeed profile before.json after.json --save compared.html",
    settings=SETTINGS,
)
_add("doctor", doctor_command, "Speed", "tabfeed doctor clicks")
_add("rewrite", rewrite_command, "Speed", "tabfeed rewrite clicks clicks_fast --shuffle full")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tabfeed {version('tabfeed')}")
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="On an error, print the traceback.")
    ] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Declare the options of every command; `ErrorReportingGroup` reads ``debug``."""


def main() -> None:
    """Run the command line."""
    app(prog_name="tabfeed")
