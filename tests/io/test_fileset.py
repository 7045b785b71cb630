"""Files seen as one table: joined schemas, folder keys, slices, and what is left out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import BadFileError, SchemaError, SkippedFileWarning, SourceNotFoundError
from tabfeed.io import Dataset, Partition, Piece
from tests.io.damage import flip_in_page, write_checked

TABLE = pa.table({"a": range(30), "b": [i / 2 for i in range(30)]})


def write(path: Path, columns: dict[str, object], **options: object) -> str:
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def test_files_that_differ_a_little(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": pa.array([1], pa.int32()), "only_a": ["p"]})
    write(
        tmp_path / "b.parquet", {"x": pa.array([2**40]), "d": pa.array(["q"]).dictionary_encode()}
    )
    write(tmp_path / "c.parquet", {"d": pa.array(["r"]), "x": pa.array([None], pa.null())})
    ds = Dataset(tmp_path)
    assert {c.name: str(c.dtype) for c in ds.schema} == {
        "x": "int64",
        "only_a": "string",
        "d": "string",
    }
    assert ds.to_arrow().to_pylist() == [
        {"x": 1, "only_a": "p", "d": None},
        {"x": 2**40, "only_a": None, "d": "q"},
        {"x": None, "only_a": None, "d": "r"},
    ]
    assert ds.read(0, ["d", "x"]).to_pydict() == {"d": [None], "x": [1]}
    assert ds.read(0, ["d"]).to_pydict() == {"d": [None]}  # nothing of the file itself
    assert ds.repartition(npartitions=1).read(0, ["only_a"]).to_pydict() == {
        "only_a": ["p", None, None]
    }


def test_a_read_without_columns_knows_its_rows(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet", {"x": range(5)}, row_group_size=2)
    ds = Dataset(tmp_path, npartitions=1)
    assert ds.read(0, []).num_rows == 10


def test_keys_as_columns_whole_and_in_slices(tmp_path: Path) -> None:
    for day, rows in ((1, 4), (2, 2)):
        (tmp_path / f"day={day}").mkdir()
        write(tmp_path / f"day={day}" / "a.parquet", {"x": range(rows)})
    for ds in (
        Dataset(tmp_path),
        Dataset(tmp_path, part_size=17),
        Dataset(tmp_path, npartitions=4),
    ):
        assert ds.to_arrow().column("day").to_pylist() == [1, 1, 1, 1, 2, 2]
        assert ds.select(["day"]).to_arrow().to_pydict() == {"day": [1, 1, 1, 1, 2, 2]}
    texts = Dataset(tmp_path, dtypes={"day": "string"})
    assert texts.head(1).to_dicts() == [{"x": 0, "day": "1"}]


def test_a_column_in_the_file_wins_over_its_folder(tmp_path: Path) -> None:
    (tmp_path / "x=9").mkdir()
    write(tmp_path / "x=9" / "a.parquet", {"x": [1, 2]})
    assert Dataset(tmp_path).to_arrow().to_pydict() == {"x": [1, 2]}


def test_dictionaries_of_many_files_that_do_not_fit_one_index(tmp_path: Path) -> None:
    small = pa.dictionary(pa.int8(), pa.string())
    for i in range(2):
        words = pa.array([f"{i}-{k}" for k in range(100)]).dictionary_encode().cast(small)
        write(tmp_path / f"{i}.parquet", {"w": words, "x": range(100)})
    expected = [f"{i}-{k}" for i in range(2) for k in range(100)]
    for ds in (Dataset(tmp_path, npartitions=1), Dataset(tmp_path, npartitions=7)):
        assert ds.to_arrow().column("w").to_pylist() == expected
        assert ds.to_polars()["w"].to_list() == expected
        assert len(ds.sample(50)) == 50
    filtered = Dataset(tmp_path, npartitions=1, filters=[("x", ">=", 0)])
    assert filtered.read(0).column("w").to_pylist() == expected


@pytest.mark.parametrize("free", [0, 10**12])
def test_many_columns_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    (tmp_path / "day=3").mkdir()
    table = pa.table({f"c{i}": range(i, i + 50) for i in range(6)})
    table = table.append_column("s", pa.array([f"t{i}" for i in range(50)]))
    pq.write_table(table, tmp_path / "day=3" / "a.parquet", row_group_size=25)
    calls: list[list[str]] = []
    whole, stream = pq.ParquetFile.read_row_groups, pq.ParquetFile.iter_batches

    def read_row_groups(self: Any, units: Any, columns: Any, **options: Any) -> Any:
        calls.append(columns)
        return whole(self, units, columns=columns, **options)

    def iter_batches(self: Any, rows: int, *, columns: Any, **options: Any) -> Any:
        calls.append(columns)
        return stream(self, rows, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read_row_groups)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    files = Dataset(tmp_path).fileset
    for method in (files.stream, files.files[0].read):  # as if there were room for one page only
        monkeypatch.setitem(method.__globals__, "HELD_BYTES", 1)
    monkeypatch.setitem(files.stream.__globals__, "free_memory", lambda: free)
    names = ["s", "day", *(f"c{i}" for i in reversed(range(6)))]
    expected = table.append_column("day", pa.array([3] * 50)).select(names)
    for options in ({}, {"part_size": 300}, {"npartitions": 7}):
        calls.clear()
        ds = Dataset(tmp_path, columns=names, **options)
        assert ds.to_arrow().equals(expected)
        assert pa.concat_tables([ds.read(i) for i in range(ds.npartitions)]).equals(expected)
        assert ds.validate().rows == 50
        assert calls and all(len(c) == 1 for c in calls)


def test_a_few_rows_do_not_keep_the_many_they_were_cut_from(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": range(60_000), "s": ["some text"] * 60_000})
    ds = Dataset(tmp_path, npartitions=600)
    tables = [ds.read(i) for i in (0, 300)] + [next(ds.iter_tables())]
    for table in tables:
        assert table.num_rows == 100
        assert table.get_total_buffer_size() < 10_000


# -- leaving out ------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Two files of three row groups of ten; row group 1 of the first is damaged in b."""
    for name in ("a", "b"):
        write_checked(tmp_path / f"{name}.parquet", TABLE, 10)
    flip_in_page(tmp_path / "a.parquet", 1, "b")
    return tmp_path


