"""Recommended articles and who clicked them, in the spirit of the Outbrain click data.

Six tables, as in the original: ``clicks`` (the ads each display showed, and which was clicked),
``events`` (who saw the display, on which page, when and where), ``promoted_content`` (the document,
campaign and advertiser of each ad), and about documents ``documents_meta``,
``documents_categories`` and ``documents_topics``, the last two with a confidence for each row.

A display shows 2 to 12 different ads, and exactly one is clicked: the one with the highest score.
The score is the sum of the ad's own worth, how well its document's category fits the page's, how
well its campaign does on the platform, and noise. Guessing the ad with the best score without the
noise is right in 59 % of displays; guessing any ad, in 24 %.

Properties of ads and documents are hashed from their ids and the same for every seed; those of
displays are drawn from streams of the seed, twelve words for a display where each of its ads needs
one. Ids begin at 0 while rows are made, and at 1 in the tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tabfeed.datagen import draw
from tabfeed.datagen.recipe import (
    Columns,
    FileLayout,
    Recipe,
    check_count,
    column,
    tables,
    write_all,
)
from tabfeed.io import Dataset
from tabfeed.schema import ColumnSchema, Domain, Schema, Tags

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
        Whether to replace existing datasets.

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
    check_count("documents", documents, most=MOST_IDS)
    check_count("ads", ads, least=MOST_ADS, most=MOST_IDS)
    check_count("seed", seed, least=0)
    sizes = Sizes(displays, documents, ads)
    schemas = _schemas(sizes)

    def recipe(name: str, columns: Columns, units: int, per_unit: int = 1) -> Recipe:
        return Recipe(units, schemas[name], columns, _PLAIN, per_unit)

    return {
        "clicks": recipe("clicks", partial(_clicks, sizes, seed), displays, 5),
        "events": recipe("events", partial(_events, sizes, seed), displays),
        "promoted_content": recipe("promoted_content", partial(_ads, sizes), ads),
        "documents_meta": recipe("documents_meta", _meta, documents),
        "documents_categories": recipe("documents_categories", _categories, documents, 2),
        "documents_topics": recipe("documents_topics", _topics, documents, 2),
    }


def _schemas(sizes: Sizes) -> dict[str, Schema]:
    display = _id("display_id", sizes.displays, Tags.SESSION, Tags.ID)
    document = _id("document_id", sizes.documents, Tags.ID)
    ad = _id("ad_id", sizes.ads, Tags.ITEM, Tags.ID)
    target = (Tags.TARGET, Tags.BINARY, Tags.CLASSIFICATION)
    clicked = column("clicked", "int32", *target, domain=Domain(0, 1))
    sure = column("confidence_level", "float32", Tags.CONTINUOUS, domain=Domain(0, 1))
    return {
        "clicks": Schema([display, ad, clicked]),
        "events": Schema(
            [
                display,
                column("uuid", "string", Tags.USER, Tags.ID, Tags.CATEGORICAL),
                document,
                column("timestamp", "int64", Tags.TIME),
                _id("platform", PLATFORMS, Tags.CONTEXT),
                column("geo_location", "string", Tags.CONTEXT, Tags.CATEGORICAL, nullable=True),
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
                _id("source_id", SOURCES),
                _id("publisher_id", PUBLISHERS),
                column("publish_time", "timestamp[s]", Tags.TIME, nullable=True),
            ]
        ),
        "documents_categories": Schema([document, _id("category_id", CATEGORIES), sure]),
        "documents_topics": Schema([document, _id("topic_id", TOPICS), sure]),
    }


def _id(name: str, count: int, *tags: str) -> ColumnSchema:
    return column(name, "int32", Tags.CATEGORICAL, *tags, domain=Domain(1, count, name))


MOST_ADS = 12
_AD_COUNT_WEIGHTS = (14.0, 12.0, 18.0, 9.0, 17.0, 7.0, 8.0, 6.0, 4.0, 3.0, 2.0)  # of 2 to 12 ads
CATEGORIES, TOPICS, SOURCES, PUBLISHERS = 97, 300, 5_000, 500
PLATFORMS = 3  # desktop, mobile, tablet; numbered from 1
_PLACES = (
    "US>CA>803", "US>NY>501", "US>TX>623", "US>FL>528", "US>IL>602", "US>OH>510", "US>WA>819",
    "US>GA>524", "US", "GB>H9", "GB>C3", "CA>ON", "CA>BC", "AU>02", "AU>07", "IN>16", "DE>07",
    "PH>D9", "SG>00", "NZ>E7",
)  # fmt: skip
_SPAN = 15 * 86_400_000  # milliseconds of the log
MOST_IDS = 100_000_000

_TABLE = 3
_PAGE, _USER, _TIME, _PLATFORM, _PLACE, _NO_PLACE, _AD_COUNT, _ADS, _NOISE = range(9)
_S_DOCUMENT, _S_CAMPAIGN, _S_ADVERTISER, _S_SOURCE, _S_PUBLISHER, _S_PUBLISHED = range(30, 36)
_S_CATEGORY, _S_TOPIC, _S_CONFIDENCE, _S_KEEP, _S_EXTRA, _S_UNKNOWN, _S_UUID = range(40, 47)
_S_WORTH, _S_MATCH, _S_REACH = range(50, 53)


class Sizes(NamedTuple):
    """How many there are of each."""

    displays: int
    documents: int
    ads: int


# -- displays: what the seed decides --------------------------------------------------


def _events(sizes: Sizes, seed: int, start: int, stop: int) -> dict[str, Any]:
    """Who saw each display, where, when."""

    def words(column: int) -> draw.Words:
        return draw.bits(seed, (_TABLE, column), start, stop)

    since = np.arange(start, stop) + draw.uniform(words(_TIME))
    user = draw.log_uniform(words(_USER), max(1, sizes.displays // 2), flat=1_000)
    place = pa.array(
        draw.log_uniform(words(_PLACE), len(_PLACES), flat=3),
        mask=draw.chance(words(_NO_PLACE), 0.01),
    )
    return {
        "display_id": np.arange(start + 1, stop + 1, dtype=np.int32),
        "uuid": draw.joined(*(draw.hex_strings(draw.mix(user, _S_UUID + i)) for i in (0, 1))),
        "document_id": pages(sizes, seed, start, stop) + np.int32(1),
        "timestamp": (since * (_SPAN / sizes.displays)).astype(np.int64),
        "platform": platforms(seed, start, stop) + np.int32(1),
        "geo_location": pa.array(_PLACES).take(place),
    }


def pages(sizes: Sizes, seed: int, start: int, stop: int) -> draw.Ids:
    """The document each display is on."""
    flat = max(1, sizes.documents // 500)
    return draw.log_uniform(
        draw.bits(seed, (_TABLE, _PAGE), start, stop), sizes.documents, flat=flat
    )


def platforms(seed: int, start: int, stop: int) -> draw.Ids:
    """What each display is seen on."""
    return draw.pick(draw.bits(seed, (_TABLE, _PLATFORM), start, stop), (0.45, 0.45, 0.1))


def _clicks(sizes: Sizes, seed: int, start: int, stop: int) -> dict[str, Any]:
    """The ads of each display, one of them clicked."""
    shown_ads, keep = shown(sizes, seed, start, stop)
    noise = draw.bits(seed, (_TABLE, _NOISE), start * MOST_ADS, stop * MOST_ADS)
    scores = score(
        sizes, shown_ads, pages(sizes, seed, start, stop), platforms(seed, start, stop)
    ) + np.float32(0.6) * draw.normal(noise).reshape(keep.shape)
    best = np.where(keep, scores, np.float32(-np.inf)).argmax(axis=1)
    display = np.arange(start + 1, stop + 1, dtype=np.int32)
    return {
        "display_id": np.broadcast_to(display[:, None], keep.shape)[keep],
        "ad_id": shown_ads[keep] + np.int32(1),
        "clicked": (np.arange(MOST_ADS) == best[:, None])[keep].astype(np.int32),
    }


def shown(sizes: Sizes, seed: int, start: int, stop: int) -> tuple[draw.Ids, draw.Mask]:
    """Twelve ads for each display, no two alike, and which of them were shown.

    Each place of a display takes its ad from another of the twelve classes of ads, by number
    modulo twelve; which class begins changes from display to display.
    """
    count = 2 + draw.pick(draw.bits(seed, (_TABLE, _AD_COUNT), start, stop), _AD_COUNT_WEIGHTS)
    words = draw.bits(seed, (_TABLE, _ADS), start * MOST_ADS, stop * MOST_ADS)
    each = sizes.ads // MOST_ADS
    group = draw.log_uniform(words, each, flat=max(1, each // 100)).reshape(-1, MOST_ADS)
    first = np.arange(start, stop, dtype=np.int64)[:, None]
    place = (first + np.arange(MOST_ADS)) % MOST_ADS
    return group * np.int32(MOST_ADS) + place.astype(np.int32), np.arange(MOST_ADS) < count[:, None]


def score(sizes: Sizes, ads: draw.Ids, page: draw.Ids, platform: draw.Ids) -> draw.Floats:
    """The hidden model: how much each ad of each display appeals, but for noise."""
    category = _category(_ad_document(sizes, ads))
    match = _category(page)[:, None] * np.int32(CATEGORIES) + category
    reach = _campaign(sizes, ads) * np.int32(PLATFORMS) + platform[:, None]
    worth = draw.effect(ads, _S_WORTH)
    worth += np.float32(0.5) * draw.effect(match, _S_MATCH)
    worth += np.float32(0.5) * draw.effect(reach, _S_REACH)
    return worth


# -- ads and documents: what is hashed from ids ---------------------------------------


def _ad_document(sizes: Sizes, ads: draw.Ids) -> draw.Ids:
    return draw.spread(draw.hashed(ads, _S_DOCUMENT), sizes.documents)


def _campaign(sizes: Sizes, ads: draw.Ids) -> draw.Ids:
    return draw.spread(draw.hashed(ads, _S_CAMPAIGN), max(1, sizes.ads // 10))


def _category(documents: draw.Ids) -> draw.Ids:
    """The category most likely the document's."""
    return draw.log_uniform(draw.hashed(documents, _S_CATEGORY), CATEGORIES, flat=5)


