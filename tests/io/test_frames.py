"""Tables that are in memory, or come from another library."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import ArgumentError, DuplicateColumnError, SchemaError
from tabfeed.io import Dataset
from tabfeed.io.frames import TemporaryFolder

PLAIN = {"x": [1, 2, 3], "s": ["a", None, "c"], "l": [[1], [], None]}
TABLE = pa.table(PLAIN)
SMALL = {"x": pa.int64(), "s": pa.string(), "l": pa.list_(pa.int64())}


def sources() -> dict[str, Any]:
    views = TABLE.cast(pa.schema({**SMALL, "s": pa.string_view()}))
    large = TABLE.cast(pa.schema({**SMALL, "s": pa.large_string(), "l": pa.large_list(pa.int64())}))
    return {
        "dict": PLAIN,
        "arrow": TABLE,
        "large": large,
        "views": views,
        "batch": TABLE.to_batches()[0],
        "reader": TABLE.to_reader(),
        "scanner": pads.dataset(TABLE).scanner(),
        "dataset": pads.dataset(TABLE),
        "polars": pl.DataFrame(PLAIN),
        "lazy": pl.LazyFrame(PLAIN).filter(pl.col("x") > 0),
        "pandas": pd.DataFrame(PLAIN),
        "chunks": pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    }


@pytest.mark.parametrize("kind", list(sources()))
def test_a_column_looks_the_same_from_every_source(kind: str) -> None:
    ds = Dataset(sources()[kind])
    assert {c.name: c.dtype for c in ds.schema} == SMALL
    for _ in range(2):  # a reader can be read once; a dataset again and again
        assert ds.to_arrow().to_pydict() == PLAIN
    assert ds.num_rows == 3
    parts = ds.repartition(npartitions=3)
    assert [parts.read(i).to_pylist() for i in range(3)] == [[row] for row in TABLE.to_pylist()]


def test_polars_types() -> None:
    frame = pl.DataFrame(
        {
            "c": pl.Series(["a", "b"], dtype=pl.Categorical),
            "e": pl.Series(["p", "q"], dtype=pl.Enum(["p", "q"])),
            "a": pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float32, 2)),
            "d": pl.Series([1, 2], dtype=pl.Date),
            "u": pl.Series([1, None], dtype=pl.UInt8),
        }
    )
    for source in (frame, frame.lazy()):
        ds = Dataset(source)
        assert ds.schema["c"].dtype.value_type == pa.string()
        assert ds.schema["a"].dtype == pa.list_(pa.float32(), 2)
        assert ds.schema["u"].dtype == pa.uint8()
        assert ds.to_polars().rows() == frame.rows()


# -- pandas -----------------------------------------------------------------------------


def test_pandas_nullable_dtypes_and_categories() -> None:
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None], dtype="Int16"),
            "b": pd.array([True, None], dtype="boolean"),
            "s": pd.array(["x", None], dtype="string"),
            "c": pd.Categorical(["hi", "lo"], categories=["lo", "hi"], ordered=True),
            "t": pd.to_datetime(["2020-01-01", None]),
            "a": pd.array([1, None], dtype=pd.ArrowDtype(pa.int8())),
        }
    )
    ds = Dataset(frame)
    types = {c.name: c.dtype for c in ds.schema}
    assert (types["i"], types["b"], types["s"]) == (pa.int16(), pa.bool_(), pa.string())
    assert types["c"] == pa.dictionary(pa.int8(), pa.string(), ordered=True)
    assert types["a"] == pa.int8()
    assert ds.to_arrow().column("i").to_pylist() == [1, None]
    assert ds.to_arrow().column("c").to_pylist() == ["hi", "lo"]
    back = ds.to_pandas()
    assert list(back["c"].cat.categories) == ["lo", "hi"]


def test_an_index_without_a_name_goes_and_a_named_one_stays() -> None:
    numbered = pd.DataFrame({"x": [1, 2]}, index=[7, 9])
    assert Dataset(numbered).to_arrow().to_pydict() == {"x": [1, 2]}
    named = pd.DataFrame({"x": [1, 2]}, index=pd.Index(["u", "v"], name="user"))
    assert Dataset(named).to_arrow().to_pydict() == {"user": ["u", "v"], "x": [1, 2]}
    levels = pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["p", None])
    assert Dataset(pd.DataFrame({"x": [5, 6]}, index=levels)).column_names == ["p", "x"]
    with pytest.raises(DuplicateColumnError, match="'x'"):
        Dataset(pd.DataFrame({"x": [1]}, index=pd.Index([1], name="x")))


def test_a_filtered_pandas_frame_and_odd_column_names() -> None:
    frame = pd.DataFrame({0: [1, 2, 3], ("a", 1): [4, 5, 6]})
    ds = Dataset(frame[frame[0] > 1])
    assert ds.to_arrow().to_pydict() == {"0": [2, 3], "('a', 1)": [5, 6]}


def test_a_pandas_column_of_several_types() -> None:
    with pytest.raises(SchemaError, match=r"several types.*'?odd'?"):
        Dataset(pd.DataFrame({"odd": pd.Series([1, "a"], dtype=object)}))


# -- dict of arrays ---------------------------------------------------------------------


def test_arrays_of_every_shape() -> None:
    ds = Dataset(
        {
            "flat": np.array([1, 2], np.uint8),
            "turned": np.arange(4)[::-2],
            "rows": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32).T,
            "cube": np.arange(8).reshape(2, 2, 2),
            "empty": np.zeros((2, 0)),
            "words": np.array(["a", "bc"]),
            "days": np.array(["2020-01-01", "NaT"], "datetime64[D]"),
            "masked": np.ma.array([1, 2], mask=[False, True]),
            "ragged": [[1], [2, 3]],
            "tuple": (1, None),
            "series": pl.Series(["p", "q"]),
            "pandas": pd.Series([1, 2], index=[5, 6]),
        }
    )
    types = {c.name: str(c.dtype) for c in ds.schema}
    assert types["rows"] == "fixed_size_list<item: float>[2]"
    assert types["cube"] == "fixed_size_list<item: fixed_size_list<item: int64>[2]>[2]"
    assert (types["flat"], types["words"], types["days"]) == ("uint8", "string", "date32[day]")
    first, second = ds.to_arrow().to_pylist()
    assert first["rows"] == [1.0, 3.0]
    assert second["cube"] == [[4, 5], [6, 7]]
    assert (first["turned"], second["masked"], second["days"]) == (3, None, None)
    assert (first["empty"], second["ragged"], second["series"]) == ([], [2, 3], "q")


@pytest.mark.parametrize(
    ("source", "error", "says"),
    [
        ({"x": 5}, ArgumentError, "'x' is a single value"),
        ({"x": "abc"}, ArgumentError, "'x' is a single value"),
        ({"x": np.array(5)}, ArgumentError, "'x' is a single value"),
        ({"x": {"a": 1}}, ArgumentError, "'x' is a single value"),
        ({"x": [1], "y": [1, 2]}, SchemaError, "differ in length.*'y': 2"),
        ({"x": [1, "a"]}, SchemaError, "'x' cannot be made"),
        ({"x": [2**70]}, SchemaError, "'x' cannot be made"),
        ({1: [1], "1": [2]}, DuplicateColumnError, "'1'"),
        (42, ArgumentError, "cannot be made from int.*dict of arrays"),
        ([{"x": 1}], ArgumentError, "cannot be made from list"),
        (None, ArgumentError, "cannot be made from NoneType"),
    ],
)
def test_what_is_no_table(source: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Dataset(source)


def test_duplicate_names_in_memory() -> None:
    twins = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    for source in (twins, twins.to_reader(), pd.DataFrame([[1, 2]], columns=["x", "x"])):
        with pytest.raises(DuplicateColumnError, match="more than one column named 'x'"):
            Dataset(source)


# -- streams ----------------------------------------------------------------------------


def folders() -> set[str]:
    import tempfile

    return {n for n in os.listdir(tempfile.gettempdir()) if n.startswith("tabfeed-")}


def test_a_stream_whose_dictionaries_change() -> None:
    batches = [
        pa.record_batch({"w": pa.array(words).dictionary_encode()})
        for words in (["a", "b"], ["c", "c"], ["a", "d"])
    ]
    ds = Dataset(pa.RecordBatchReader.from_batches(batches[0].schema, batches))
    assert ds.to_arrow().column("w").to_pylist() == ["a", "b", "c", "c", "a", "d"]


def test_what_is_put_on_disk_goes_with_the_dataset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ds = Dataset(TABLE.to_reader())
    derived = ds.select(["x"])
    assert len(folders()) == 1
    del ds
    gc.collect()
    assert derived.to_arrow().to_pydict() == {"x": [1, 2, 3]}
    del derived
    gc.collect()
    assert not folders()


def test_a_forked_child_does_not_remove_its_parents_folder(tmp_path: Path) -> None:
    folder = TemporaryFolder(str(tmp_path))
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.exists()
    folder.remove()
    assert not folder.path.exists()


# -- Arrow datasets ---------------------------------------------------------------------


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        table = pa.table({"x": pa.array([day, day + 10], pa.int32()), "s": ["a", "b"]})
        pq.write_table(table, tmp_path / f"day={day}" / "a.parquet", row_group_size=1)
    return tmp_path


def test_an_arrow_dataset_of_parquet_files_is_not_copied(hive: Path) -> None:
    ds = Dataset(pads.dataset(hive, partitioning="hive"))
    assert ds.files == [str(hive / f"day={d}" / "a.parquet") for d in (1, 2)]
    assert ds.schema["day"].dtype == pa.int32()  # Arrow's choice, kept
    assert ds.to_arrow().to_pydict() == {
        "x": [1, 11, 2, 12],
        "s": ["a", "b", "a", "b"],
        "day": [1, 1, 2, 2],
    }


def test_an_arrow_dataset_with_a_mind_of_its_own_is_read_by_arrow(hive: Path) -> None:
    dataset = pads.dataset(hive, partitioning="hive")
    filtered = Dataset(dataset.filter(pc.field("x") > 5))
    assert filtered.to_arrow().column("x").to_pylist() == [11, 12]
    narrow = Dataset(pads.dataset(hive, schema=pa.schema({"x": pa.int64()})))
    assert narrow.to_arrow().to_pydict() == {"x": [1, 11, 2, 12]}
    assert narrow.schema["x"].dtype == pa.int64()
    chosen = [f.subset(row_group_ids=[1]) for f in dataset.get_fragments()]
    part = pads.FileSystemDataset(chosen, dataset.schema, dataset.format, dataset.filesystem)
    assert Dataset(part).to_arrow().column("x").to_pylist() == [11, 12]


# -- Dask -------------------------------------------------------------------------------


def test_a_dask_frame_keeps_its_partitions() -> None:
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"x": range(10), "s": [f"{i}" for i in range(10)]})
    ds = Dataset(dd.from_pandas(frame, npartitions=3))
    assert ds.npartitions == 3
    assert "rows not counted" in repr(ds)
    assert ds.num_rows == 10
    assert ds.to_arrow().to_pydict() == frame.to_dict("list")
    assert ds.select(["s"]).read(0).column_names == ["s"]
    assert Dataset(dd.from_pandas(frame, npartitions=3), npartitions=5).partition_lens == [2] * 5


def test_a_dask_frame_with_a_named_index_and_many_categories() -> None:
    dd = pytest.importorskip("dask.dataframe")
    words = [f"w{i}" for i in range(300)]
    frame = pd.DataFrame({"c": pd.Categorical(words)}, index=pd.Index(range(300), name="id"))
    ds = Dataset(dd.from_pandas(frame, npartitions=2))
    assert ds.column_names == ["id", "c"]
    assert ds.schema["c"].dtype == pa.dictionary(pa.int32(), pa.string())
    assert ds.to_arrow().to_pydict() == {"id": list(range(300)), "c": words}