GOOD = [*range(10), *range(20, 30), *range(30)]


def test_a_damaged_row_group_stops_the_work(damaged: Path) -> None:
    ds = Dataset(damaged)
    assert ds.num_rows == 60
    for read in (ds.to_arrow, lambda: ds.read(0), Dataset(damaged, part_size=50).to_arrow):
        with pytest.raises(BadFileError, match=r"a\.parquet, row group 1, column 'b'"):
            read()


@pytest.mark.parametrize("options", [{}, {"part_size": 60}, {"npartitions": 7}, {"npartitions": 1}])
def test_skip_leaves_out_the_damaged_row_group_only(damaged: Path, options: dict[str, int]) -> None:
    ds = Dataset(damaged, on_bad_file="skip", **options)
    with pytest.warns(SkippedFileWarning, match=r"left out .*a\.parquet, row group 1 \(10 rows\)"):
        assert ds.to_arrow().column("a").to_pylist() == GOOD
    (skipped,) = ds.skipped
    assert (skipped.row_group, skipped.rows) == (1, 10)
    assert "column 'b'" in skipped.reason
    # from now on it is left out of everything, whatever the columns, and is not reported again
    assert ds.num_rows == len(GOOD)
    assert ds.select(["a"]).to_arrow().column("a").to_pylist() == GOOD
    assert [ds.read(i).num_rows for i in range(ds.npartitions)] == ds.partition_lens
    assert len(ds.skipped) == 1


@pytest.mark.parametrize("options", [{}, {"part_size": 60}, {"npartitions": 7}])
def test_under_skip_the_count_is_what_reading_delivers(
    damaged: Path, options: dict[str, int]
) -> None:
    ds = Dataset(damaged, on_bad_file="skip", **options)
    assert "rows not counted" in repr(ds)
    with pytest.warns(SkippedFileWarning):
        lens = ds.partition_lens
    assert ds.num_rows == sum(lens) == 50
    assert [ds.read(i, ["a"]).num_rows for i in range(ds.npartitions)] == lens
    assert [t.num_rows for t in ds.iter_tables(["a"])] == lens
    assert len(ds.sample(50)) == 50


def test_rows_are_counted_again_once_more_is_left_out(damaged: Path) -> None:
    ds = Dataset(damaged, on_bad_file="skip")
    assert ds.select(["a"]).num_rows == 60
    with pytest.warns(SkippedFileWarning):
        ds.to_arrow()
    few = ds.select(["a"])
    assert few.num_rows == few.to_arrow().num_rows == len(few.sample(60)) == 50


