from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.datagen import reviews, reviews_tables
from tabfeed.datagen.review_texts import vocabulary
from tabfeed.errors import ArgumentError
from tabfeed.schema import Tags


def made(rows: int = 3_000, *, seed: int = 0) -> pa.Table:
    return pa.concat_tables(reviews_tables(rows, users=300, items=100, words=500, seed=seed))


def test_schema_says_what_is_text_and_what_is_asked(tmp_path: Path) -> None:
    schema = reviews(tmp_path, 100).schema
    assert schema.select_by_tag(Tags.TARGET).column_names == ["rating"]
    assert schema.select_by_tag(Tags.TEXT).column_names == ["user_text", "item_text"]
    assert schema.select_by_tag(Tags.USER).column_names == ["user_id", "user_text"]


def test_files_hold_what_tables_give(tmp_path: Path) -> None:
    written = reviews(tmp_path, 500, users=300, items=100, words=500, files=3, row_group_size=50)
    assert written.to_arrow().to_pylist() == made(500).to_pylist()


def test_texts_are_16_to_64_words_of_the_vocabulary() -> None:
    texts = made()["user_text"].to_pylist()
    lengths = {len(text.split(" ")) for text in texts}
    assert min(lengths) >= 16
    assert max(lengths) <= 64
    assert len(lengths) > 40
    assert {word for text in texts for word in text.split(" ")} <= set(vocabulary(500))


def test_texts_can_be_longer() -> None:
    table = next(reviews_tables(400, users=300, items=100, longest=300))
    lengths = [len(text.split(" ")) for text in table["item_text"].to_pylist()]
    assert min(lengths) >= 16 and 280 < max(lengths) <= 300
    default = next(reviews_tables(400, users=300, items=100))
    assert table["item_id"].equals(default["item_id"])
    again = next(reviews_tables(400, users=300, items=100, longest=64))
    assert again.equals(default)


def test_few_words_are_frequent_and_most_are_rare() -> None:
    counts = Counter(" ".join(made()["item_text"].to_pylist()).split(" "))
    rank = {word: i for i, word in enumerate(vocabulary(500))}
    frequent = sum(n for word, n in counts.items() if rank[word] < 10)
    rare = sum(n for word, n in counts.items() if rank[word] >= 250)
    assert frequent > 2 * rare > 0


def test_no_two_words_are_alike() -> None:
    assert len(set(vocabulary(400_000))) == 400_000


def test_a_user_writes_the_same_whatever_the_seed() -> None:
    texts: dict[int, set[str]] = {}
    for table in (made(), made(seed=1)):
        for user, text in zip(
            table["user_id"].to_pylist(), table["user_text"].to_pylist(), strict=True
        ):
            texts.setdefault(user, set()).add(text)
    assert {len(t) for t in texts.values()} == {1}
    assert len({t for (t,) in texts.values()}) == len(texts) > 250


def test_users_and_items_of_one_number_write_different_texts() -> None:
    table = made()
    user = dict(zip(table["user_id"].to_pylist(), table["user_text"].to_pylist(), strict=True))
    item = dict(zip(table["item_id"].to_pylist(), table["item_text"].to_pylist(), strict=True))
    assert not any(user[i] == item[i] for i in user.keys() & item.keys())


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


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", 0), ("users", 0), ("items", -1), ("words", 1), ("longest", 15), ("longest", 10**6)],
)
def test_bad_arguments(name: str, value: int, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is {value}"):
        reviews(tmp_path / "new", **{name: value})  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
