"""The ``tabfeed`` command: thin calls into the library, for people.

Each file of this package holds one command or group of commands and nothing a program
would want; that is in the library. Libraries are imported inside the commands, so that
``--help`` answers at once.

What goes wrong on purpose (`tabfeed.errors`) is told in one sentence on stderr, with a hint
and exit status 1; ``--debug`` shows where it came from instead. Wrong usage exits with 2.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from tabfeed.cli import datagen
from tabfeed.cli.convert import convert_command
from tabfeed.cli.doctor import doctor_command
from tabfeed.cli.failures import Group
from tabfeed.cli.inspect import inspect_command
from tabfeed.cli.profile import SETTINGS, profile_command
from tabfeed.cli.rewrite import rewrite_command

__all__ = ["app", "main"]

app = typer.Typer(
    name="tabfeed",
    cls=Group,
    help="tabfeed feeds tables to models: make data, look at it, feed it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(datagen.app, name="datagen")
app.command("inspect")(inspect_command)
app.command("convert")(convert_command)
app.command("profile", context_settings=SETTINGS)(profile_command)
app.command("doctor")(doctor_command)
app.command("rewrite")(rewrite_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tabfeed {version('tabfeed')}")
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="On an error, show where it came from.")
    ] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Say what every command accepts; `Group` reads ``debug``."""


def main() -> None:
    """Run the command line."""
    app(prog_name="tabfeed")
