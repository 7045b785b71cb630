"""What a measured cost says."""

import pytest

from tabfeed.doctor.examine import RoundTimes


def test_a_cost_within_the_noise_does_not_matter() -> None:
    times = RoundTimes({"a": (1.2, 0.9, 1.2, 0.9), "b": (1.0, 1.0, 1.0, 1.0)})
    assert times.cost("a", "b").ratio == pytest.approx(1.05)
    assert not times.cost("a", "b").matters
    assert RoundTimes({"a": (1.2, 1.1, 1.2), "b": (1.0, 1.0, 1.0)}).cost("a", "b").matters
