"""``tabfeed convert``: write files of any format as Parquet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tabfeed.cli.inspect import human_bytes
from tabfeed.cli.parameters import (
    Engine,
    Out,
    Overwrite,
    Separator,
    ShuffleOption,
    separator,
    source_of,
)

if TYPE_CHECKING:
    from tabfeed.io import Dataset

__all__ = ["convert_command"]


def convert_command(
    source: Annotated[
        list[str],
        typer.Argument(metavar="IN", help="Files, a folder, a glob or a URL; any format."),
    ],
    out: Out,
    engine: Engine = None,
    sep: Separator = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Read only this column; may be repeated."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE", help="Such as tags=list<string>; may be repeated."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and list it.")
    ] = False,
    shuffle: ShuffleOption = None,
    files: Annotated[int | None, typer.Option(metavar="N", help="How many files to write.")] = None,
    row_group_size: Annotated[
        int | None, typer.Option(metavar="ROWS", help="Rows in a row group.")
    ] = None,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Write larger files that are read at the speed of a copy."),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write files of any format as Parquet, which reads much faster.

    Streams the data; OUT appears only once complete.
    """
    from tabfeed.io import Dataset

    start = time.perf_counter()
    dataset = Dataset(
        source_of(source),
        engine=engine,
        sep=separator(sep),
        columns=column or None,
        dtypes=_types(dtype or []),
        on_bad_file="skip" if skip_bad else "raise",
    )
    written = dataset.to_parquet(
        out,
        shuffle=shuffle,
        output_files=files,
        row_group_size=row_group_size,
        layout="fast" if fast else "compact",
        overwrite=overwrite,
    )
    _report(dataset, written, out, time.perf_counter() - start)


def _types(texts: list[str]) -> dict[str, str]:
    """``NAME=TYPE`` as a dict; a name may hold ``=``, a type may not."""
    pairs = {}
    for text in texts:
        name, found, dtype = text.rpartition("=")
        if not found or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=TYPE", param_hint="--dtype")
        pairs[name] = dtype
    return pairs


def _report(read: Dataset, written: Dataset, out: str, seconds: float) -> None:
    rows = written.num_rows
    sizes = [_size(read.files), _size(written.files)]
    typer.echo(
        f"{out}: {rows:,} rows of {len(written.column_names)} columns in "
        f"{len(written.files):,} files"
    )
    if all(sizes):
        typer.echo(f"{human_bytes(sizes[0])} became {human_bytes(sizes[1])}")
    typer.echo(f"converted in {seconds:.1f} s, {rows / seconds:,.0f} rows per second")
    for skipped in read.skipped:
        typer.secho(f"left out {skipped}", fg=typer.colors.YELLOW, err=True)


def _size(files: list[str]) -> int:
    """Bytes of local files; 0 if some are not local."""
    paths = [Path(f) for f in files]
    return sum(p.stat().st_size for p in paths) if all(p.exists() for p in paths) else 0
