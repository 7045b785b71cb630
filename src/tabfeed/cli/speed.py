"""``tabfeed profile``, ``doctor``, ``rewrite``: what slows training, and files that read fast."""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tabfeed.cli.usage import (
    AsJson,
    Out,
    Overwrite,
    ParquetFiles,
    ShuffleOption,
    print_json,
    source_of,
)

if TYPE_CHECKING:
    from tabfeed.io import Dataset
    from tabfeed.profile import Profiler


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
    as_json: AsJson = False,
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
    from tabfeed.profile.collect.probe import array_pipeline

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

    from tabfeed.profile.report import show

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
    from tabfeed.profile import compare

    comparison = compare(paths)
    if as_json:
        print_json(comparison.to_dict())
    else:
        typer.echo(str(comparison))
    for path in save:
        typer.secho(f"saved {comparison.save(path)}", err=True)


def doctor_command(
    data: ParquetFiles,
    as_json: AsJson = False,
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
        print_json(diagnosis.to_dict())
    else:
        show(diagnosis, Console())
    if diagnosis.unreadable:
        raise typer.Exit(1)


def rewrite_command(
    data: ParquetFiles,
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
    as_json: AsJson = False,
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
        print_json(written.to_dict())
    else:
        show_rewritten(written, out, time.perf_counter() - start, Console())
