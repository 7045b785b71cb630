"""``tabfeed profile``: where did the time go, of a script or of a dataset alone."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tabfeed.io import Dataset
    from tabfeed.profile import Profiler

__all__ = ["SETTINGS", "profile_command"]

_FEWEST_STEPS = 10

# Whatever follows a script is the script's own, even where we have an option of that name.
SETTINGS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}


def profile_command(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT|DATA|RUN.json",
            help="A training script, a dataset, or saved profiles to compare.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help='For a dataset: "none" feeds it without training.')
    ] = None,
    save: Annotated[
        list[str] | None, typer.Option(help="Write the report: .html, .json or .txt; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    fail_under: Annotated[
        float | None,
        typer.Option(help="Exit with 1 if less than this percentage of the ceiling was reached."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="For a dataset: rows in a batch.")] = 65_536,
    shuffle: Annotated[bool, typer.Option(help="For a dataset: in random order.")] = True,
    seconds: Annotated[float, typer.Option(help="For a dataset: read it this long.")] = 5.0,
) -> None:
    """Say whether training waits for its data, and why.

    What follows a script on the line is the script's own:

    tabfeed profile --save report.html train.py --epochs 1

    Tabfeed loaders, torch DataLoaders and tf.data are watched in it.
    """
    rest = list(context.args)
    if rest and not target.endswith(".py") and not context.allow_interspersed_args:
        _read_again(context, [target, *rest])
    elif target.endswith(".json"):
        _compare([target, *rest], save or [], as_json)
    elif target.endswith(".py"):
        prof = _script(target, rest)
        _tell(prof, save or [], as_json)
        _check(prof, fail_under)
    else:
        _refuse(rest, fail_under)
        prof = _dataset(target, model, batch_size, shuffle, seconds)
        _tell(prof, save or [], as_json)


def _read_again(context: typer.Context, arguments: list[str]) -> None:
    """Only a script owns what follows it; for the rest options may stand anywhere."""
    again = context.command.make_context(
        context.info_name,
        arguments,
        parent=context.parent,
        allow_interspersed_args=True,
        ignore_unknown_options=False,
    )
    with again:
        context.command.invoke(again)


def _refuse(rest: Sequence[str], fail_under: float | None) -> None:
    if rest:
        raise typer.BadParameter(f"one dataset at a time; what is {' '.join(rest)}?")
    if fail_under is not None:
        raise typer.BadParameter("--fail-under needs a script: without a model nothing waits")


def _script(path: str, arguments: list[str]) -> Profiler:
    from tabfeed.errors import SourceNotFoundError
    from tabfeed.profile import Profiler
    from tabfeed.profile.auto import watching

    if not Path(path).is_file():
        raise SourceNotFoundError(f"there is no script {path}")
    prof = Profiler(Path(path).name)
    with prof, watching(prof), _as_main(path, arguments):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as e:
            if e.code not in (None, 0):
                raise
    return prof


@contextmanager
def _as_main(path: str, arguments: list[str]) -> Iterator[None]:
    """The command line and the search path a script would have on its own."""
    before, paths = sys.argv, list(sys.path)
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before, paths


def _dataset(
    path: str, model: str | None, batch_size: int, shuffle: bool, seconds: float
) -> Profiler:
    from tabfeed.errors import ArgumentError
    from tabfeed.io import Dataset
    from tabfeed.loader.options import LoaderOptions
    from tabfeed.profile import Profiler
    from tabfeed.profile.through import array_feed

    if model != "none":
        raise ArgumentError(
            f"{path} is no script, so there is no model to train: say --model none, not {model!r}, "
            "to feed it without one"
        )
    dataset = Dataset(path)
    options = LoaderOptions(batch_size=min(batch_size, dataset.num_rows or 1), shuffle=shuffle)
    feed = array_feed(dataset, options, _numbers(dataset))
    prof = Profiler(os.path.basename(path.rstrip("/")) or path, model=False)
    with prof:
        _drain(prof, feed, seconds)
    feed.close()
    return prof


def _numbers(dataset: Dataset) -> list[str]:
    """The columns a tensor can hold."""
    from tabfeed.errors import ArgumentError, LoaderError
    from tabfeed.loader.columns import numpy_dtype

    kept, left = [], []
    for column in dataset.schema:
        try:
            numpy_dtype(column.leaf_dtype, column.name)
            kept.append(column.name)
        except LoaderError:
            left.append(column.name)
    if not kept:
        raise ArgumentError(f"no column here is a number: {', '.join(left[:8])}")
    if left:
        typer.secho(f"left out, no tensor holds them: {', '.join(left)}", err=True)
    return kept


def _drain(prof: Profiler, feed: Any, seconds: float) -> None:
    """Pass after pass, until the time is over and there is something to say."""
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end or steps < _FEWEST_STEPS:
        for _ in prof.watch(feed):
            steps += 1
            if time.monotonic() > end and steps >= _FEWEST_STEPS:
                break


def _tell(prof: Profiler, save: Sequence[str], as_json: bool) -> None:
    from rich.console import Console

    from tabfeed.profile.terminal import show

    if not prof.run.steps.count:
        typer.secho(
            "no step was seen: the script iterates no tabfeed loader, torch DataLoader or "
            "tf.data.Dataset in its main thread; watch its batches with Profiler().watch(...)",
            err=True,
        )
    if as_json:
        typer.echo(prof.to_json())
    else:
        show(prof.run, Console())
    for path in save:
        typer.secho(f"saved {prof.save(path)}", err=True)


def _check(prof: Profiler, fail_under: float | None) -> None:
    if fail_under is None:
        return
    reached = 100 * prof.run.efficiency
    if not prof.run.steps.count or reached < fail_under:
        typer.secho(f"{reached:.1f} % is below --fail-under {fail_under:g}", fg="red", err=True)
        raise typer.Exit(1)


def _compare(paths: Sequence[str], save: Sequence[str], as_json: bool) -> None:
    import json

    from tabfeed.profile import compare

    comparison = compare(paths)
    typer.echo(json.dumps(comparison.to_dict(), indent=1) if as_json else str(comparison))
    for path in save:
        typer.secho(f"saved {comparison.save(path)}", err=True)
