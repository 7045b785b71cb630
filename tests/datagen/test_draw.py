""" """

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.datagen import draw
from tabfeed.datagen.draw import hex_strings, joined, ragged


def words(count: int, key: int = 0) -> draw.Words:
    return draw.bits(11, (key,), 0, count)


def test_a_stream_can_be_entered_anywhere() -> None:
    whole = draw.bits(3, (1, 2), 0, 1_000)
    assert (draw.bits(3, (1, 2), 999, 1_000) == whole[999:]).all()
    assert (draw.bits(3, (1, 2), 400, 700) == whole[400:700]).all()
    assert len(draw.bits(3, (1, 2), 5, 5)) == 0


@pytest.mark.parametrize(("seed", "key"), [(4, (1, 2)), (3, (1, 3)), (3, (2, 2)), (3, (1, 2, 0))])
def test_another_seed_or_key_is_another_stream(seed: int, key: tuple[int, ...]) -> None:
    assert not (draw.bits(seed, key, 0, 100) == draw.bits(3, (1, 2), 0, 100)).any()


def test_streams_stay_what_they_are_across_versions() -> None:
    # NumPy promises that a bit generator's stream never changes; saved figures rely on it.
    assert draw.bits(0, (1, 2, 3), 0, 2).tolist() == [
        14664785435525649742,
        9797092390832359126,
    ]


@pytest.mark.parametrize("count", [4, 63, 29_612, 10_000_000])
def test_log_uniform_has_the_probabilities_it_says(count: int) -> None:
    n = 400_000
    ids = draw.log_uniform(words(n), count)
    assert ids.dtype == np.int32
    assert ids.min() == 0
    assert ids.max() < count
    for bound in {1, 2, 3, math.isqrt(count), count // 2}:
        expected = math.log(bound + 1) / math.log(count + 1)
        spread = 5 * math.sqrt(expected * (1 - expected) / n)
        assert abs((ids < bound).mean() - expected) < spread


def test_log_uniform_reaches_every_value_of_a_small_range() -> None:
    assert np.unique(draw.log_uniform(words(10_000), 4)).tolist() == [0, 1, 2, 3]
    assert np.unique(draw.log_uniform(words(100), 1)).tolist() == [0]


def test_log_uniform_with_a_flat_head() -> None:
    ids = draw.log_uniform(words(400_000), 1_000, flat=100)
    first, hundredth = (ids == 0).mean(), (ids == 99).mean()
    assert 1.6 < first / hundredth < 2.4  # the density falls to half where value = flat


def test_log_uniform_at_the_ends_of_its_words() -> None:
    ends = np.array([0, 2**64 - 1], np.uint64)
    assert draw.log_uniform(ends, 10_000_000).tolist() == [0, 9_999_999]


def test_log_uniform_keeps_the_shape_of_its_words() -> None:
    flat = words(60)
    assert (
        draw.log_uniform(flat.reshape(5, 12), 99) == draw.log_uniform(flat, 99).reshape(5, 12)
    ).all()


def test_normal_has_mean_0_and_variance_1() -> None:
    values = draw.normal(words(400_000))
    assert values.dtype == np.float32
    assert abs(values.mean()) < 0.01
    assert abs(values.var() - 1) < 0.01
    assert abs((values < 1).mean() - 0.841) < 0.01
    assert draw.normal(np.array([0, 2**64 - 1], np.uint64)).tolist() == pytest.approx(
        [-3.464, 3.464], abs=1e-3
    )


def test_uniform_and_chance_and_spread() -> None:
    ends = np.array([0, 2**63, 2**64 - 1], np.uint64)
    assert draw.uniform(ends).tolist() == [0.0, 0.5, 1 - 2**-24]
    assert draw.chance(ends, 0.5).tolist() == [True, False, False]
    assert draw.chance(ends, 0.0).tolist() == [False, False, False]
    assert draw.spread(ends, 10).tolist() == [0, 5, 9]


def test_pick_follows_the_weights() -> None:
    picked = draw.pick(words(100_000), (1.0, 3.0, 0.0))
    assert np.bincount(picked, minlength=3) / 100_000 == pytest.approx([0.25, 0.75, 0.0], abs=0.01)


def test_mix_is_the_known_scrambler_and_one_to_one() -> None:
    # 0 and 1 go to 0 and 0x514e28b7 in the 32-bit finaliser of MurmurHash3; salt 1 is 0x9e3779b9.
    salted = np.array([0x9E3779B9, 0x9E3779B8], np.uint32)
    assert draw.mix(salted, salt=1).tolist() == [0, 0x514E28B7]
    assert len(np.unique(draw.mix(np.arange(200_000, dtype=np.int32), salt=7))) == 200_000


def test_mix_leaves_its_input_alone() -> None:
    ids = np.arange(5, dtype=np.uint32)
    draw.mix(ids, salt=3)
    assert ids.tolist() == [0, 1, 2, 3, 4]


def test_effects_are_even_between_minus_1_and_1() -> None:
    worth = draw.effect(np.arange(100_000, dtype=np.int32), salt=5)
    assert -1 <= worth.min() < -0.99 < 0.99 < worth.max() < 1
    assert abs(worth.mean()) < 0.01
    assert abs(worth.var() - 1 / 3) < 0.01


def test_link_by_hand() -> None:
    scores = np.array([0, 0.75, -0.75], np.float32)
    assert draw.link(scores).tolist() == pytest.approx([0.5, 0.8, 0.2])


def test_hex_strings_with_nulls_are_valid_arrow() -> None:
    values = np.array([0, 1, 0x89ABCDEF, 0xFFFFFFFF], np.uint32)
    strings = hex_strings(values, np.array([False, True, False, False]))
    strings.validate(full=True)
    assert strings.to_pylist() == ["00000000", None, "89abcdef", "ffffffff"]
    assert strings.null_count == 1


def test_hex_strings_of_nothing() -> None:
    assert hex_strings(np.array([], np.uint32)).to_pylist() == []


def test_ragged_rows_may_be_empty() -> None:
    keep = np.array([[False, False], [True, False], [True, True]])
    lists = ragged(pa.array(["a", "b", "c"]), keep)
    lists.validate(full=True)
    assert lists.to_pylist() == [[], ["a"], ["b", "c"]]


def test_joined_numbers_and_texts() -> None:
    assert joined(pa.array([7]), "-", pa.array(["x"])).to_pylist() == ["7-x"]
