"""Paths and URLs: which filesystem they are on, and how they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tabfeed.io.storage.files import path_of


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    assert path_of(f"file://{tmp_path}").local


def test_an_http_path_is_a_whole_url_already() -> None:
    pytest.importorskip("aiohttp")
    assert path_of("https://example.org/a.parquet").name == "https://example.org/a.parquet"
