"""Film ratings as features, for the examples that learn from them.

The files are those of MovieLens as it is distributed (ml-25m, ml-latest-small and their like):
``ratings.csv`` with userId, movieId, rating and timestamp, and ``movies.csv`` with movieId, title
and genres, the genres of a film in one text with bars between them. Without ``--data`` such files
are made. One rating in ten, the same every time, is for validation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed import Dataset, Workflow, datagen, ops

IDS = ["userId", "movieId"]
LISTS = ["genres"]
LABEL = "rating"


@dataclass(frozen=True)
class Films:
    """Raw ratings, and what is known of the films."""

    train: Dataset
    valid: Dataset
    movies: Dataset


def options(description: str, folder: str, rows: int) -> argparse.ArgumentParser:
    """The arguments these examples share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, help="a folder with ratings.csv and movies.csv")
    parser.add_argument("--rows", type=int, default=rows, help="how many to make without --data")
    parser.add_argument("--folder", type=Path, default=Path("demo_data") / folder)
    parser.add_argument("--batch-size", type=int, default=1_024)
    parser.add_argument("--epochs", type=int, default=2)
    return parser


def open_films(args: argparse.Namespace) -> Films:
    """The files given, or made."""
    folder = args.data or write_files(args.folder / "raw", args.rows)
    ratings = Dataset(folder / "ratings.csv", dtypes={LABEL: "float32"})
    parts = [
        ratings.map(partial(_part, valid=valid), schema=ratings.schema, keeps_rows=False)
        for valid in (False, True)
    ]
    return Films(*parts, Dataset(folder / "movies.csv"))


def _part(table: pa.Table, *, valid: bool) -> pa.Table:
    """The rows for validation, or the others: by a hash of user and film, wherever they stand."""
    user, film = (table.column(n).to_numpy().astype(np.uint64) for n in IDS)
    with np.errstate(over="ignore"):
        mixed = (user * np.uint64(0x9E3779B97F4A7C15)) ^ (film * np.uint64(0xC2B2AE3D27D4EB4F))
    chosen = (mixed >> np.uint64(40)) % np.uint64(10) == 0
    return table.filter(pa.array(chosen if valid else ~chosen))


def make_workflow(movies: Dataset) -> Workflow:
    """Join the genres to each rating, cut them into lists, and turn everything into ids."""
    joined = IDS >> ops.JoinExternal(movies, on="movieId", columns_ext=["movieId", *LISTS])
    genres = joined[LISTS] >> ops.Tokenize(pattern=r"[^|]+")
    return Workflow((joined[IDS] + genres >> ops.Categorify()) + [LABEL])


def prepare(films: Films, folder: Path) -> Workflow:
    """Learn the workflow from the ratings to train on; write both parts, and the workflow."""
    workflow = make_workflow(films.movies).fit(films.train)
    for name, raw in (("train", films.train), ("valid", films.valid)):
        workflow.transform(raw).to_parquet(folder / name, overwrite=True)
    workflow.save(folder / "workflow")
    return workflow


def write_files(folder: Path, rows: int) -> Path:
    """Made-up ratings in MovieLens's own files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = datagen.movielens_tables(rows)
    ratings = _frame(made["ratings"])
    movies = _frame(made["movies"]).with_columns(pl.col("genres").list.join("|"))
    ratings.sort("userId", "timestamp").write_csv(folder / "ratings.csv")
    movies.write_csv(folder / "movies.csv")
    return folder


def _frame(tables: Iterable[pa.Table]) -> pl.DataFrame:
    frame = pl.from_arrow(pa.concat_tables(tables))
    assert isinstance(frame, pl.DataFrame)
    return frame
