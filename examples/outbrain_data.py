"""Displays of ads and who clicked what, in the layout of the Outbrain click prediction data.

Of its files these are read: ``clicks_train.csv``, ``events.csv``, ``promoted_content.csv``,
``documents_meta.csv`` and ``documents_categories.csv``. Without ``--data`` such files are made.
The large two are joined out of core and written as Parquet; the small ones stay in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from tabfeed import ColumnSelector, Dataset, Workflow, datagen, ops

FILES = {
    "clicks": "clicks_train.csv",
    "events": "events.csv",
    "promoted_content": "promoted_content.csv",
    "documents_meta": "documents_meta.csv",
    "documents_categories": "documents_categories.csv",
}
NULLS = ["", "\\N"]
SINCE_LAST = "timestamp_difference_lag_1"


@dataclass(frozen=True)
class Displays:
    """Each ad of each display, with what is known of the display; and tables about the ads."""

    train: Dataset
    valid: Dataset
    ads: pl.DataFrame
    published: pl.DataFrame
    categories: pl.DataFrame


def open_displays(folder: Path, work: Path, *, valid: float = 0.2) -> Displays:
    """Join clicks with events; the last fifth of the time is for validation."""
    clicks = Dataset(folder / FILES["clicks"])
    events = Dataset(
        folder / FILES["events"],
        dtypes={"platform": "string", "geo_location": "string"},
        null_values=NULLS,
    )
    joined = Dataset.merge(clicks, with_time_since_last(events), on="display_id")
    path = joined.to_parquet(work / "displays", overwrite=True).files
    cut = int(_largest(Dataset(path), "timestamp") * (1 - valid))
    return Displays(
        Dataset(path, filters=[("timestamp", "<", cut)]),
        Dataset(path, filters=[("timestamp", ">=", cut)]),
        _ads(folder),
        _published(folder),
        _categories(folder),
    )


def with_time_since_last(events: Dataset) -> Dataset:
    """How long ago each user saw a display before: the rows of a user together, in order."""
    by_user = events.shuffle_by_keys("uuid").map(_in_order, schema=events.schema)
    since = ["timestamp"] >> ops.DifferenceLag("uuid")
    others = ColumnSelector(["display_id", "document_id", "timestamp", "platform"])
    return Workflow(since + others).transform(by_user)


def _in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([("uuid", "ascending"), ("timestamp", "ascending")])


def _largest(data: Dataset, column: str) -> int:
    return int(max(t.column(column).to_numpy().max() for t in data.to_iter(columns=[column])))


# -- tables about ads and documents -------------------------------------------------------


def _ads(folder: Path) -> pl.DataFrame:
    ads = Dataset(folder / FILES["promoted_content"]).to_polars()
    return ads.rename({"document_id": "ad_document_id"})


def _published(folder: Path) -> pl.DataFrame:
    """When a document appeared, in milliseconds since 1970; null where that is not known."""
    path = folder / FILES["documents_meta"]
    meta = Dataset(path, dtypes={"publish_time": "string"}, columns=["document_id", "publish_time"])
    moment = pl.col("publish_time").str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
    return meta.to_polars().with_columns(moment.dt.epoch("ms").alias("publish_time"))


def _categories(folder: Path) -> pl.DataFrame:
    """The likeliest category of each document."""
    found = Dataset(folder / FILES["documents_categories"]).to_polars()
    first = found.sort("confidence_level", descending=True, maintain_order=True)
    return first.unique("document_id", keep="first", maintain_order=True).drop("confidence_level")


# -- made-up files ------------------------------------------------------------------------


def write_files(folder: Path, displays: int) -> Path:
    """Made-up displays in Outbrain's own files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = datagen.outbrain_tables(displays, documents=4_000, ads=2_000)
    for name, file in FILES.items():
        frame = pl.from_arrow(pa.concat_tables(made[name]))
        assert isinstance(frame, pl.DataFrame)
        frame.write_csv(folder / file, datetime_format="%Y-%m-%d %H:%M:%S")
    return folder
