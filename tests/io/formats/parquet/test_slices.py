"""What each row of a table takes, and slices by that."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.io import Piece
from tabfeed.io.formats.parquet.row_sizes import sizes_in_table
from tabfeed.io.partition import slices_of


def test_sizes_of_a_table_are_those_of_its_values() -> None:
    table = pa.table(
        {
            "d": pa.array(["ab", "c" * 100, None]).dictionary_encode(),
            "l": [[1], [], [1, 2, 3]],
            "s": [{"a": "xx"}, None, {"a": "y"}],
            "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        }
    )
    sizes = sizes_in_table(table)
    assert sizes is not None
    assert sizes[1] > sizes[0] + 70
    assert sizes_in_table(pa.table({"x": [1, 2]})) is None


def test_slices_follow_weights_only_where_even_ones_would_not_fit() -> None:
    piece = Piece(0, 0, 0, 6)
    even = slices_of(piece, 60, 20, lambda _: np.full(6, 10.0))
    assert [p.rows for p in even] == [2, 2, 2]
    uneven = slices_of(piece, 60, 20, lambda _: np.array([1.0, 1, 1, 19, 19, 19]))
    assert [p.rows for p in uneven] == [3, 1, 1, 1]


@pytest.mark.parametrize("width", [0, 1, 2])
def test_lists_of_one_length_with_nulls_have_a_size_for_each_row(width: int) -> None:
    rows = [["x" * 9] * width, None, ["y"] * width, None]
    column = pa.array(rows, pa.list_(pa.string(), width))
    for part, count in ((column, 4), (column.slice(1, 2), 2)):
        sizes = sizes_in_table(pa.table({"f": part}))
        assert sizes is not None and len(sizes) == count
    sizes = sizes_in_table(pa.table({"f": column}))
    assert sizes is not None and (sizes[0] - sizes[2] == 8 * width)
