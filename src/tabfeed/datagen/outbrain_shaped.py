"""Recommended articles and who clicked them, in the spirit of the Outbrain click data.

Six tables, as there: ``clicks`` (which ads each display showed, and the one that was
clicked), ``events`` (who saw the display, on which page, when and where),
``promoted_content`` (the document, campaign and advertiser of each ad), and of documents
``documents_meta``, ``documents_categories`` and ``documents_topics``, the last two with the
confidence of each.

A display shows 2 to 12 ads, no two alike, and exactly one is clicked: the one with the highest
score. The score adds what the ad is worth, how its document's category goes with the page's,
how its campaign does on the platform, and noise. All but the noise is hashed from ids and
the same for every seed. Guessing the ad with the best score but for the noise is right in
59 % of displays, guessing any ad in 24 %.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from tabfeed.datagen import outbrain_rows as make
from tabfeed.datagen.recipe import (
    Columns,
    FileLayout,
    Recipe,
    check_count,
    check_seed,
    tables,
    write_all,
)
from tabfeed.io import Dataset
from tabfeed.schema import ColumnSchema, Domain, Schema, Tags

__all__ = ["Outbrain", "outbrain", "outbrain_tables"]
# Columns with too many values for a dictionary to pay: those that count up.
_PLAIN = frozenset({"display_id", "timestamp"})


class Outbrain(NamedTuple):
    """The six datasets that `outbrain` writes."""

    clicks: Dataset
    events: Dataset
    promoted_content: Dataset
    documents_meta: Dataset
    documents_categories: Dataset
    documents_topics: Dataset


def outbrain(
    path: str | os.PathLike[str],
    displays: int = 100_000,
    *,
    documents: int = 20_000,
    ads: int = 10_000,
    files: int = 1,
    row_group_size: int = 250_000,
    seed: int = 0,
    overwrite: bool = False,
) -> Outbrain:
    """Write six Parquet datasets under one folder.

    Parameters
    ----------
    path
        The folder that gets the six folders, or a URL.
    displays
        How many; each is a row of ``events`` and about 5 rows of ``clicks``.
    documents, ads
        How many of each; their ids begin at 1.
    files
        Files in each dataset; never more than it has displays, documents or ads.
    row_group_size
        About how many rows a Parquet row group has.
    seed
        Another seed gives other displays of the same ads and documents.
    overwrite
        Whether datasets that are there already may be replaced.

    Examples
    --------
    >>> import tempfile
    >>> data = outbrain(tempfile.mkdtemp(), displays=100, documents=50, ads=60)
    >>> data.events.num_rows, data.clicks.column_names
    (100, ['display_id', 'ad_id', 'clicked'])
    """
    recipes = _recipes(displays, documents, ads, seed)
    return Outbrain(**write_all(recipes, path, FileLayout(files, row_group_size, overwrite)))


def outbrain_tables(
    displays: int = 100_000,
    *,
    documents: int = 20_000,
    ads: int = 10_000,
    row_group_size: int = 250_000,
    seed: int = 0,
) -> dict[str, Iterator[pa.Table]]:
    """The rows `outbrain` writes, as tables by name, without files.

    Examples
    --------
    >>> clicks = next(outbrain_tables(100, documents=50, ads=60)["clicks"])
    >>> sum(clicks["clicked"].to_pylist())
    100
    """
    layout = FileLayout(files=1, row_group_size=row_group_size)
    recipes = _recipes(displays, documents, ads, seed)
    return {name: tables(recipe, layout) for name, recipe in recipes.items()}


def _recipes(displays: int, documents: int, ads: int, seed: int) -> dict[str, Recipe]:
    check_count("displays", displays, most=2**31 - 1)
    check_count("documents", documents, most=make.MOST_IDS)
    check_count("ads", ads, least=make.MOST_ADS, most=make.MOST_IDS)
    check_seed(seed)
    sizes = make.Sizes(displays, documents, ads)
    schemas = _schemas(sizes)

    def recipe(name: str, columns: Columns, units: int, per_unit: int = 1) -> Recipe:
        return Recipe(units, schemas[name], columns, _PLAIN, per_unit)

    return {
        "clicks": recipe("clicks", partial(make.clicks, sizes, seed), displays, 5),
        "events": recipe("events", partial(make.events, sizes, seed), displays),
        "promoted_content": recipe("promoted_content", partial(make.ads, sizes), ads),
        "documents_meta": recipe("documents_meta", make.meta, documents),
        "documents_categories": recipe("documents_categories", make.categories, documents, 2),
        "documents_topics": recipe("documents_topics", make.topics, documents, 2),
    }


def _schemas(sizes: make.Sizes) -> dict[str, Schema]:
    display = _id("display_id", sizes.displays, Tags.SESSION, Tags.ID)
    document = _id("document_id", sizes.documents, Tags.ID)
    ad = _id("ad_id", sizes.ads, Tags.ITEM, Tags.ID)
    sure = _column("confidence_level", "float32", Tags.CONTINUOUS, domain=Domain(0, 1))
    return {
        "clicks": Schema([display, ad, _CLICKED]),
        "events": Schema(
            [
                display,
                _column("uuid", "string", Tags.USER, Tags.ID, Tags.CATEGORICAL),
                document,
                _column("timestamp", "int64", Tags.TIME),
                _id("platform", make.PLATFORMS, Tags.CONTEXT),
                _column("geo_location", "string", Tags.CONTEXT, Tags.CATEGORICAL, nullable=True),
            ]
        ),
        "promoted_content": Schema(
            [
                ad,
                document,
                _id("campaign_id", max(1, sizes.ads // 10), Tags.ITEM),
                _id("advertiser_id", max(1, sizes.ads // 50), Tags.ITEM),
            ]
        ),
        "documents_meta": Schema(
            [
                document,
                _id("source_id", make.SOURCES),
                _id("publisher_id", make.PUBLISHERS),
                _column("publish_time", "timestamp[s]", Tags.TIME, nullable=True),
            ]
        ),
        "documents_categories": Schema([document, _id("category_id", make.CATEGORIES), sure]),
        "documents_topics": Schema([document, _id("topic_id", make.TOPICS), sure]),
    }


def _id(name: str, count: int, *tags: str) -> ColumnSchema:
    return _column(name, "int32", Tags.CATEGORICAL, *tags, domain=Domain(1, count, name))


def _column(
    name: str, dtype: str, *tags: str, domain: Domain | None = None, nullable: bool = False
) -> ColumnSchema:
    return ColumnSchema(name, dtype, tags=tags, nullable=nullable, domain=domain)


_CLICKED = _column(
    "clicked", "int32", Tags.TARGET, Tags.BINARY, Tags.CLASSIFICATION, domain=Domain(0, 1)
)
