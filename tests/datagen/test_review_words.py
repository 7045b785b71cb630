"""The vocabulary of made-up words, and what its words do."""

from collections import Counter

import numpy as np
import pyarrow as pa

from tabfeed.datagen.review_texts import vocabulary
from tests.datagen.test_review_texts import made


def test_texts_are_16_to_64_words_of_the_vocabulary() -> None:
    texts = made()["user_text"].to_pylist()
    lengths = {len(text.split(" ")) for text in texts}
    assert min(lengths) >= 16
    assert max(lengths) <= 64
    assert len(lengths) > 40
    assert {word for text in texts for word in text.split(" ")} <= set(vocabulary(500))


def test_few_words_are_frequent_and_most_are_rare() -> None:
    counts = Counter(" ".join(made()["item_text"].to_pylist()).split(" "))
    rank = {word: i for i, word in enumerate(vocabulary(500))}
    frequent = sum(n for word, n in counts.items() if rank[word] < 10)
    rare = sum(n for word, n in counts.items() if rank[word] >= 250)
    assert frequent > 2 * rare > 0


def test_no_two_words_are_alike() -> None:
    assert len(set(vocabulary(400_000))) == 400_000


def bags(table: pa.Table) -> np.ndarray:
    """The share of each of the 100 most frequent words in each row's two texts."""
    rank = {word: i for i, word in enumerate(vocabulary(100))}
    found = np.zeros((table.num_rows, 201))
    found[:, 200] = 1
    for offset, column in ((0, "user_text"), (100, "item_text")):
        for row, text in enumerate(table[column].to_pylist()):
            words = text.split(" ")
            for word in words:
                if word in rank:
                    found[row, offset + rank[word]] += 1 / len(words)
    return found


def test_ratings_follow_from_words() -> None:
    train, test = made(6_000), made(2_000, seed=1)
    weights, *_ = np.linalg.lstsq(bags(train), train["rating"].to_numpy(), rcond=None)
    rating = test["rating"].to_numpy()
    error = np.sqrt(np.mean((bags(test) @ weights - rating) ** 2))
    assert np.unique(rating).tolist() == [1, 2, 3, 4, 5]
    assert error < 0.8 * rating.std()
