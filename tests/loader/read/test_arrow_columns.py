"""From Arrow columns to arrays: what is a view, what is converted, what is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.errors import LoaderError
from tabfeed.loader.read.arrow_columns import (
    Group,
    Layout,
    fits,
    list_arrays,
    make_part,
    numpy_dtype,
    scalar_array,
)

INT64, FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)


def test_numbers_without_nulls_are_views():
    column = pa.array(np.arange(5, dtype=np.int32))
    array = scalar_array(column, "x", INT64)
    assert array.dtype == np.int32
    assert array.ctypes.data == column.buffers()[1].address


@pytest.mark.parametrize(
    ("column", "wanted", "expected"),
    [
        (pa.array([True, False]), np.dtype(bool), [True, False]),
        (pa.array([1.5, None], pa.float32()), FLOAT32, [1.5, np.nan]),
        (pa.array([1, None], pa.int8()), FLOAT32, [1, np.nan]),
        (pa.array([7, 8]).dictionary_encode(), INT64, [7, 8]),
        (pa.array([1, 2]).cast(pa.decimal128(21, 2)), FLOAT32, [1, 2]),
        (pa.array([1.0, 2.0]), INT64, [1, 2]),
        (pa.array([], pa.int32()), INT64, []),
        (pa.array([5, 6, 7, 8])[1:3], INT64, [6, 7]),
    ],
)
def test_values(column, wanted, expected):
    np.testing.assert_array_equal(scalar_array(column, "x", wanted).astype(wanted), expected)


@pytest.mark.parametrize(
    ("column", "wanted", "message"),
    [
        (pa.array([1, None]), INT64, "has 1 nulls"),
        (pa.array([True, None]), np.dtype(bool), "has 1 nulls"),
        (pa.array([1.0, np.inf]), INT64, "NaN or infinite"),
        (pa.array([2**40]), np.dtype(np.int32), "goes from 1099511627776"),
        (pa.array(["a"]), INT64, "is string, which can't be converted to a tensor"),
        (pa.array([0], pa.timestamp("s")), INT64, r"is timestamp\[s\]"),
    ],
)
def test_what_a_tensor_cannot_hold_is_refused(column, wanted, message):
    with pytest.raises(LoaderError, match=message):
        scalar_array(column, "x", wanted)


def test_lists_begin_at_zero_and_null_rows_are_empty():
    column = pa.array([[9], [1, 2], None, [], [3]], pa.list_(pa.int32()))[1:]
    values, offsets = list_arrays(column, "w", INT64)
    assert (values.tolist(), offsets.tolist()) == ([1, 2, 3], [0, 2, 2, 2, 3])
    with pytest.raises(LoaderError, match="lists of lists"):
        list_arrays(pa.array([[[1]]]), "w", INT64)
    with pytest.raises(LoaderError, match="not a list"):
        list_arrays(pa.array([1]), "w", INT64)


def test_a_part_has_every_kind_of_column():
    table = pa.table(
        {
            "a": [1, 2],
            "w": [[1], [2, 3]],
            "v": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)),
            "t": ["x", "y"],
        }
    )
    layout = Layout(
        groups=(Group("g", ("a",), INT64),),
        lists=(("w", INT64),),
        fixed=(("v", 2, np.dtype(np.int8)),),
        extras=("t",),
    )
    part = make_part(table, layout)
    assert part.rows == 2 and part.nbytes > 0
    assert part.scalars["v"].tolist() == [[1, 2], [3, 4]]
    assert part.extras["t"].to_pylist() == ["x", "y"]
    wrong = Layout(fixed=(("w", 2, INT64),))
    with pytest.raises(LoaderError, match=r"should have 2 values in each row.*row 0.*has 1"):
        make_part(table, wrong)


def test_columns_in_several_pieces_are_joined():
    column = pa.chunked_array([[1, 2], [3]])
    part = make_part(pa.table({"a": column}), Layout(groups=(Group("g", ("a",), INT64),)))
    assert part.scalars["a"].tolist() == [1, 2, 3]


def test_dtypes():
    assert numpy_dtype(pa.dictionary(pa.int32(), pa.float64()), "x") == np.float64
    assert numpy_dtype(pa.bool_(), "x") == np.bool_


def test_a_fraction_next_to_the_largest_integer_does_not_fit():
    assert fits(np.array([1.0], np.float16), np.dtype(np.int64))
    for dtype in (np.float32, np.float64):
        assert fits(np.array([-(2.0**63), 2.0**62], dtype), np.dtype(np.int64))
        assert not fits(np.array([2.0**63], dtype), np.dtype(np.int64))
    assert fits(np.array([2**63 - 1]), np.dtype(np.int64))
    assert not fits(np.array([2**63], np.uint64), np.dtype(np.int64))