def test_damage_in_a_column_that_is_not_used_is_no_damage(damaged: Path) -> None:
    ds = Dataset(damaged, on_bad_file="skip", columns=["a"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ds.num_rows == ds.to_arrow().num_rows == 60
    assert ds.skipped == []


def test_skip_with_a_filter_and_a_map(damaged: Path) -> None:
    ds = Dataset(damaged, on_bad_file="skip", filters=[("a", ">=", 15)])
    with pytest.warns(SkippedFileWarning):
        assert ds.num_rows == 25
    assert ds.to_arrow().column("a").to_pylist() == [*range(20, 30), *range(15, 30)]
    assert ds.map(lambda t: t.slice(0, 1), keeps_rows=False).num_rows == 2


def test_files_that_cannot_be_opened_are_left_out_in_one_warning(tmp_path: Path) -> None:
    write(tmp_path / "good.parquet", {"x": [1]})
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "text.parquet").write_text("hello, world")
    with pytest.warns(SkippedFileWarning) as caught:
        ds = Dataset(tmp_path, on_bad_file="skip")
    assert len(caught) == 1
    assert "left out 2 files, such as" in str(caught[0].message)
    assert [Path(s.file).name for s in ds.skipped] == ["empty.parquet", "text.parquet"]
    assert all(s.row_group is None for s in ds.skipped)
    assert ds.to_arrow().to_pydict() == {"x": [1]}


def test_nothing_left_is_an_error_even_under_skip(tmp_path: Path) -> None:
    (tmp_path / "empty.parquet").touch()
    with pytest.raises(SourceNotFoundError, match=r"none of the 1 files.*empty\.parquet is empty"):
        Dataset(tmp_path, on_bad_file="skip")


def test_a_text_file_that_breaks_under_skip(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "b.csv").write_text("x\n3\n")
    ds = Dataset(tmp_path, on_bad_file="skip")
    (tmp_path / "b.csv").unlink()
    with pytest.warns(SkippedFileWarning, match=r"b\.csv.*gone"):
        assert ds.to_arrow().to_pydict() == {"x": [1, 2]}
    assert ds.num_rows == 2


def test_a_partition_of_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"x": [1]})
    files = Dataset(tmp_path).fileset
    assert files.read(Partition(()), ["x"]).to_pydict() == {"x": []}
    assert files.read(Partition((Piece(0, 0, 0, 0, whole=False),)), ["x"]).num_rows == 0


def test_smaller_units_of_text_do_not_claim_the_rows_of_the_larger(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a\n" + "".join(f"{i:099d}\n" for i in range(30_000)))
    dataset = Dataset(path, part_size="4MB")
    first, *others = dataset.fileset.units()
    known = [*dataset.fileset.counted([first]), *others]  # one of several is counted
    assert known[0].rows is not None
    assert len(known) == 3
    files, divided = dataset.fileset.in_smaller_units(2**18)
    units = [new for piece in known for new in divided(piece)]
    assert len(units) > 10
    assert sum(p.rows or 0 for p in files.counted(units)) == 30_000


@pytest.mark.parametrize("kind", [pa.list_(pa.int64(), 2**30), pa.list_(pa.binary(2**20), 2**11)])
@pytest.mark.parametrize("given", [{}, {"v": pa.nulls(3)}])
def test_nulls_that_would_take_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, given: dict[str, Any]
) -> None:
    write(tmp_path / "a.parquet", {"x": [1, 2, 3], **given})
    write(tmp_path / "b.parquet", {"x": pa.array([], pa.int64()), "v": pa.nulls(0, kind)})
    monkeypatch.setattr("tabfeed.budget.free_memory", lambda: 2**32)
    words = r"column 'v' has no values in .*a\.parquet; nulls of .* rows would take [\d.]+ GB, more"
    with pytest.raises(SchemaError, match=words):
        Dataset(tmp_path).to_arrow()
    assert Dataset(tmp_path, columns=["x"]).to_arrow().num_rows == 3


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64(), 1000), pa.fixed_shape_tensor(pa.float64(), [10, 100])]
)
def test_wide_columns_that_a_file_lacks_count_as_memory(tmp_path: Path, kind: pa.DataType) -> None:
    write(tmp_path / "a.parquet", {"x": range(1000)})
    wide = pa.array([], kind)
    write(tmp_path / "b.parquet", {"x": pa.array([], pa.int64()), "v": wide})
    ds = Dataset(tmp_path, part_size="1MB")
    assert ds.num_rows == 1000
    assert all(t.nbytes < 1.3e6 for t in ds.iter_tables())
    assert ds.npartitions >= 8


def test_wide_columns_that_a_file_lacks_count_in_each_row(tmp_path: Path) -> None:
    texts = ["short"] * 500 + ["long" * 1000] * 500
    pages: dict[str, Any] = {"data_page_size": 1000, "write_batch_size": 10}
    write(tmp_path / "a.parquet", {"t": texts}, use_dictionary=False, **pages)
    wide = pa.nulls(0, pa.list_(pa.float64(), 1000))
    write(tmp_path / "b.parquet", {"t": pa.array([], pa.string()), "v": wide})
    files, piece = Dataset(tmp_path).fileset, Piece(0, 0, 0, 1000)
    sizes = files.row_bytes(piece, ["t", "v"])
    assert sizes is not None
    assert sizes.min() >= 8000
    assert sizes.sum() == pytest.approx(files.nbytes(piece, ["t", "v"]), rel=0.01)
