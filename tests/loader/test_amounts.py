"""Amounts of memory as users write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed.errors import ArgumentError
from tabfeed.loader.options import LoaderOptions


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (1, 1),
        (1_000_000, 1_000_000),
        (np.int64(512), 512),
        (2.5e9, 2_500_000_000),
        ("12", 12),
        ("1_000", 1000),
        ("512MB", 512_000_000),
        ("512 mb", 512_000_000),
        (" 2GiB ", 2_147_483_648),
        ("1.5kb", 1500),
        ("0.5KiB", 512),
        ("3b", 3),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        (2**60 + 1, 2**60 + 1),
    ],
)
def test_an_amount(written: Any, expected: int) -> None:
    assert LoaderOptions(host_memory=written).budget == expected


@pytest.mark.parametrize(
    "written",
    [
        0, -1, -0.5, 0.0, 1.5, "1.5", True, "", "GB", "-3GB", "5 XB", "1e9", "fast", b"3",
        float("nan"), float("inf"), [1], "٣GB",
    ],
)  # fmt: skip
def test_what_is_no_amount_is_refused_by_name(written: Any) -> None:
    with pytest.raises(ArgumentError, match=r"host_memory is .*share"):
        _ = LoaderOptions(host_memory=written).budget


@given(st.integers(1, 2**63), st.sampled_from(["B", "kb", "MB", "GB", "TB"]))
def test_units_multiply_exactly(number: int, unit: str) -> None:
    power = {"B": 0, "kb": 3, "MB": 6, "GB": 9, "TB": 12}[unit]
    assert LoaderOptions(host_memory=f"{number}{unit}").budget == number * 10**power
