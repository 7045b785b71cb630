"""The hidden models predict the labels as well as the modules' docstrings state."""

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.datagen import outbrain_shaped, outbrain_tables
from tabfeed.datagen.criteo_shaped import score
from tabfeed.datagen.movielens_shaped import expected
from tests.datagen.test_criteo_shaped import arrays, auc
from tests.datagen.test_movielens_shaped import ratings


def test_the_best_ranking_of_clicks_is_as_good_as_stated() -> None:
    rows = arrays(200_000, seed=5)
    assert auc(rows["label"], score(rows, rows)) == pytest.approx(0.864, abs=0.004)  # type: ignore[arg-type]


def test_all_but_the_noise_of_ratings_has_the_error_stated() -> None:
    test = ratings(20_000, seed=1)
    known = expected((test["userId"] - 1).astype(np.int32), (test["movieId"] - 1).astype(np.int32))
    best = float(np.sqrt(np.mean((test["rating"] - np.clip(known, 0.5, 5)) ** 2)))
    assert best == pytest.approx(0.46, abs=0.02)


def test_ads_are_guessed_as_often_as_stated() -> None:
    sizes = outbrain_shaped.Sizes(20_000, 20_000, 10_000)
    ads, keep = outbrain_shaped.shown(sizes, 7, 0, 20_000)
    page, platform = (
        outbrain_shaped.pages(sizes, 7, 0, 20_000),
        outbrain_shaped.platforms(7, 0, 20_000),
    )
    guess = np.where(keep, outbrain_shaped.score(sizes, ads, page, platform), -np.inf).argmax(
        axis=1
    )
    tables = outbrain_tables(20_000, documents=20_000, ads=10_000, seed=7)["clicks"]
    clicks = pa.concat_tables(tables)
    clicked = np.zeros(keep.shape, np.int32)
    clicked[keep] = clicks["clicked"].to_numpy()
    assert (clicked.argmax(axis=1) == guess).mean() == pytest.approx(0.59, abs=0.015)
    assert (1 / keep.sum(axis=1)).mean() == pytest.approx(0.24, abs=0.01)