def _ads(sizes: Sizes, start: int, stop: int) -> dict[str, Any]:
    """The document, campaign and advertiser of each ad."""
    ids = np.arange(start, stop, dtype=np.int32)
    campaign = _campaign(sizes, ids)
    advertiser = draw.spread(draw.hashed(campaign, _S_ADVERTISER), max(1, sizes.ads // 50))
    return {
        "ad_id": ids + np.int32(1),
        "document_id": _ad_document(sizes, ids) + np.int32(1),
        "campaign_id": campaign + np.int32(1),
        "advertiser_id": advertiser + np.int32(1),
    }


def _meta(start: int, stop: int) -> dict[str, Any]:
    """Where each document comes from."""
    ids = np.arange(start, stop, dtype=np.int32)
    source = draw.log_uniform(draw.hashed(ids, _S_SOURCE), SOURCES, flat=20)
    publisher = draw.spread(draw.hashed(source, _S_PUBLISHER), PUBLISHERS)
    days = draw.log_uniform(draw.hashed(ids, _S_PUBLISHED), 2_000, flat=30).astype(np.int64)
    moment = 1_465_876_800 - 86_400 * days
    unknown = draw.chance(draw.hashed(ids, _S_UNKNOWN), 0.3)
    return {
        "document_id": ids + np.int32(1),
        "source_id": source + np.int32(1),
        "publisher_id": publisher + np.int32(1),
        "publish_time": pa.array(moment, mask=unknown).cast(pa.timestamp("s")),
    }


def _categories(start: int, stop: int) -> dict[str, Any]:
    """One or two categories of each document, no two alike."""
    ids = np.arange(start, stop, dtype=np.int32)
    first, step = _category(ids), 1 + draw.spread(draw.hashed(ids, _S_EXTRA), CATEGORIES - 1)
    names = np.column_stack([first, (first + step) % CATEGORIES]).astype(np.int32)
    return _confident(ids, names, share=0.5, name="category_id")


def _topics(start: int, stop: int) -> dict[str, Any]:
    """One to three topics of each document, no two alike."""
    ids = np.arange(start, stop, dtype=np.int32)
    step = 1 + draw.spread(draw.hashed(ids, _S_EXTRA), TOPICS // 4)
    first = draw.log_uniform(draw.hashed(ids, _S_TOPIC), TOPICS, flat=20)
    names = (first[:, None] + step[:, None] * np.arange(3)) % TOPICS
    return _confident(ids, names.astype(np.int32), share=0.6, name="topic_id")


def _confident(ids: draw.Ids, names: draw.Ids, *, share: float, name: str) -> dict[str, Any]:
    """The first of each document's names and, as often as `share`, each of the others."""
    places = ids[:, None] * np.int32(names.shape[1]) + np.arange(names.shape[1], dtype=np.int32)
    keep = draw.chance(draw.hashed(places, _S_KEEP), share)
    keep[:, 0] = True
    confidence = np.float32(0.3) + np.float32(0.7) * draw.uniform(
        draw.hashed(places, _S_CONFIDENCE)
    )
    confidence[:, 1:] *= np.float32(0.5)
    return {
        "document_id": np.broadcast_to(ids[:, None] + np.int32(1), keep.shape)[keep],
        name: names[keep] + np.int32(1),
        "confidence_level": confidence[keep],
    }
