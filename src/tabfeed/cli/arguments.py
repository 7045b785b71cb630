"""Arguments and options that several commands share, and what their text means."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

__all__ = [
    "ENGINES",
    "Engine",
    "Out",
    "Overwrite",
    "Separator",
    "ShuffleOption",
    "separator",
    "source_of",
]

# Written out, since a Tab should not have to import Arrow.
ENGINES = ("parquet", "csv", "jsonl", "ipc", "avro", "tfrecord")


def _engines(incomplete: str) -> list[str]:
    return [name for name in ENGINES if name.startswith(incomplete)]


Out = Annotated[str, typer.Argument(metavar="OUT", help="The folder to write, or a URL.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help=f"The format, if names do not tell: {', '.join(ENGINES)}.",
        autocompletion=_engines,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(metavar="CHARACTER", help="CSV: what is between fields, such as ';' or '\\t'."),
]
ShuffleOption = Annotated[
    Literal["per_partition", "per_worker", "full"] | None,
    typer.Option(
        case_sensitive=False,
        metavar="HOW",
        help="How far rows move: per_partition, per_worker or full. They keep their order else.",
    ),
]


def source_of(paths: list[str]) -> str | list[str]:
    """One path as itself, for a folder or a glob; several as the list they are."""
    return paths[0] if len(paths) == 1 else paths


def separator(text: str | None) -> str | None:
    r"""What a shell user meant.

    Examples
    --------
    >>> separator(r"\t"), separator(";")
    ('\t', ';')
    """
    return None if text is None else text.encode().decode("unicode_escape")
