"""Which requests bring which ranges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tabfeed.io.storage.ranges import Range, requests_for

MIB = 2**20


def test_a_hole_is_read_where_it_is_a_small_part_of_the_whole() -> None:
    wide = [Range(0, 40 * MIB // 4), Range(11 * MIB, 20 * MIB)]
    assert requests_for(wide) == [Range(0, 20 * MIB)]
    narrow = [Range(0, 100), Range(200, 300)]
    assert requests_for(narrow) == narrow
    far = [Range(0, 15 * MIB), Range(20 * MIB, 30 * MIB)]  # 5 MiB: too much whatever is around it
    assert requests_for(far) == far


def test_neighbours_are_joined_up_to_the_largest_request() -> None:
    columns = [Range(i * 10 * MIB, (i + 1) * 10 * MIB) for i in range(4)]
    assert requests_for(columns, 32 * MIB) == [Range(0, 30 * MIB), Range(30 * MIB, 40 * MIB)]


def test_what_is_too_large_for_one_request_is_cut_evenly() -> None:
    cut = requests_for([Range(0, 90)], 40)
    assert cut == [Range(0, 30), Range(30, 60), Range(60, 90)]


def test_overlaps_repeats_and_nothing() -> None:
    assert requests_for([Range(0, 10), Range(5, 20), Range(0, 10), Range(3, 3)]) == [Range(0, 20)]
    assert requests_for([]) == []


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=12))
def test_every_byte_wanted_comes_once_and_few_others(pairs: list[tuple[int, int]]) -> None:
    wanted = [Range(start, start + size) for start, size in pairs]
    requests = requests_for(wanted, largest=50)
    got = [i for r in requests for i in range(*r)]
    needed = {i for r in wanted for i in range(*r)}
    assert needed <= set(got)
    assert len(got) == len(set(got))
    assert len(got) <= 1.25 * len(needed)
    assert all(0 < r.size <= 50 for r in requests)
