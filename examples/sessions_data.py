"""Clicks in sessions, in the layout of the YOOCHOOSE data of the RecSys challenge 2015.

A text file without a header: session, time, item, category. Without ``--data`` such a file is
made: each session has a hidden theme, which has its own order of its items; half of the clicks
follow that order, most others stay within the theme. Items belong to several themes, so what comes
next follows from the whole session, not from its last click alone.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.compute as pc

from tabfeed import Dataset

NAMES = ["session_id", "timestamp", "item_id", "category"]
TIME = "timestamp"
THEMES, OF_A_THEME, DAYS = 40, 60, 8


def open_clicks(path: Path) -> tuple[Dataset, Dataset]:
    """Clicks to train on, and those of the last day."""
    how = {"header": None, "names": NAMES, "dtypes": {"category": "string"}}
    clicks = Dataset(path, "csv", columns=NAMES[:3], **how)
    last = max(pc.max(t.column(TIME)).as_py() for t in clicks.to_iter(columns=[TIME]) if t.num_rows)
    last_day = datetime(last.year, last.month, last.day, tzinfo=timezone.utc)
    return (
        Dataset(path, "csv", columns=NAMES[:3], filters=[(TIME, "<", last_day)], **how),
        Dataset(path, "csv", columns=NAMES[:3], filters=[(TIME, ">=", last_day)], **how),
    )


def write_clicks(path: Path, sessions: int, *, items: int = 1_000, seed: int = 0) -> Path:
    """Made-up sessions of 2 to 15 clicks over some days, in order of time."""
    random = np.random.default_rng(seed)
    themes = np.stack([random.permutation(items)[:OF_A_THEME] for _ in range(THEMES)])
    lengths = np.minimum(2 + random.geometric(0.25, sessions), 15)
    session = np.repeat(np.arange(sessions), lengths)
    place = np.arange(len(session)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    clicks = pl.DataFrame(
        {
            "session_id": session,
            "timestamp": _times(session, place, sessions, random),
            "item_id": 214_500_000 + _items(lengths, themes, items, random),
            "category": np.zeros(len(session), int),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    form = "%Y-%m-%dT%H:%M:%S%.3fZ"
    clicks.sort("timestamp").write_csv(path, include_header=False, datetime_format=form)
    return path


def _items(
    lengths: np.ndarray, themes: np.ndarray, items: int, random: np.random.Generator
) -> np.ndarray:
    """The items of all sessions, one session after the other."""
    theme = random.integers(0, THEMES, len(lengths))
    at = random.integers(0, OF_A_THEME, len(lengths))  # where in the theme's order a session is
    found = np.empty((len(lengths), lengths.max()), np.int64)
    for i in range(lengths.max()):
        kind = random.random(len(lengths))
        jump = np.minimum(random.geometric(0.08, len(lengths)) - 1, OF_A_THEME - 1)
        at = np.where(kind < 0.5, (at + 1) % OF_A_THEME, jump)
        popular = np.minimum(random.geometric(0.01, len(lengths)) - 1, items - 1)
        found[:, i] = np.where(kind < 0.85, themes[theme, at], popular)
    return found[np.arange(lengths.max()) < lengths[:, None]]


def _times(
    session: np.ndarray, place: np.ndarray, sessions: int, random: np.random.Generator
) -> np.ndarray:
    """When each click was: sessions begin spread over the days, clicks follow within minutes."""
    begin = np.sort(random.random(sessions)) * (DAYS * 86_400_000 - 3_600_000)
    since = begin[session] + place * 120_000 + random.random(len(session)) * 60_000
    return np.datetime64("2014-04-07", "ms") + since.astype("timedelta64[ms]")
