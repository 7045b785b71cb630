"""Arguments and options that several commands share."""

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

# A literal, so that shell completion doesn't import Arrow.
ENGINES = ("parquet", "csv", "jsonl", "ipc", "avro", "tfrecord")


def _engines(incomplete: str) -> list[str]:
    return [name for name in ENGINES if name.startswith(incomplete)]


Out = Annotated[str, typer.Argument(metavar="OUT", help="The folder to write, or a URL.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset.")]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="FORMAT",
        help=f"The format, if file names don't show it: {', '.join(ENGINES)}.",
        autocompletion=_engines,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(metavar="CHARACTER", help="CSV: the field separator, such as ';' or '\\t'."),
]
ShuffleOption = Annotated[
    Literal["per_partition", "per_worker", "full"] | None,
    typer.Option(
        case_sensitive=False,
        metavar="HOW",
        help="How far rows move: per_partition, per_worker or full. Default: keep order.",
    ),
]


def source_of(paths: list[str]) -> str | list[str]:
    """A single path as a string, since it may be a folder or a glob; several as a list."""
    return paths[0] if len(paths) == 1 else paths


def separator(text: str | None) -> str | None:
    r"""A separator with its escapes resolved.

    Examples
    --------
    >>> separator(r"\t"), separator(";")
    ('\t', ';')
    """
    return None if text is None else text.encode().decode("unicode_escape")
