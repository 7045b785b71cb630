"""Review texts for models with a tower for users and one for items.

A row holds a user's text (from all their reviews), an item's text (from all its reviews) and the
rating that the user gave the item. A text is 16 to 64 words, or up to `longest`, from a Zipfian
vocabulary of made-up words. Words come in pairs, one kind and one unkind; mild users and good items
have more kind words. The rating, 1 to 5, follows from the shares of kind words in the two texts,
plus noise.

Texts and words are hashed from ids and the same for every seed; the seed decides who
rates what, and the noise. Predicting all but the noise has a root mean square error of
0.54; the mean of all ratings has one of 1.23.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.datagen import draw
from tabfeed.datagen.recipe import FileLayout, Recipe, check_count, column, tables, write
from tabfeed.io import Dataset
from tabfeed.schema import Domain, Schema, Tags

FEWEST_WORDS, MOST_WORDS = 16, 64  # by default
_SYLLABLES = [c + v for c in "bdfgklmnprstvwz" for v in "aeiou"]
_MOST_IDS = 10_000_000
_MOST_PLACES = 2**31 - 1  # of words, in all texts of all users: they are numbered in 32 bits

_TABLE = 4
_USER, _ITEM, _NOISE = range(3)
_S_LENGTH, _S_TONE, _S_WORD, _S_KIND = range(60, 64)  # of users; of items 10 more


class _ReviewSizes(NamedTuple):
    users: int
    items: int
    words: int
    longest: int


def reviews(
    path: str | os.PathLike[str],
    rows: int = 100_000,
    *,
    users: int = 5_000,
    items: int = 2_000,
    words: int = 5_000,
    longest: int = MOST_WORDS,
    files: int = 4,
    row_group_size: int = 25_000,
    seed: int = 0,
    overwrite: bool = False,
) -> Dataset:
    """Write review texts and ratings as Parquet.

    Parameters
    ----------
    path
        The folder to write, or a URL.
    rows
        How many ratings.
    users, items
        How many of each; their ids begin at 1.
    words
        Size of the vocabulary.
    longest
        Words in the longest text.
    files
        How many files; never more than there are rows.
    row_group_size
        Rows in a Parquet row group; a row is about half a kilobyte, with longer texts more.
    seed
        Another seed gives other ratings by the same users of the same items.
    overwrite
        Whether to replace an existing dataset.

    Examples
    --------
    >>> import tempfile
    >>> dataset = reviews(tempfile.mkdtemp(), rows=200, users=20, items=10)
    >>> dataset.column_names
    ['user_id', 'item_id', 'user_text', 'item_text', 'rating']
    """
    recipe = _recipe(rows, _ReviewSizes(users, items, words, longest), seed)
    return write(recipe, path, FileLayout(files, row_group_size, overwrite))


def reviews_tables(
    rows: int = 100_000,
    *,
    users: int = 5_000,
    items: int = 2_000,
    words: int = 5_000,
    longest: int = MOST_WORDS,
    row_group_size: int = 25_000,
    seed: int = 0,
) -> Iterator[pa.Table]:
    """The rows `reviews` writes, as tables of `row_group_size` rows, without files.

    Examples
    --------
    >>> table = next(reviews_tables(200))
    >>> table["user_text"][0].as_py()[:24]
    'seba vano teba piba nuba'
    """
    layout = FileLayout(files=1, row_group_size=row_group_size)
    return tables(_recipe(rows, _ReviewSizes(users, items, words, longest), seed), layout)


def vocabulary(words: int) -> list[str]:
    """The words, the most frequent first; of each two the first is kind, the second is not.

    Examples
    --------
    >>> vocabulary(4)
    ['baba', 'diba', 'fuba', 'keba']
    """
    return [_word(i) for i in range(words)]


def _word(i: int) -> str:
    """Two syllables, three when those run out; never the same for another number."""
    base = len(_SYLLABLES)
    ending = "" if i < base * base else _SYLLABLES[i // (base * base) - 1]
    return _SYLLABLES[i * 7 % base] + _SYLLABLES[i // base % base] + ending


@cache
def _words(count: int) -> pa.Array:
    return pa.array(vocabulary(count))


def _recipe(rows: int, sizes: _ReviewSizes, seed: int) -> Recipe:
    check_count("rows", rows)
    check_count("users", sizes.users, most=_MOST_IDS)
    check_count("items", sizes.items, most=_MOST_IDS)
    check_count("words", sizes.words, least=2, most=400_000)
    most = _MOST_PLACES // max(sizes.users, sizes.items)
    check_count("longest", sizes.longest, least=FEWEST_WORDS, most=most)
    check_count("seed", seed, least=0)
    return Recipe(rows, _schema(sizes), partial(_columns, sizes, seed))


def _schema(sizes: _ReviewSizes) -> Schema:
    known = (Tags.ID, Tags.CATEGORICAL)
    return Schema(
        [
            column("user_id", "int32", Tags.USER, *known, domain=Domain(1, sizes.users)),
            column("item_id", "int32", Tags.ITEM, *known, domain=Domain(1, sizes.items)),
            column("user_text", "string", Tags.USER, Tags.TEXT),
            column("item_text", "string", Tags.ITEM, Tags.TEXT),
            column("rating", "float32", Tags.TARGET, Tags.REGRESSION, domain=Domain(1.0, 5.0)),
        ]
    )


def _columns(sizes: _ReviewSizes, seed: int, start: int, stop: int) -> dict[str, Any]:
    def drawn(column: int) -> draw.Words:
        return draw.bits(seed, (_TABLE, column), start, stop)

    user = draw.log_uniform(drawn(_USER), sizes.users, flat=max(1, sizes.users // 8))
    item = draw.log_uniform(drawn(_ITEM), sizes.items, flat=max(1, sizes.items // 20))
    user_text, mild = _texts(user, sizes, side=0)
    item_text, good = _texts(item, sizes, side=10)
    liking = expected(mild, good) + np.float32(0.5) * draw.normal(drawn(_NOISE))
    return {
        "user_id": user + np.int32(1),
        "item_id": item + np.int32(1),
        "user_text": user_text,
        "item_text": item_text,
        "rating": np.clip(np.rint(liking), 1, 5).astype(np.float32),
    }


def expected(mild: draw.Floats, good: draw.Floats) -> draw.Floats:
    """The hidden model: a rating without noise, from the shares of kind words in the two texts."""
    return (
        np.float32(3.2)
        + np.float32(3) * (mild - np.float32(0.5))
        + np.float32(4) * (good - np.float32(0.5))
    )


def _texts(ids: draw.Ids, sizes: _ReviewSizes, *, side: int) -> tuple[pa.Array, draw.Floats]:
    """The text of each id, and the share of kind words in it."""
    once, back = np.unique(ids, return_inverse=True)
    length = FEWEST_WORDS + draw.spread(
        draw.hashed(once, _S_LENGTH + side), sizes.longest - FEWEST_WORDS + 1
    )
    keep = np.arange(sizes.longest) < length[:, None]
    word, kind = _chosen(once, sizes, side)
    text = pc.binary_join(draw.ragged(_words(sizes.words).take(pa.array(word[keep])), keep), " ")
    share = (kind & keep).sum(axis=1).astype(np.float32) / length.astype(np.float32)
    return text.take(pa.array(back)), share[back]


def _chosen(ids: draw.Ids, sizes: _ReviewSizes, side: int) -> tuple[draw.Ids, draw.Mask]:
    """A word for each place of each id's text, and whether it is a kind one."""
    longest = sizes.longest
    places = ids[:, None] * np.int32(longest) + np.arange(longest, dtype=np.int32)
    pair = draw.log_uniform(draw.hashed(places, _S_WORD + side), sizes.words // 2)
    tone = np.float32(0.5) + np.float32(0.4) * draw.effect(ids, _S_TONE + side)
    kind = draw.uniform(draw.hashed(places, _S_KIND + side)) < tone[:, None]
    return np.int32(2) * pair + (~kind).astype(np.int32), kind
