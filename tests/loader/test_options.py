"""Options are checked when they are given."""

from __future__ import annotations

import pytest

from tabfeed.errors import ArgumentError
from tabfeed.loader.options import LoaderOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.5}, "batch_size is 2.5; it must be a positive integer"),
        ({"parts_per_chunk": 0}, "parts_per_chunk is 0"),
        ({"threads": True}, "threads is True"),
        ({"cache": "ram"}, "cache is 'ram'"),
        ({"last": "end"}, "last is 'end'"),
        ({"drop_last": True, "last": "wrap"}, "contradict each other"),
        ({"host_memory": "lots"}, "host_memory is 'lots'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ArgumentError, match=message):
        _ = LoaderOptions(**options).budget


def test_what_is_fetched_ahead_is_a_quarter_of_what_a_user_gives() -> None:
    assert LoaderOptions(8, host_memory="400MB").fetched == 100_000_000
    assert LoaderOptions(8).fetched == 2**29
