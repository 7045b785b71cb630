"""``tabfeed datagen``: write synthetic data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from tabfeed.cli.messages import ReadableCommand, ReadableGroup
from tabfeed.cli.parameters import Out, Overwrite

if TYPE_CHECKING:
    from tabfeed.io import Dataset

__all__ = ["app"]

app = typer.Typer(
    help="Write synthetic data as Parquet: seeded, the same bytes for the same options.",
    epilog="Example: tabfeed datagen criteo --rows 1_000_000 --raw clicks",
    cls=ReadableGroup,
    no_args_is_help=True,
)

Rows = Annotated[int, typer.Option(metavar="ROWS", help="How many; 1_000_000 is allowed.")]
Files = Annotated[int, typer.Option(metavar="N", help="Files in each dataset.")]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Another seed gives other rows of the same kind.")
]
GroupSize = Annotated[int, typer.Option(metavar="ROWS", help="Rows in a Parquet row group.")]


@app.command(cls=ReadableCommand)
def criteo(
    out: Out,
    rows: Rows = 1_000_000,
    raw: Annotated[
        bool, typer.Option("--raw", help="Hex strings, integers and nulls, as in a log.")
    ] = False,
    files: Files = 4,
    row_group_size: GroupSize = 250_000,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Click logs shaped like Criteo's: a label, 13 counts, 26 categories."""
    from tabfeed import datagen

    _run(
        lambda: {
            out: datagen.criteo(
                out,
                rows,
                raw=raw,
                files=files,
                row_group_size=row_group_size,
                seed=seed,
                overwrite=overwrite,
            )
        }
    )


@app.command(cls=ReadableCommand)
def movielens(
    out: Out,
    rows: Annotated[int, typer.Option(metavar="N", help="How many ratings.")] = 1_000_000,
    users: Annotated[int, typer.Option(metavar="N", help="How many users.")] = 6_040,
    movies: Annotated[int, typer.Option(metavar="N", help="How many movies.")] = 3_883,
    files: Files = 1,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Film ratings shaped like MovieLens: users, movies with genres, ratings."""
    from tabfeed import datagen

    def make() -> Mapping[str, Dataset]:
        data = datagen.movielens(
            out, rows, users=users, movies=movies, files=files, seed=seed, overwrite=overwrite
        )
        return _by_path(out, data._asdict())

    _run(make)


@app.command(cls=ReadableCommand)
def outbrain(
    out: Out,
    displays: Annotated[
        int, typer.Option(metavar="N", help="How many; each shows about 5 ads.")
    ] = 100_000,
    documents: Annotated[int, typer.Option(metavar="N", help="How many documents.")] = 20_000,
    ads: Annotated[int, typer.Option(metavar="N", help="How many ads.")] = 10_000,
    files: Files = 1,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Displays of ads and who clicked them, in the spirit of Outbrain's click data."""
    from tabfeed import datagen

    def make() -> Mapping[str, Dataset]:
        data = datagen.outbrain(
            out, displays, documents=documents, ads=ads, files=files, seed=seed, overwrite=overwrite
        )
        return _by_path(out, data._asdict())

    _run(make)


@app.command(cls=ReadableCommand)
def reviews(
    out: Out,
    rows: Rows = 100_000,
    users: Annotated[int, typer.Option(metavar="N", help="How many users.")] = 5_000,
    items: Annotated[int, typer.Option(metavar="N", help="How many items.")] = 2_000,
    words: Annotated[int, typer.Option(metavar="N", help="Size of the vocabulary.")] = 5_000,
    files: Files = 4,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Review texts of users and of items, and ratings that follow from their words."""
    from tabfeed import datagen

    _run(
        lambda: {
            out: datagen.reviews(
                out,
                rows,
                users=users,
                items=items,
                words=words,
                files=files,
                seed=seed,
                overwrite=overwrite,
            )
        }
    )


def _by_path(out: str, datasets: Mapping[str, Dataset]) -> dict[str, Dataset]:
    return {os.path.join(out, name): dataset for name, dataset in datasets.items()}


def _run(make: Callable[[], Mapping[str, Dataset]]) -> None:
    """Make the datasets and print what was written."""
    start = time.perf_counter()
    made = make()
    seconds = time.perf_counter() - start
    total = sum(dataset.num_rows for dataset in made.values())
    for path, dataset in made.items():
        columns = len(dataset.column_names)
        typer.echo(f"{path}: {dataset.num_rows:,} rows of {columns} columns")
    typer.echo(f"made in {seconds:.1f} s, {total / seconds:,.0f} rows per second")
