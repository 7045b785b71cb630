import numpy as np
import pyarrow as pa

from tabfeed.datagen.arrays import hex_strings, joined, ragged


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
