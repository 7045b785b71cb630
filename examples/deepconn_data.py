"""Reviews for `deepconn.py`: made up, or Amazon's.

A row is a rating with two texts: what its user wrote elsewhere, and what others wrote of the item.
Of reviews in files these are gathered: for each, the other reviews by the same user and of the same
item, so that no text holds the review whose rating is to be told. The files are JSON lines with
``reviewerID``, ``asin``, ``reviewText`` and ``overall``, or, as newer ones have it, ``user_id``,
``asin``, ``text`` and ``rating``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from deepconn_model import ITEM, RATING, USER

from tabfeed import Dataset, Workflow, datagen, ops

NAMES = {
    "reviewerID": "user", "user_id": "user", "asin": "item", "reviewText": "text",
    "text": "text", "overall": RATING, "rating": RATING,
}  # fmt: skip
MOST = 20  # reviews that make up a text


def make_texts(folder: Path, rows: int, longest: int) -> tuple[Dataset, Dataset]:
    """Made-up reviews to train on, and a tenth as many others."""
    return (
        datagen.reviews(folder / "raw" / "train", rows, longest=longest, overwrite=True),
        datagen.reviews(
            folder / "raw" / "valid", max(1, rows // 10), longest=longest, seed=1, overwrite=True
        ),
    )


def gather_texts(path: Path, folder: Path) -> tuple[Dataset, Dataset]:
    """Reviews from files, one in ten of them for validation."""
    reviews = _renamed(Dataset(path, None if path.suffix else "jsonl"))
    texts = reviews
    for key, name in (("user", USER), ("item", ITEM)):
        grouped = [key, "text"] >> ops.Groupby(key, aggs={"text": "list"})
        grouped = Workflow(grouped >> ops.Rename({key: key, "text_list": name}.get))
        texts = Dataset.merge(texts, grouped.transform(reviews), on=key)
    written = texts.map(_others).to_parquet(folder / "raw" / "texts", overwrite=True)
    parts = [written.map(partial(_part, valid=v), keeps_rows=False) for v in (False, True)]
    train, valid = (
        part.to_parquet(folder / "raw" / name, overwrite=True)
        for name, part in zip(("train", "valid"), parts, strict=True)
    )
    return train, valid


def _renamed(data: Dataset) -> Dataset:
    """The four columns under one set of names."""
    known = {n: new for n, new in NAMES.items() if n in data.column_names}
    if sorted(known.values()) != sorted(("user", "item", "text", RATING)):
        raise SystemExit(f"the reviews have columns {data.column_names}; {list(NAMES)} are known")

    def rename(table: pa.Table) -> pa.Table:
        table = table.select(list(known)).rename_columns(list(known.values()))
        place = table.column_names.index(RATING)
        return table.set_column(place, RATING, table.column(RATING).cast(pa.float32()))

    return data.select(list(known)).map(rename)


def _others(table: pa.Table) -> pa.Table:
    """Each list of texts without the row's own, as one text."""
    own = pl.concat_list(pl.col("text").fill_null(""))
    joined = [
        pl.col(name).list.set_difference(own).list.head(MOST).list.join(" ").fill_null("")
        for name in (USER, ITEM)
    ]
    frame = pl.DataFrame(table).select(*joined, RATING, "user", "item")
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def _part(table: pa.Table, *, valid: bool) -> pa.Table:
    """The rows for validation, or the others: by a hash of user and item."""
    keys = pl.DataFrame(table).select(mixed=pl.struct("user", "item").hash(0))
    chosen = (keys["mixed"] % 10 == 0).to_numpy()
    return table.filter(pa.array(np.asarray(chosen) == valid)).select([USER, ITEM, RATING])
