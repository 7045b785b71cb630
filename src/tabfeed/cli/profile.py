"""``tabfeed profile``: where the time of a training script, or of loading a dataset, goes."""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
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
_INTERRUPTED = 130
_FORMS = (".html", ".json", ".txt")

# Arguments after a script belong to the script, even if an option has the same name.
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
        str | None,
        typer.Option(metavar="none", help="For a dataset: load it without training."),
    ] = None,
    save: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Write the report: .html, .json or .txt; may be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    fail_under: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="Exit with 1 if the run reached less of its ceiling."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(metavar="ROWS", help="For a dataset: rows per batch.")
    ] = 65_536,
    shuffle: Annotated[bool, typer.Option(help="For a dataset: in random order.")] = True,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="For a dataset: how long to read it.")
    ] = 5.0,
) -> None:
    """Measure whether training waits for its data, and why.

    In a script, tabfeed loaders, torch DataLoaders and tf.data are watched. Arguments after the
    script are passed to it.
    """
    rest = list(context.args)
    _check_paths(save or [])
    if rest and not target.endswith(".py") and not context.allow_interspersed_args:
        _read_again(context, [target, *rest])
    elif target.endswith(".json"):
        _compare([target, *rest], save or [], as_json)
    elif target.endswith(".py"):
        prof, finished = _script(target, rest)
        _tell(prof, save or [], as_json)
        if not finished:
            raise typer.Exit(_INTERRUPTED)
        _check(prof, fail_under)
    else:
        _refuse(rest, fail_under)
        prof = _dataset(target, model, batch_size, shuffle, seconds)
        _tell(prof, save or [], as_json)


def _read_again(context: typer.Context, arguments: list[str]) -> None:
    """Parse again with options allowed anywhere; only after a script they belong to the script."""
    again = context.command.make_context(
        context.info_name,
        arguments,
        parent=context.parent,
        allow_interspersed_args=True,
        ignore_unknown_options=False,
    )
    with again:
        context.command.invoke(again)


def _check_paths(save: Sequence[str]) -> None:
    """Check the paths before the run, since a failure after it would lose the results."""
    for path in save:
        if Path(path).suffix not in _FORMS:
            message = f"{path} must end in {', '.join(_FORMS)}"
            raise typer.BadParameter(message, param_hint="--save")
        if not Path(path).parent.is_dir():
            message = f"there is no folder {Path(path).parent} to write {path} in"
            raise typer.BadParameter(message, param_hint="--save")


def _refuse(rest: Sequence[str], fail_under: float | None) -> None:
    if rest:
        raise typer.BadParameter(f"only one dataset can be given; got {' '.join(rest)} too")
    if fail_under is not None:
        raise typer.BadParameter("--fail-under needs a script, since it compares to a model")


def _script(path: str, arguments: list[str]) -> tuple[Profiler, bool]:
    """Profile a script; returns also whether it ran to its end."""
    from tabfeed.errors import SourceNotFoundError
    from tabfeed.profile import Profiler
    from tabfeed.profile.script import watching

    if not Path(path).is_file():
        raise SourceNotFoundError(f"there is no script {path}")
    prof = Profiler(Path(path).name)
    with prof, watching(prof), _as_main(path, arguments):
        finished = _run_script(path)
    return prof, finished


def _run_script(path: str) -> bool:
    """Run a script; its errors are printed as Python does, without the frames above it."""
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as e:
        if e.code not in (None, 0):
            raise
    except KeyboardInterrupt:
        typer.secho("interrupted; this is the profile so far", fg="yellow", err=True)
        return False
    except Exception as e:
        at = e.__traceback__
        while at is not None and at.tb_frame.f_code.co_filename != path:
            at = at.tb_next
        traceback.print_exception(type(e), e, at or e.__traceback__)
        raise typer.Exit(1) from e
    return True


@contextmanager
def _as_main(path: str, arguments: list[str]) -> Iterator[None]:
    """Set sys.argv and sys.path as for a script run on its own."""
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
    from tabfeed.profile.collect.limits import array_pipeline

    if model != "none":
        given = "" if model is None else f", not {model!r},"
        raise ArgumentError(
            f"{path} is not a script, so there is no model to train: use --model none{given} to "
            "load it without one"
        )
    dataset = Dataset(path)
    options = LoaderOptions(batch_size=min(batch_size, dataset.num_rows or 1), shuffle=shuffle)
    state = array_pipeline(dataset, options, _numbers(dataset)).start()
    prof = Profiler(os.path.basename(path.rstrip("/")) or path, model=False)
    with prof:
        _drain(prof, state, seconds)
    state.close()
    return prof


def _numbers(dataset: Dataset) -> list[str]:
    """The columns a tensor can hold."""
    from tabfeed.errors import ArgumentError, LoaderError
    from tabfeed.loader.read.arrow_columns import numpy_dtype

    kept, left = [], []
    for column in dataset.schema:
        try:
            numpy_dtype(column.leaf_dtype, column.name)
            kept.append(column.name)
        except LoaderError:
            left.append(column.name)
    if not kept:
        raise ArgumentError(f"no column holds numbers: {', '.join(left[:8])}")
    if left:
        typer.secho(f"left out, no tensor can hold them: {', '.join(left)}", err=True)
    return kept


def _drain(prof: Profiler, state: Any, seconds: float) -> None:
    """Read epoch after epoch until time is up, and for at least a few steps."""
    end, steps = time.monotonic() + seconds, 0
    while time.monotonic() < end or steps < _FEWEST_STEPS:
        for _ in prof.watch(state):
            steps += 1
            if time.monotonic() > end and steps >= _FEWEST_STEPS:
                break


def _tell(prof: Profiler, save: Sequence[str], as_json: bool) -> None:
    from rich.console import Console

    from tabfeed.profile.report.terminal import show

    if not prof.run.steps.count:
        typer.secho(
            "no steps: the script iterates no tabfeed loader, torch DataLoader or tf.data.Dataset "
            "in its main thread; watch its batches with Profiler().watch(...)",
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
