from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tabfeed import Tags
from tabfeed.datagen import movielens, movielens_tables
from tabfeed.errors import ArgumentError

GENRES = {
    "Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller",
    "War", "Western",
}  # fmt: skip


def ratings(rows: int, *, seed: int = 0) -> dict[str, npt.NDArray[np.float64]]:
    table = pa.concat_tables(movielens_tables(rows, users=300, movies=200, seed=seed)["ratings"])
    return {name: table[name].to_numpy() for name in table.column_names}


def test_three_datasets_under_one_folder(tmp_path: Path) -> None:
    users, movies, rated = movielens(tmp_path, 2_000, users=50, movies=30)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["movies", "ratings", "users"]
    assert (users.num_rows, movies.num_rows, rated.num_rows) == (50, 30, 2_000)
    assert rated.schema.select_by_tag(Tags.TARGET).column_names == ["rating"]
    assert rated.schema.select_by_tag("user_id").column_names == ["userId"]
    assert rated.schema.select_by_tag("item_id").column_names == ["movieId"]
    assert movies.schema["genres"].dtype == pa.list_(pa.string())
    assert movies.schema["genres"].value_count == (1, 4)


def test_files_hold_what_tables_give(tmp_path: Path) -> None:
    data = movielens(tmp_path, 1_000, users=50, movies=30, files=3, row_group_size=100)
    made = movielens_tables(1_000, users=50, movies=30)
    for name, dataset in data._asdict().items():
        assert dataset.to_arrow().to_pylist() == pa.concat_tables(made[name]).to_pylist()


def test_users_and_movies_are_what_they_should_be() -> None:
    made = movielens_tables(10, users=500, movies=500)
    users = pa.concat_tables(made["users"]).to_pylist()
    movies = pa.concat_tables(made["movies"]).to_pylist()
    assert [u["userId"] for u in users] == list(range(1, 501))
    assert {u["gender"] for u in users} == {"F", "M"}
    assert {u["age"] for u in users} == {1, 18, 25, 35, 45, 50, 56}
    assert all(len(u["zipcode"]) == 5 and u["zipcode"].isdigit() for u in users)
    assert movies[0]["title"].startswith("Movie 1 (")
    assert {len(m["genres"]) for m in movies} == {1, 2, 3, 4}
    assert all(len(set(m["genres"])) == len(m["genres"]) for m in movies)
    assert {g for m in movies for g in m["genres"]} == GENRES


def test_users_and_movies_do_not_depend_on_the_seed() -> None:
    one, other = (
        movielens_tables(100, users=20, movies=9),
        movielens_tables(100, users=20, movies=9, seed=1),
    )
    assert next(one["users"]).equals(next(other["users"]))
    assert next(one["movies"]).equals(next(other["movies"]))
    assert not next(one["ratings"]).equals(next(other["ratings"]))


def test_ratings_are_half_stars_over_time() -> None:
    rows = ratings(20_000)
    assert np.unique(rows["rating"]).tolist() == [0.5 * i for i in range(1, 11)]
    assert (np.diff(rows["timestamp"]) >= 0).all()
    assert set(np.unique(rows["userId"])) == set(range(1, 301))
    assert rows["movieId"].min() == 1
    assert rows["movieId"].max() <= 200
    counts = np.bincount(rows["movieId"].astype(int))
    assert counts[1:11].mean() > 5 * counts[150:].mean()  # some movies everyone has seen


def test_what_one_seed_teaches_holds_on_another() -> None:
    train, test = ratings(60_000, seed=0), ratings(20_000, seed=1)
    mean = train["rating"].mean()

    def offsets(column: str, size: int) -> npt.NDArray[np.float64]:
        total = np.bincount(train[column], train["rating"] - mean, minlength=size + 1)
        return np.asarray(total / (5 + np.bincount(train[column], minlength=size + 1)))

    guess = mean + offsets("userId", 300)[test["userId"]] + offsets("movieId", 200)[test["movieId"]]
    error = float(np.sqrt(np.mean((test["rating"] - guess) ** 2)))
    assert error < 0.9 * test["rating"].std()


@pytest.mark.parametrize("name", ["rows", "users", "movies"])
def test_bad_arguments(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is 0"):
        movielens(tmp_path / "new", **{name: 0})  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
