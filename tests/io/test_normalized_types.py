from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.io import align
from tabfeed.io.align import cast_columns, normalize_schema, normalize_type, rebatch


def test_a_schema_without_large_types_or_metadata() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.large_list(pa.struct({"x": pa.large_string()})), nullable=False),
            ("b", pa.dictionary(pa.int8(), pa.string_view())),
            ("c", pa.list_(pa.large_binary(), 2)),
        ],
        metadata={"k": "v"},
    )
    small = normalize_schema(schema)
    assert small == pa.schema(
        [
            pa.field("a", pa.list_(pa.struct({"x": pa.string()})), nullable=False),
            ("b", pa.dictionary(pa.int8(), pa.string())),
            ("c", pa.list_(pa.binary(), 2)),
        ]
    )
    assert small.metadata is None


def test_text_too_long_for_one_chunk_comes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align, "_MOST_BYTES", 40)
    words = [f"word {i}" for i in range(20)]
    table = pa.table({"s": pa.array(words, pa.large_string())})
    small = cast_columns(table, pa.schema({"s": pa.string()}))
    assert small.column("s").type == pa.string()
    assert small.column("s").num_chunks > 4
    assert small.column("s").to_pylist() == words


@pytest.mark.parametrize("sizes", [[], [0], [5], [1, 0, 1, 7, 2], [3, 3, 3]])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_rebatch(sizes: list[int], rows: int) -> None:
    numbers = iter(range(100))
    tables = [
        pa.table({"x": pa.array([next(numbers) for _ in range(n)], pa.int64())}) for n in sizes
    ]
    batches = list(rebatch(tables, rows))
    assert [v for b in batches for v in b.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(b.num_rows == rows for b in batches[:-1])
    assert all(b.num_rows for b in batches)


def test_rebatch_joins_different_dictionaries() -> None:
    parts = [pa.table({"c": pa.array(v).dictionary_encode()}) for v in (["a", "b"], ["c", "a"])]
    (batch,) = rebatch(parts, 10)
    assert batch.column(0).to_pylist() == ["a", "b", "c", "a"]


_VIEWS = pa.list_view(pa.int32())
_IN_DISORDER = pa.ListViewArray.from_arrays(
    pa.array([2, 0], pa.int32()), pa.array([1, 2], pa.int32()), pa.array([1, 2, 3], pa.int32())
)


@pytest.mark.parametrize(
    "array",
    [
        _IN_DISORDER,
        pa.array([[1, 2], None, [3], []], _VIEWS),
        pa.array([[[1], [2]], None, [[3], None]], pa.large_list_view(_VIEWS)),
        pa.array([[[1], [2]], None, [[3], None]], pa.list_(_VIEWS)),
        pa.array([[[1], [2]], None, [[3], None]], pa.list_(_VIEWS, 2)),
        pa.array([{"a": [1]}, None, {"a": None}], pa.struct({"a": _VIEWS})),
        pa.array([[("k", [1])], None, [("l", None)]], pa.map_(pa.string(), _VIEWS)),
    ],
    ids=lambda a: str(a.type),
)
def test_list_views_become_lists_of_the_same_values(array: pa.Array) -> None:
    for part in (array, array.slice(1)):
        small = cast_columns(pa.table({"x": part}), pa.schema({"x": normalize_type(array.type)}))
        small.validate(full=True)
        assert small["x"].to_pylist() == part.to_pylist()


def test_slices_beyond_two_gigabytes_of_text(tmp_path: Path) -> None:
    path, far = tmp_path / "zeros", 2**31
    with path.open("wb") as file:
        file.truncate(far + 100)  # takes no disk
    offsets = pa.py_buffer(np.array([0, far, far + 2, far + 3], np.int64))
    text = pa.LargeStringArray.from_buffers(3, offsets, pa.memory_map(str(path)).read_buffer())
    schema = pa.schema({"s": pa.string()})
    assert cast_columns(pa.table({"s": text.slice(1)}), schema)["s"].to_pylist() == ["\0\0", "\0"]
