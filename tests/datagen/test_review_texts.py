from pathlib import Path

import pyarrow as pa
import pytest

from tabfeed import Tags
from tabfeed.datagen import reviews, reviews_tables
from tabfeed.errors import ArgumentError


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


def test_texts_can_be_longer() -> None:
    table = next(reviews_tables(400, users=300, items=100, longest=300))
    lengths = [len(text.split(" ")) for text in table["item_text"].to_pylist()]
    assert min(lengths) >= 16 and 280 < max(lengths) <= 300
    default = next(reviews_tables(400, users=300, items=100))
    assert table["item_id"].equals(default["item_id"])
    again = next(reviews_tables(400, users=300, items=100, longest=64))
    assert again.equals(default)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", 0), ("users", 0), ("items", -1), ("words", 1), ("longest", 15), ("longest", 10**6)],
)
def test_bad_arguments(name: str, value: int, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is {value}"):
        reviews(tmp_path / "new", **{name: value})  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
