"""Parameters that several commands share, and how help and errors are printed.

In Typer's help every option names its Python type; ``--json <bool>`` means nothing to a user. Here
flags and arguments have none, options name their value by a ``metavar``, and paragraphs are
wrapped at the width of the window.

An error is one sentence and a hint. Errors of `tabfeed.errors` and of the system are printed as
they are, with exit status 1; Python arguments in them are replaced by the command's options. Of any
other error its type is printed, and how to see the traceback. Wrong usage exits with 2, in the same
form: Typer would draw a box around it, below a usage line that seldom says what was wrong.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    DatasetExistsError,
    SchemaError,
    SourceNotFoundError,
    TabfeedError,
)


class ReadableCommand(TyperCommand):
    """A command whose help leaves out types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, shown readably."""
        return _readable(super().get_params(ctx))


class ReadableGroup(TyperGroup):
    """A group of commands whose help leaves out types."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, shown readably."""
        return _readable(super().get_params(ctx))


def _readable(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
        if isinstance(param, TyperArgument):  # a metavar would be its name, not its type
            vars(param)["display_type_rich"] = lambda ctx: None
    return params


def prose(docstring: str) -> str:
    r"""Put each paragraph of a docstring on one line.

    Examples
    --------
    >>> prose("Say it.\n\n    A sentence that goes\n    on.\n")
    'Say it.\n\nA sentence that goes on.'
    """
    return "\n\n".join(" ".join(p.split()) for p in inspect.cleandoc(docstring).split("\n\n"))


# -- errors ----------------------------------------------------------------------------------------

_ARGUMENTS = "tabfeed.arguments"
# Python arguments whose options have other names.
_NAMES = {
    "columns": "column",
    "dtypes": "dtype",
    "output_files": "files",
    "on_bad_file": "skip_bad",
}
_PYTHON = "names|header|null_values|newlines_in_values"  # those without an option
_NO_PATH = r"""(?<!/)(?!\w+=[^\s"']*/)"""  # a folder of a path may be called files=3
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]  # of the click that Typer brings
_HINTS: dict[type[Exception], str] = {
    DatasetExistsError: "--help after the command lists its options",
    BadFileError: "tabfeed convert and tabfeed rewrite leave out such files with --skip-bad",
    ArgumentError: "--help after the command lists its options",
    SourceNotFoundError: "give a file, a folder, a glob in quotes, or a URL such as s3://bucket/data",
    SchemaError: "tabfeed inspect, with the same files, shows the columns and their types",
}


class ErrorReportingGroup(ReadableGroup):
    """The top-level group of commands, which prints errors readably."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as typed, for the hint."""
        ctx.meta[_ARGUMENTS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except _USAGE_ERROR as error:
            _print_usage(error, ctx)
            raise typer.Exit(2) from error

    def invoke(self, ctx: Any) -> Any:
        """Run the command and print its error; with ``--debug`` the traceback."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except _USAGE_ERROR as error:
            _print_usage(error, ctx)
            raise typer.Exit(2) from error
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            sentence = _in_options(_sentence(error), ctx)
            _print(sentence, _hint(error, ctx.meta[_ARGUMENTS]))
            raise typer.Exit(1) from error


def _print(error: str, hint: str) -> None:
    typer.secho(f"error: {error}", fg=typer.colors.RED, err=True)
    typer.secho(f"hint: {hint}", err=True)


def _print_usage(error: Any, ctx: Any) -> None:
    """Print wrong usage; a group without a command has already printed its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return
    where = error.ctx or ctx
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    lists = "its commands" if hasattr(where.command, "commands") else "what it takes"
    _print(message[:1].lower() + message[1:], f"{where.command_path} --help lists {lists}")


def _sentence(error: Exception) -> str:
    if isinstance(error, TabfeedError):
        return "; ".join([str(error), *getattr(error, "__notes__", ())])
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return f"unexpected {type(error).__name__}: {error}"


def _in_options(sentence: str, ctx: Any) -> str:
    """Replace Python arguments in an error by options: the command's, or those of ``convert``."""
    command, convert = ctx.command, ctx.command.commands["convert"]
    for word in ctx.meta[_ARGUMENTS]:
        command = getattr(command, "commands", {}).get(word, command)
    own = {param.name for param in command.params}
    others = [param for param in convert.params if param.name not in own]
    for param in [*command.params, *others]:
        flags = [flag for flag in param.opts if flag.startswith("--")]
        if not flags:
            continue
        if param.name not in own:
            flags = [f"tabfeed convert {flag}" for flag in flags]
        for name in [param.name, *(long for long, short in _NAMES.items() if short == param.name)]:
            value = r"""(?:True|"skip")""" if param.is_flag else ""
            sentence = re.sub(
                rf"{_NO_PATH}\b{name}={value}", flags[0] + " " * (not param.is_flag), sentence
            )
            sentence = re.sub(rf"(^|; ){name} (?=is )", rf"\1{flags[0]} ", sentence)
    sentence = re.sub(rf"{_NO_PATH}\b((?:{_PYTHON})=\w*)", r"\1 (in Python, for Dataset)", sentence)
    sentence = re.sub(r"""(--\w+) \{"(\w+)": "([^"]+)"\}""", r"\1 \2=\3", sentence)  # a dict of one
    sentence = re.sub(r"(--\w+) \{'(\w+)': \.\.\.\}", r"\1 \2=TYPE", sentence)
    sentence = re.sub(r"(--[\w-]+) +(?=[,;]|$)", r"\1", sentence)
    return sentence.replace("  ", " ")


def _hint(error: Exception, arguments: list[str]) -> str:
    for kind, hint in _HINTS.items():
        if isinstance(error, kind):
            return hint
    return f"tabfeed --debug {shlex.join(arguments)} shows where it came from"


# A literal, so that shell completion doesn't import Arrow.
ENGINES = ("parquet", "csv", "jsonl", "ipc", "avro", "tfrecord")


def _engines(incomplete: str) -> list[str]:
    return [name for name in ENGINES if name.startswith(incomplete)]


Out = Annotated[str, typer.Argument(metavar="OUT", help="The folder to write, or a URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ParquetFiles = Annotated[
    list[str], typer.Argument(metavar="DATA", help="Parquet files, a folder, a glob or a URL.")
]
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


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2))


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
