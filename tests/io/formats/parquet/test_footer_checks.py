"""Footers by themselves: what is checked, once, and that they pickle."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.io.formats.parquet.footer import FooterError, read_footer
from tests.io.data_files import locate

TABLE = pa.table({"x": [1, 2, None], "s": ["a", "b", None]})


def test_a_sound_footer_is_checked_once_and_pickles(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=1)
    location = locate(tmp_path / "a.parquet")
    with location.open() as file:
        footer = read_footer(location, file)
    footer.check(location.size)
    again = pickle.loads(pickle.dumps(footer))
    again.check(0)  # what has been checked is not looked at again
    assert again.metadata.equals(footer.metadata)


def test_a_chunk_outside_the_file(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    location = locate(tmp_path / "a.parquet")
    with location.open() as file:
        footer = read_footer(location, file)
    with pytest.raises(FooterError, match=r"claims bytes 4 to .* of a file of 50") as caught:
        footer.check(50)
    assert (caught.value.row_group, caught.value.leaf) == (0, 0)
