"""Tables that are in memory, or come from another library."""

from __future__ import annotations

import datetime
import decimal
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

from tabfeed import Workflow, ops
from tabfeed.errors import ArgumentError, DuplicateColumnError, SchemaError, TabfeedError
from tabfeed.execute import LocalExecutor
from tabfeed.io import Dataset

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


def test_an_index_is_left_out_unless_it_has_a_name_and_is_asked_for() -> None:
    numbered = pd.DataFrame({"x": [1, 2]}, index=[7, 9])
    assert Dataset(numbered).to_arrow().to_pydict() == {"x": [1, 2]}
    named = pd.DataFrame({"x": [1, 2]}, index=pd.Index(["u", "v"], name="user"))
    assert Dataset(named).to_arrow().to_pydict() == {"x": [1, 2]}
    assert Dataset(named).index_columns == ["user"]
    asked = Dataset(named, columns=["user", "x"])
    assert asked.to_arrow().to_pydict() == {"user": ["u", "v"], "x": [1, 2]}
    levels = pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["p", None])
    assert Dataset(pd.DataFrame({"x": [5, 6]}, index=levels)).index_columns == ["p"]
    with pytest.raises(DuplicateColumnError, match="'x'"):
        Dataset(pd.DataFrame({"x": [1]}, index=pd.Index([1], name="x")))


def test_a_filtered_pandas_frame_and_odd_column_names() -> None:
    frame = pd.DataFrame({0: [1, 2, 3], ("a", 1): [4, 5, 6]})
    ds = Dataset(frame[frame[0] > 1])
    assert ds.to_arrow().to_pydict() == {"0": [2, 3], "('a', 1)": [5, 6]}


def test_a_pandas_column_of_several_types() -> None:
    for odd in ([1, "a"], [2**70], [1j]):
        with pytest.raises(SchemaError, match="column 'odd' of a pandas frame holds values of sev"):
            Dataset(pd.DataFrame({"x": [1] * len(odd), "odd": pd.Series(odd, dtype=object)}))


def test_a_polars_type_that_arrow_does_not_have() -> None:
    frame = pl.DataFrame({"x": [2**70]})
    for use in (Dataset, Workflow(["x"]).transform):
        with pytest.raises(SchemaError, match="cast the column of that type"):
            use(frame)


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
    whole = Dataset(dd.from_pandas(frame, npartitions=2))
    assert (whole.column_names, whole.index_columns) == (["c"], ["id"])
    ds = whole.select(["id", "c"])
    assert ds.schema["c"].dtype == pa.dictionary(pa.int32(), pa.string())
    assert ds.to_arrow().to_pydict() == {"id": list(range(300)), "c": words}


def summed(partitions: int) -> Any:
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"a": np.arange(60), "b": np.arange(60), "k": np.arange(60) % 7})
    ddf = dd.from_pandas(frame, npartitions=partitions)
    ddf["c"] = ddf.a + ddf.b
    return ddf[ddf.c > 10]


def test_threads_that_read_a_dask_frame_do_not_wait_for_each_other() -> None:
    for _ in range(6):  # once, three tries in four hung
        ds = Dataset(summed(8))
        tables = LocalExecutor(8).map(range(8), lambda i, ds=ds: ds.read(i, ["a", "c"]))
        assert sum(t.num_rows for t in tables) == 54


@pytest.mark.parametrize("npartitions", [None, 3])
def test_a_dask_frame_is_shuffled_by_key(npartitions: int | None) -> None:
    ds = Dataset(summed(4)).shuffle_by_keys("k", npartitions=npartitions)
    assert ds.npartitions <= 4  # its size is measured, not taken for endless
    seen = [set(ds.read(i)["k"].to_pylist()) for i in range(ds.npartitions)]
    assert sum(len(keys) for keys in seen) == len(set.union(*seen)) == 7
    assert sorted(ds.to_arrow()["a"].to_pylist()) == list(range(6, 60))


def test_a_dask_frame_is_grouped_and_shuffled_in_full(tmp_path: Path) -> None:
    grouped = Workflow(["k", "a"] >> ops.Groupby("k", aggs="sum")).fit_transform(Dataset(summed(4)))
    wanted = pd.DataFrame({"k": np.arange(6, 60) % 7, "a": np.arange(6, 60)}).groupby("k").a.sum()
    assert dict(grouped.to_arrow().to_pandas().to_numpy().tolist()) == wanted.to_dict()
    written = Dataset(summed(4)).to_parquet(tmp_path / "out", shuffle="FULL", output_files=2)
    assert sorted(written.to_arrow()["a"].to_pylist()) == list(range(6, 60))


