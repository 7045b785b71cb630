"""Film ratings shaped like MovieLens: users, movies with their genres, ratings over time.

Who a user is, what a movie is and how the one likes the other are hashed from their ids and
the same for every seed; the seed decides who rates what, when, and the noise. So ratings of another
seed are a test set for the same users and movies. A rating is 3.5, plus what the movie, the user,
and the user's and their age group's taste for its genres add, plus noise, rounded to half
stars. Predicting all but the noise has a root mean square error of 0.46;
the mean of all ratings has one of 0.82.

Given up: a pair of user and movie may be drawn twice, which a real log would not hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.datagen import draw
from tabfeed.datagen.recipe import FileLayout, Recipe, check_count, column, tables, write_all
from tabfeed.io import Dataset
from tabfeed.schema import ColumnSchema, Domain, Schema, Tags

GENRES = (
    "Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller",
    "War", "Western",
)  # fmt: skip
AGES = (1, 18, 25, 35, 45, 50, 56)  # each the youngest of its group
_AGE_WEIGHTS = (4.0, 18.0, 35.0, 20.0, 9.0, 8.0, 6.0)
_MOST_GENRES = 4
_MOST_IDS = 100_000_000
_FIRST, _SPAN = 956_703_932, 89_750_704  # seconds: April 2000, and almost three years

_TABLE = 2
_USER, _MOVIE, _TIME, _NOISE = range(4)
_S_AGE, _S_GENDER, _S_JOB, _S_ZIP, _S_GENRES, _S_COUNT, _S_STEPS, _S_YEAR = range(10, 18)
_S_QUALITY, _S_MILDNESS, _S_TASTE, _S_AGE_TASTE = range(20, 24)


class MovieLens(NamedTuple):
    """The three datasets that `movielens` writes."""

    users: Dataset
    movies: Dataset
    ratings: Dataset


def movielens(
    path: str | os.PathLike[str],
    rows: int = 1_000_000,
    *,
    users: int = 6_040,
    movies: int = 3_883,
    files: int = 1,
    row_group_size: int = 250_000,
    seed: int = 0,
    overwrite: bool = False,
) -> MovieLens:
    """Write ``users``, ``movies`` and ``ratings`` as Parquet datasets under one folder.

    Parameters
    ----------
    path
        The folder that gets the three folders, or a URL.
    rows
        How many ratings.
    users, movies
        How many of each; their ids begin at 1.
    files
        Files in each dataset; never more than it has rows.
    row_group_size
        Rows in a Parquet row group.
    seed
        Another seed gives other ratings by the same users of the same movies.
    overwrite
        Whether to replace existing datasets.

    Examples
    --------
    >>> import tempfile
    >>> data = movielens(tempfile.mkdtemp(), rows=500, users=20, movies=10)
    >>> data.ratings.num_rows, data.movies.schema["genres"]
    (500, genres: list<string> [categorical, item, list] not null 1..4 values)
    """
    recipes = _recipes(rows, users, movies, seed)
    return MovieLens(**write_all(recipes, path, FileLayout(files, row_group_size, overwrite)))


def movielens_tables(
    rows: int = 1_000_000,
    *,
    users: int = 6_040,
    movies: int = 3_883,
    row_group_size: int = 250_000,
    seed: int = 0,
) -> dict[str, Iterator[pa.Table]]:
    """The rows `movielens` writes, as tables by name, without files.

    Examples
    --------
    >>> movies = next(movielens_tables(500, users=20, movies=10)["movies"])
    >>> movies.slice(0, 1).to_pylist()
    [{'movieId': 1, 'title': 'Movie 1 (1998)', 'genres': ['Adventure']}]
    """
    layout = FileLayout(files=1, row_group_size=row_group_size)
    recipes = _recipes(rows, users, movies, seed)
    return {name: tables(recipe, layout) for name, recipe in recipes.items()}


def _recipes(rows: int, users: int, movies: int, seed: int) -> dict[str, Recipe]:
    check_count("rows", rows)
    check_count("users", users, most=_MOST_IDS)
    check_count("movies", movies, most=_MOST_IDS)
    check_count("seed", seed, least=0)
    ratings = partial(_ratings, (rows, users, movies), seed)
    return {
        "users": Recipe(users, _user_schema(users), _users, frozenset({"userId"})),
        "movies": Recipe(movies, _movie_schema(movies), _movies, frozenset({"movieId", "title"})),
        "ratings": Recipe(rows, _rating_schema(users, movies), ratings, frozenset({"timestamp"})),
    }


# -- schemas --------------------------------------------------------------------------


def _id(name: str, role: Tags, count: int) -> ColumnSchema:
    return column(name, "int32", role, Tags.ID, Tags.CATEGORICAL, domain=Domain(1, count, name))


def _user_schema(users: int) -> Schema:
    about = (Tags.USER, Tags.CATEGORICAL)
    return Schema(
        [
            _id("userId", Tags.USER, users),
            column("gender", "string", *about),
            column("age", "int32", *about, domain=Domain(1, 56)),
            column("occupation", "int32", *about, domain=Domain(0, 20)),
            column("zipcode", "string", *about),
        ]
    )


def _movie_schema(movies: int) -> Schema:
    genres = (Tags.ITEM, Tags.CATEGORICAL, Tags.LIST)
    return Schema(
        [
            _id("movieId", Tags.ITEM, movies),
            column("title", "string", Tags.ITEM, Tags.TEXT),
            column("genres", "list<string>", *genres, value_count=(1, _MOST_GENRES)),
        ]
    )


def _rating_schema(users: int, movies: int) -> Schema:
    return Schema(
        [
            _id("userId", Tags.USER, users),
            _id("movieId", Tags.ITEM, movies),
            column("rating", "float32", Tags.TARGET, Tags.REGRESSION, domain=Domain(0.5, 5.0)),
            column("timestamp", "int64", Tags.TIME),
        ]
    )


# -- making rows ----------------------------------------------------------------------


def _users(start: int, stop: int) -> dict[str, Any]:
    ids = np.arange(start, stop, dtype=np.int32)
    women = draw.chance(draw.hashed(ids, _S_GENDER), 0.28)
    digits = pa.array(draw.spread(draw.hashed(ids, _S_ZIP), 99_950) + np.int32(100_000))
    return {
        "userId": ids + np.int32(1),
        "gender": pa.array(["M", "F"]).take(pa.array(women.astype(np.int8))),
        "age": np.array(AGES, np.int32).take(_age_group(ids)),
        "occupation": draw.spread(draw.hashed(ids, _S_JOB), 21),
        "zipcode": pc.utf8_slice_codeunits(digits.cast(pa.string()), 1),
    }


def _movies(start: int, stop: int) -> dict[str, Any]:
    ids = np.arange(start, stop, dtype=np.int32)
    genres, keep = _genres(ids)
    year = np.int32(2000) - draw.log_uniform(draw.hashed(ids, _S_YEAR), 80, flat=10)
    return {
        "movieId": ids + np.int32(1),
        "title": draw.joined("Movie ", pa.array(ids + np.int32(1)), " (", pa.array(year), ")"),
        "genres": draw.ragged(pa.array(GENRES).take(pa.array(genres[keep])), keep),
    }


def _age_group(users: draw.Ids) -> draw.Ids:
    return draw.pick(draw.hashed(users, _S_AGE), _AGE_WEIGHTS)


def _genres(movies: draw.Ids) -> tuple[draw.Ids, draw.Mask]:
    """Four genres of each movie, no two alike, and which of them count."""
    count = 1 + draw.pick(draw.hashed(movies, _S_COUNT), (0.4, 0.35, 0.2, 0.05))
    steps = np.empty((len(movies), _MOST_GENRES), np.int32)
    steps[:, 0] = draw.spread(draw.hashed(movies, _S_GENRES), len(GENRES))
    for place in range(1, _MOST_GENRES):  # at most 5 on each time: never once around
        steps[:, place] = 1 + draw.spread(draw.hashed(movies, _S_STEPS + 100 * place), 5)
    genres = np.cumsum(steps, axis=1, dtype=np.int32) % np.int32(len(GENRES))
    return genres, np.arange(_MOST_GENRES) < count[:, None]


def _ratings(sizes: tuple[int, int, int], seed: int, start: int, stop: int) -> dict[str, Any]:
    def words(column: int) -> draw.Words:
        return draw.bits(seed, (_TABLE, column), start, stop)

    rows, users, movies = sizes
    user = draw.log_uniform(words(_USER), users, flat=max(1, users // 8))
    movie = draw.log_uniform(words(_MOVIE), movies, flat=max(1, movies // 60))
    liking = expected(user, movie) + np.float32(0.45) * draw.normal(words(_NOISE))
    since = np.arange(start, stop) + draw.uniform(words(_TIME))
    return {
        "userId": user + np.int32(1),
        "movieId": movie + np.int32(1),
        "rating": np.clip(np.rint(2 * liking) / np.float32(2), 0.5, 5.0).astype(np.float32),
        "timestamp": _FIRST + (since * (_SPAN / rows)).astype(np.int64),
    }


def expected(user: draw.Ids, movie: draw.Ids) -> draw.Floats:
    """The hidden model: a rating without noise and rounding; ids here begin at 0."""
    genres, keep = _genres(movie)
    age = _age_group(user)
    taste = np.zeros(len(user), np.float32)
    for place in range(_MOST_GENRES):
        genre = genres[:, place].astype(np.int64)
        own = draw.effect(user.astype(np.int64) * len(GENRES) + genre, _S_TASTE)
        shared = draw.effect(age * np.int64(len(GENRES)) + genre, _S_AGE_TASTE)
        taste += np.where(keep[:, place], own + shared, np.float32(0))
    taste *= np.float32(0.6) / keep.sum(axis=1).astype(np.float32)
    quality = np.float32(0.8) * draw.effect(movie, _S_QUALITY)
    return np.float32(3.5) + quality + np.float32(0.6) * draw.effect(user, _S_MILDNESS) + taste
