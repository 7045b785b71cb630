"""Synthetic data: tables shaped like those that recommender systems learn from.

Seeded and reproducible to the byte, made in constant memory, and with labels that depend on
the features through a fixed hidden model, so that a model can learn and a test can
tell whether it did.

==================  ==================================================================
`criteo`            click logs: a label, 13 counts, 26 categories, raw or processed
`movielens`         users, movies with lists of genres, ratings
`outbrain`          displays of ads, clicks, and what is known of ads and documents
`reviews`           review texts and ratings, for models with two towers
==================  ==================================================================

Each writes Parquet and returns the datasets. ``..._tables`` yields the same rows as Arrow tables
without writing files.
"""

from __future__ import annotations

from tabfeed.datagen.criteo_shaped import criteo, criteo_tables
from tabfeed.datagen.movielens_shaped import MovieLens, movielens, movielens_tables
from tabfeed.datagen.outbrain_shaped import Outbrain, outbrain, outbrain_tables
from tabfeed.datagen.review_texts import reviews, reviews_tables

__all__ = [
    "MovieLens",
    "Outbrain",
    "criteo",
    "criteo_tables",
    "movielens",
    "movielens_tables",
    "outbrain",
    "outbrain_tables",
    "reviews",
    "reviews_tables",
]
