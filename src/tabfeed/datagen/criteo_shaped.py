"""Click logs shaped like Criteo's: a label, 13 counts, 26 categories.

*Processed* is what a model reads after feature engineering: ids as int32, counts as
float32 of mean 0 and variance 1, no nulls, 160 bytes a row. *Raw* is what such a log
looks like before that: categories as 8-digit hex strings, counts as integers, nulls in both.
Row ``i`` of one form is row ``i`` of the other: same draws, same label.

Categories are drawn log-uniformly from ``0 .. cardinality - 1``, id 0 most often.

A click depends on 8 categories, 6 counts and one pair of categories through a model that is the
same for every seed: train on seed 0, test on seed 1. One row in four is a click, far more than in
real logs, so that small samples hold enough of both. Ranking by the hidden model's own probability,
the best possible, has an AUC of 0.864 (a little less in the raw form, where nulls hide some of its
inputs).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.datagen import draw
from tabfeed.datagen.recipe import (
    DICTIONARY_LIMIT,
    FileLayout,
    Recipe,
    check_count,
    column,
    tables,
    write,
)
from tabfeed.io import Dataset
from tabfeed.schema import ColumnSchema, Domain, Schema, Tags

CARDINALITIES = {
    "C1": 10_000_000, "C2": 29_612, "C3": 15_050, "C4": 7_190, "C5": 19_547, "C6": 4,
    "C7": 6_492, "C8": 1_317, "C9": 63, "C10": 10_000_000, "C11": 707_291, "C12": 218_510,
    "C13": 11, "C14": 2_209, "C15": 9_798, "C16": 72, "C17": 4, "C18": 954, "C19": 15,
    "C20": 10_000_000, "C21": 4_553_157, "C22": 10_000_000, "C23": 291_641, "C24": 10_904,
    "C25": 91, "C26": 35,
}  # fmt: skip
COUNTS = tuple(f"I{i}" for i in range(1, 14))
EMBEDDING_DIMENSION = 16

# Shares of nulls in the raw form.
_NULL_CATEGORY = {name: 0.01 * (i % 5) for i, name in enumerate(CARDINALITIES)}
_NULL_COUNT = {name: 0.05 * (i * 3 % 7) for i, name in enumerate(COUNTS)}

# The hidden model: what a category, a count and one pair of categories add to the score.
_CATEGORY_WEIGHTS = {
    "C2": 0.4, "C6": 0.8, "C9": 0.9, "C10": 0.3, "C14": 0.6, "C17": 0.6, "C20": 0.3, "C25": 0.9,
}  # fmt: skip
_COUNT_WEIGHTS = {"I1": 0.4, "I3": -0.35, "I5": 0.3, "I7": 0.25, "I11": -0.2, "I13": 0.15}
_PAIR_WEIGHT = 0.5
_BIAS = -0.8

_TABLE = 1  # the first part of every stream's key
_LABEL, _COUNT, _CATEGORY, _NULL = range(4)


def criteo(
    path: str | os.PathLike[str],
    rows: int,
    *,
    raw: bool = False,
    files: int = 4,
    row_group_size: int = 250_000,
    seed: int = 0,
    overwrite: bool = False,
) -> Dataset:
    """Write click logs shaped like Criteo's as Parquet.

    Parameters
    ----------
    path
        The folder to write, or a URL.
    rows
        How many.
    raw
        Hex strings, integers and nulls as in a log, rather than ids and floats for a model.
    files
        How many files; never more than there are rows.
    row_group_size
        Rows in a Parquet row group.
    seed
        Another seed gives other rows from the same hidden model.
    overwrite
        Whether to replace an existing dataset.

    Returns
    -------
    Dataset
        The files, opened. Its schema tags the label ``target``, I1 to I13 ``continuous``
        and C1 to C26 ``categorical``.

    Notes
    -----
    The rows depend on `seed` alone: fewer rows are the first of more, and neither `files`,
    `row_group_size` nor the number of threads changes them. Equal arguments give equal bytes
    as long as pyarrow is the same.

    Examples
    --------
    >>> import tempfile
    >>> dataset = criteo(tempfile.mkdtemp(), rows=1_000)
    >>> dataset.num_rows, len(dataset.schema.select_by_tag("categorical"))
    (1000, 26)
    """
    layout = FileLayout(files, row_group_size, overwrite)
    return write(recipe(rows, raw=raw, seed=seed), path, layout)


def criteo_tables(
    rows: int,
    *,
    raw: bool = False,
    row_group_size: int = 250_000,
    seed: int = 0,
) -> Iterator[pa.Table]:
    """The rows `criteo` writes, as tables of `row_group_size` rows, without files.

    Examples
    --------
    >>> [table.num_rows for table in criteo_tables(600, row_group_size=250)]
    [250, 250, 100]
    """
    layout = FileLayout(files=1, row_group_size=row_group_size)
    return tables(recipe(rows, raw=raw, seed=seed), layout)


def recipe(rows: int, *, raw: bool, seed: int) -> Recipe:
    """How to make these rows."""
    check_count("rows", rows)
    check_count("seed", seed, least=0)
    plain = {name for name, count in CARDINALITIES.items() if count > DICTIONARY_LIMIT}
    return Recipe(
        rows,
        _schema(raw),
        partial(_raw_columns if raw else _processed_columns, seed),
        frozenset(plain if raw else plain.union(COUNTS)),
    )


@cache
def _schema(raw: bool) -> Schema:
    number = "int32" if raw else "float32"
    target = (Tags.TARGET, Tags.BINARY, Tags.CLASSIFICATION)
    counts = (
        column(name, number, Tags.CONTINUOUS, nullable=raw and _NULL_COUNT[name] > 0)
        for name in COUNTS
    )
    categories = (_category_schema(name, raw) for name in CARDINALITIES)
    return Schema([column("label", number, *target, domain=Domain(0, 1)), *counts, *categories])


def _category_schema(name: str, raw: bool) -> ColumnSchema:
    if raw:
        return column(name, "string", Tags.CATEGORICAL, nullable=_NULL_CATEGORY[name] > 0)
    count = CARDINALITIES[name]
    size = (count, EMBEDDING_DIMENSION)
    return column(name, "int32", Tags.CATEGORICAL, domain=Domain(0, count - 1), embedding_size=size)


# -- making rows ----------------------------------------------------------------------


def _processed_columns(seed: int, start: int, stop: int) -> dict[str, Any]:
    bells, ids = _draw(seed, start, stop)
    counts = {name: draw.standard(bell) for name, bell in bells.items()}
    click = _clicks(seed, start, score(counts, ids))
    return {"label": click.astype(np.float32), **counts, **ids}


def _raw_columns(seed: int, start: int, stop: int) -> dict[str, Any]:
    bells, ids = _draw(seed, start, stop)
    counts = {name: draw.standard(bells[name]) for name in _COUNT_WEIGHTS}
    click = _clicks(seed, start, score(counts, ids))
    columns: dict[str, Any] = {"label": click.astype(np.int32)}
    for i, name in enumerate(COUNTS):
        nulls = _nulls(seed, (_COUNT, i), range(start, stop), _NULL_COUNT[name])
        columns[name] = pa.array(_count_table(i).take(bells[name] >> 6), mask=nulls)
    for i, name in enumerate(CARDINALITIES):
        nulls = _nulls(seed, (_CATEGORY, i), range(start, stop), _NULL_CATEGORY[name])
        columns[name] = draw.hex_strings(draw.mix(ids[name], salt=100 + i), nulls)
    return columns


def _draw(
    seed: int, start: int, stop: int
) -> tuple[dict[str, npt.NDArray[np.int32]], dict[str, draw.Ids]]:
    """What both forms are made from: the bells under the counts, and the ids."""
    bells = {
        name: draw.bell(draw.bits(seed, (_TABLE, _COUNT, i), start, stop))
        for i, name in enumerate(COUNTS)
    }
    ids = {
        name: draw.log_uniform(draw.bits(seed, (_TABLE, _CATEGORY, i), start, stop), count)
        for i, (name, count) in enumerate(CARDINALITIES.items())
    }
    return bells, ids


def _clicks(seed: int, start: int, scores: draw.Floats) -> draw.Mask:
    words = draw.bits(seed, (_TABLE, _LABEL), start, start + len(scores))
    click: draw.Mask = draw.uniform(words) < draw.link(scores)
    return click


def _nulls(seed: int, key: tuple[int, ...], rows: range, share: float) -> draw.Mask | None:
    """Which rows are null; None if none is."""
    if not share:
        return None
    return draw.chance(draw.bits(seed, (_TABLE, _NULL, *key), rows.start, rows.stop), share)


def score(counts: Mapping[str, draw.Floats], ids: Mapping[str, draw.Ids]) -> draw.Floats:
    """The hidden model: what `draw.link` turns into the probability of a click."""
    total: draw.Floats = np.full(len(ids["C1"]), _BIAS, np.float32)
    for name, weight in _COUNT_WEIGHTS.items():
        total += np.float32(weight) * counts[name]
    for salt, (name, weight) in enumerate(_CATEGORY_WEIGHTS.items(), start=1):
        total += np.float32(weight) * draw.effect(ids[name], salt)
    pair = ids["C6"] * np.int32(CARDINALITIES["C17"]) + ids["C17"]
    total += np.float32(_PAIR_WEIGHT) * draw.effect(pair, salt=50)
    return total


@cache
def _count_table(i: int) -> npt.NDArray[np.int32]:
    """A raw count for each of 4,096 steps of the bell; its logarithm is bell-shaped."""
    steps = draw.standard(np.arange(32, 4096 * 64, 64, dtype=np.int32)).astype(np.float64)
    centre, width = 0.5 + 0.6 * (i % 7), 0.8 + 0.15 * (i % 4)
    floor = -3 if COUNTS[i] == "I2" else -1  # one column has negative counts, as Criteo's
    return (np.exp(centre + width * steps) + 1).astype(np.int32) + np.int32(floor)