def test_to_ddf_keeps_what_pandas_has_no_type_for() -> None:
    pytest.importorskip("dask.dataframe")
    table = pa.table(
        {
            "lists": [[1, 2], None, []],
            "words": [["a"], [None], None],
            "pairs": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "structs": [{"a": 1}, None, {"a": 2}],
            "bytes": [b"a\xff", None, b""],
            "days": [datetime.date(1, 1, 1), None, datetime.date(2020, 1, 1)],
            "sums": [decimal.Decimal("1.5"), None, decimal.Decimal("2.5")],
            "large": [2**62 + 1, None, 3],
            "true": [True, None, False],
            "kinds": pa.array(["x", None, "y"]).dictionary_encode(),
        }
    )
    frame = Dataset(table, npartitions=2).to_ddf()
    assert Dataset(frame).to_arrow().to_pydict() == table.to_pydict()
    assert list(frame.compute()["lists"].iloc[0]) == [1, 2]


@pytest.mark.parametrize(
    "source",
    [{}, pa.table({}), TABLE.select([]), pd.DataFrame(), pd.DataFrame(index=[1]), pl.DataFrame()],
    ids=["dict", "arrow", "selected", "pandas", "index", "polars"],
)
def test_a_frame_without_columns_is_refused(source: Any) -> None:
    with pytest.raises(SchemaError, match=r"<.*> has no columns, so there is nothing to read"):
        Dataset(source)


def test_a_column_without_a_name_is_refused() -> None:
    with pytest.raises(SchemaError, match="name must be a non-empty string"):
        Dataset({"": [1]})


INTERVAL = pa.array([(1, 2, 3)], pa.month_day_nano_interval())


@pytest.mark.parametrize(
    "column",
    [
        INTERVAL,
        pa.StructArray.from_arrays([INTERVAL], ["a"]),
        pa.array([decimal.Decimal("1.5")], pa.decimal256(60, 2)),
        pa.array([[decimal.Decimal("1.5")]], pa.list_(pa.decimal256(60, 2))),
        pa.array([1], pa.timestamp("us", tz="Not/AZone")),
    ],
    ids=lambda c: str(c.type),
)
def test_a_type_that_polars_lacks_is_an_error_that_names_the_column(column: pa.Array) -> None:
    source = Dataset(pa.table({"x": [1], "odd": column}))
    says = r"column 'odd' is .*, which Polars does not have; leave the column out with columns="
    for look in (source.head, source.sample, source.to_polars):
        with pytest.raises(SchemaError, match=says):
            look()
    with pytest.raises(SchemaError, match=says):
        Dataset(pa.table({"x": [1], "odd": column}).slice(1)).head()
    assert source.to_arrow()["odd"].type == column.type
    assert source.select(["x"]).head().to_dicts() == [{"x": 1}]
    with pytest.raises(TabfeedError, match="odd"):
        Workflow(["odd"] >> ops.LambdaOp(lambda e: e, dtype=None)).transform(source.to_arrow())


def test_a_wide_decimal_of_few_digits_becomes_a_narrow_one_in_polars() -> None:
    values = [decimal.Decimal("1.50"), None]
    frame = Dataset(pa.table({"d": pa.array(values, pa.decimal256(38, 2))})).to_polars()
    assert frame["d"].to_list() == values


def _damaged_texts() -> dict[str, pa.Array]:
    bad = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"]).buffers())
    codes, offsets = pa.array([0, 1], pa.int8()), pa.array([0, 1, 2], pa.int32())
    return {
        "string": bad,
        "large": pa.array([b"ok", b"\xff"], pa.large_binary()).view(pa.large_string()),
        "chunked": pa.chunked_array([pa.array(["fine"]), bad.slice(1)]),
        "dictionary": pa.DictionaryArray.from_arrays(codes, bad),
        "list": pa.ListArray.from_arrays(offsets, bad),
        "struct": pa.StructArray.from_arrays([bad], ["inner"]),
    }


@pytest.mark.parametrize("kind", _damaged_texts())
def test_text_that_is_not_utf8_is_refused_with_its_column(kind: str) -> None:
    table = pa.table({"x": [1, 2], "s": _damaged_texts()[kind]})
    refused = pytest.raises(SchemaError, match=r"column 's' of the .* is damaged: Invalid UTF8")
    for source in (table, dict(zip(table.column_names, table.columns, strict=True))):
        dataset = Dataset(source)
        assert dataset.select(["x"]).to_arrow()["x"].to_pylist() == [1, 2]
        for _ in range(2):  # what was refused once is refused again
            with refused:
                dataset.to_arrow()
    with refused:
        Workflow(["s"] >> ops.Rename(postfix="_")).transform(table)


def test_text_that_is_not_utf8_is_refused_in_frames_of_others() -> None:
    bad = pa.table({"k": [1, 2], "s": _damaged_texts()["string"]})
    with pytest.raises(SchemaError, match="column 's' of df_ext is damaged"):
        ops.JoinExternal(bad, on="k")
    frame = bad.to_pandas(types_mapper=pd.ArrowDtype)
    with pytest.raises(SchemaError, match="column 's' of the table is damaged"):
        Dataset(frame).to_arrow()
    dd = pytest.importorskip("dask.dataframe")
    with pytest.raises(SchemaError, match="column 's' of the Dask frame is damaged"):
        Dataset(dd.from_pandas(frame, npartitions=1)).to_arrow()
