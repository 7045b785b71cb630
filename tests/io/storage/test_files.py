"""Paths and URLs: which filesystem they are on, and how they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tabfeed.io.storage.files import path_of
from tabfeed.io.storage.s3 import in_arrows_terms


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    assert path_of(f"file://{tmp_path}").local


def test_an_http_path_is_a_whole_url_already() -> None:
    pytest.importorskip("aiohttp")
    assert path_of("https://example.org/a.parquet").name == "https://example.org/a.parquet"


def test_options_that_arrow_lacks_go_to_s3fs() -> None:
    names = {"key": "k", "secret": "s", "endpoint_url": "http://localhost:1"}
    assert path_of("s3://b/a", names).filesystem.type_name == "py::s3"
    other = path_of("s3://b/a", {**names, "requester_pays": True})
    assert other.filesystem.type_name == "py::py::fsspec+('s3', 's3a')"
    assert other.name == path_of("s3://b/a", names).name == "s3://b/a"
    assert in_arrows_terms({"key": "k"}) is None  # half a credential
    assert in_arrows_terms({"anon": True, "use_ssl": False}) == {
        "anonymous": True,
        "scheme": "http",
    }
