from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import ColumnSchema, Dataset, Schema, Shuffle
from tabfeed.errors import (
    ArgumentError,
    ColumnNotFoundError,
    DatasetExistsError,
    SchemaError,
    UnfinishedDatasetError,
    WriteError,
)
from tabfeed.execute import LocalExecutor
from tests.waiting import HANG

ROWS = 1000
STAGING = "_tabfeed_writing"


@pytest.fixture
def ds() -> Dataset:
    return Dataset({"i": np.arange(ROWS), "t": [f"t{i % 7}" for i in range(ROWS)]}, npartitions=10)


def order(ds: Dataset) -> list[int]:
    return ds.to_arrow()["i"].to_pylist()


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


# -- files ------------------------------------------------------------------------------


def test_one_file_a_partition_by_default(ds: Dataset, tmp_path: Path) -> None:
    out = ds.to_parquet(tmp_path / "o")
    assert names(tmp_path / "o") == ["_tabfeed.json", *[f"part_{i}.parquet" for i in range(10)]]
    assert order(out) == list(range(ROWS))


@pytest.mark.parametrize("files", [1, 3, 10, 23])
def test_as_many_files_as_asked_of_nearly_equal_rows(
    ds: Dataset, tmp_path: Path, files: int
) -> None:
    out = ds.to_parquet(tmp_path / "o", output_files=files)
    rows = [pq.read_metadata(f).num_rows for f in out.files]
    assert len(rows) == files
    assert max(rows) - min(rows) <= (ROWS // 10 if files < 10 else 1)
    assert order(out) == list(range(ROWS))


def test_more_files_than_rows(tmp_path: Path) -> None:
    out = Dataset({"i": [1, 2]}).to_parquet(tmp_path / "o", output_files=4)
    assert len(out.files) == 4
    assert order(out) == [1, 2]


def test_files_of_one_row_each(tmp_path: Path) -> None:
    out = Dataset({"i": [1, 2, 3]}).to_parquet(tmp_path / "o", output_files=3, shuffle="FULL")
    assert [pq.read_metadata(f).num_rows for f in out.files] == [1, 1, 1]
    assert sorted(order(out)) == [1, 2, 3]


def test_names_are_kept_and_so_is_their_order(ds: Dataset, tmp_path: Path) -> None:
    out = ds.to_parquet(tmp_path / "o", output_files=["b", "a10", "a9.parquet", "sub/c"])
    assert [os.path.relpath(f, tmp_path / "o") for f in out.files] == [
        "b.parquet",
        "a10.parquet",
        "a9.parquet",
        "sub/c.parquet",
    ]
    assert order(out) == order(Dataset(tmp_path / "o")) == list(range(ROWS))


def test_a_mapping_places_partitions(ds: Dataset, tmp_path: Path) -> None:
    places = {"late": [9, 8], "early": [0], "rest": [1, 2, 3, 4, 5, 6, 7]}
    out = ds.to_parquet(tmp_path / "o", output_files=places)
    late = pq.read_table(tmp_path / "o" / "late.parquet")["i"].to_pylist()
    assert late == [*range(900, 1000), *range(800, 900)]
    assert order(out) == [*late, *range(100), *range(100, 800)]


def test_preserved_files(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for name, start in (("day.1", 0), ("day.2", 10), ("day.10", 20), ("empty", 30)):
        rows = 0 if name == "empty" else 10
        pq.write_table(pa.table({"i": np.arange(start, start + rows)}), source / f"{name}.parquet")
    for cut in ({"npartitions": 7}, {"part_size": 32}, {}):
        out = Dataset(source, **cut).to_parquet(tmp_path / "o", preserve_files=True, overwrite=True)
        assert names(tmp_path / "o") == ["_tabfeed.json", *names(source)]
        for name in names(source):
            assert pq.read_table(tmp_path / "o" / name).equals(pq.read_table(source / name))
        assert order(out) == list(range(30))


def test_preserved_names_of_other_formats(tmp_path: Path) -> None:
    (tmp_path / "a.b.csv").write_text("i\n1\n2\n")
    out = Dataset(tmp_path / "a.b.csv").to_parquet(tmp_path / "o", preserve_files=True)
    assert names(tmp_path / "o") == ["_tabfeed.json", "a.b.parquet"]
    assert order(out) == [1, 2]


def test_no_rows_at_all(tmp_path: Path) -> None:
    table = pa.table({"i": pa.array([], pa.int8()), "k": pa.array([], pa.string())})
    for n, options in enumerate(
        [
            {},
            {"output_files": 3},
            {"shuffle": "FULL"},
            {"shuffle": "PER_WORKER"},
            {"shuffle": "PER_PARTITION", "layout": "fast"},
            {"partition_on": "k"},
            {"partition_on": "k", "shuffle": "FULL"},
        ]
    ):
        out = Dataset(table).to_parquet(tmp_path / str(n), **options)
        assert out.num_rows == 0
        assert out.column_names == ["i", "k"]
        assert out.to_arrow().equals(table)
        assert out.head().shape == (0, 2)


def test_an_empty_dataset_written_twice(tmp_path: Path) -> None:
    first = Dataset({"i": pa.array([], pa.int8())}).to_parquet(tmp_path / "a")
    second = first.to_parquet(tmp_path / "b", shuffle="FULL")
    assert second.schema["i"].dtype == pa.int8()


def test_filters_and_maps_are_applied(tmp_path: Path) -> None:
    ds = Dataset({"i": range(100)}, npartitions=4, filters=[("i", ">=", 90)])
    twice = ds.map(lambda t: pa.concat_tables([t, t]))  # says nothing of the rows it adds
    for shuffle in (None, "PER_PARTITION", "PER_WORKER", "FULL"):
        out = twice.to_parquet(tmp_path / str(shuffle), shuffle=shuffle, output_files=2)
        assert sorted(order(out)) == sorted([*range(90, 100)] * 2)


def test_a_map_may_return_other_types_than_it_declared(tmp_path: Path) -> None:
    schema = Schema([ColumnSchema("i", "int64")])
    ds = Dataset({"i": range(10)}, npartitions=2)

    def narrow(table: pa.Table) -> pa.Table:
        kind = pa.int8() if table["i"][0].as_py() == 0 else pa.int32()
        return pa.table({"i": table["i"].cast(kind)})

    for shuffle in (None, "FULL"):
        out = ds.map(narrow, schema=schema).to_parquet(tmp_path / str(shuffle), shuffle=shuffle)
        assert out.to_arrow()["i"].type == pa.int64()
        assert sorted(order(out)) == list(range(10))
    wrong = ds.map(lambda t: pa.table({"i": ["x"] * t.num_rows}), schema=schema)
    with pytest.raises(SchemaError, match="column 'i'"):
        wrong.to_parquet(tmp_path / "wrong")


@pytest.mark.parametrize("options", [{}, {"shuffle": "PER_PARTITION"}, {"output_files": 3}])
def test_numbered_maps_know_their_place(tmp_path: Path, options: dict[str, Any]) -> None:
    def number(table: pa.Table, first: int) -> pa.Table:
        return table.append_column("n", pa.array(np.arange(first, first + table.num_rows)))

    source = tmp_path / "in"
    Dataset({"i": range(100)}).to_parquet(source, output_files=3, row_group_size=7)
    for kind, more in (("npartitions", {"npartitions": 5}), ("files", {})):
        keep = {"preserve_files": True} if not options and kind == "npartitions" else {}
        ds = Dataset(source, **more).map(number, numbered=True)
        out = ds.to_parquet(tmp_path / "o", overwrite=True, **options, **keep).to_arrow()
        assert sorted(out["i"].to_pylist()) == list(range(100))
        assert out["i"].to_pylist() == out["n"].to_pylist()


# -- shuffles ---------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", list(Shuffle))
def test_the_same_seed_gives_the_same_bytes(ds: Dataset, tmp_path: Path, shuffle: Shuffle) -> None:
    a = ds.to_parquet(tmp_path / "a", shuffle=shuffle, seed=5)
    one = LocalExecutor(threads=1)
    b = ds.to_parquet(tmp_path / "b", shuffle=shuffle, seed=5, executor=one)
    c = ds.to_parquet(tmp_path / "c", shuffle=shuffle, seed=6)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert sorted(order(a)) == list(range(ROWS))
    assert order(a) == order(b) != order(c)
    assert order(a) != list(range(ROWS))


def test_per_partition_keeps_partitions_whole_and_moves_them(ds: Dataset, tmp_path: Path) -> None:
    out = ds.to_parquet(tmp_path / "o", shuffle="per_partition", output_files=2)
    rows = np.array(order(out)).reshape(10, 100)
    whole = [sorted(block) for block in rows.tolist()]
    assert sorted(whole) == [list(range(i, i + 100)) for i in range(0, ROWS, 100)]
    assert whole != sorted(whole)
    assert all(block.tolist() != sorted(block) for block in rows)
    assert len({tuple(np.argsort(block)) for block in rows}) == 10  # each in an order of its own


@pytest.mark.parametrize("limit", [None, 1])
def test_per_worker_shuffles_within_each_file(
    ds: Dataset, tmp_path: Path, limit: int | None
) -> None:
    ds.to_parquet(tmp_path / "o", shuffle="PER_WORKER", output_files=2, memory_limit=limit)
    for i in range(2):
        rows = pq.read_table(tmp_path / "o" / f"part_{i}.parquet")["i"].to_numpy()
        assert sorted(rows.tolist()) == list(range(500 * i, 500 * (i + 1)))
        blocks = {int(r) // 100 for r in rows[:50]}
        assert len(blocks) > 2


def test_a_full_shuffle_is_the_same_however_it_is_done(tmp_path: Path) -> None:
    n = 60_000
    table = pa.table({"i": np.arange(n), "t": [f"some text {i}" for i in range(n)]})
    source = tmp_path / "in"
    Dataset(table).to_parquet(source, output_files=3, row_group_size=9_999)
    results = []
    for number, (ds, limit) in enumerate(
        [
            (Dataset(table), None),
            (Dataset(table, npartitions=7), 1 << 20),
            (Dataset(source, part_size=200_000), 1 << 21),
            (Dataset(source), "1MB"),
        ]
    ):
        out = ds.to_parquet(
            tmp_path / str(number),
            shuffle="FULL",
            memory_limit=limit,
            output_files=2,
            row_group_size=10_000,
        )
        assert not (tmp_path / str(number) / STAGING).exists()
        results.append(contents(tmp_path / str(number)))
        del results[-1]["_tabfeed.json"]  # says which columns may be null, as the source did
        rows = out.to_arrow()
        assert rows["t"].to_pylist() == [f"some text {i}" for i in rows["i"].to_pylist()]
    assert sorted(rows["i"].to_pylist()) == list(range(n))
    assert all(r == results[0] for r in results)


def test_a_full_shuffle_counts_what_it_reads(tmp_path: Path) -> None:
    """Text files do not know their rows; nothing reads them twice to find out."""
    (tmp_path / "a.csv").write_text("i\n" + "\n".join(map(str, range(500))) + "\n")
    out = Dataset(tmp_path / "a.csv").to_parquet(tmp_path / "o", shuffle="FULL", output_files=3)
    assert [pq.read_metadata(f).num_rows for f in out.files] == [166, 167, 167]
    assert sorted(order(out)) == list(range(500))


# -- on a cluster -----------------------------------------------------------------------


class Cluster(LocalExecutor):
    """Tasks and what they give are copied, as between processes."""

    remote, task_memory = True, 1 << 20

    def map(self, items: Any, fn: Any) -> Any:
        for result in super().map(items, pickle.loads(pickle.dumps(fn))):
            yield pickle.loads(pickle.dumps(result))

    def require_files(self, files: Any) -> None:
        assert files

    def require_folder(self, place: Any) -> None:
        assert STAGING in place.path

    def __reduce__(self) -> Any:
        return LocalExecutor, ()


@pytest.mark.parametrize("shuffle", [None, *Shuffle])
def test_a_cluster_writes_the_same_rows_in_the_same_order(
    tmp_path: Path, shuffle: Shuffle | None
) -> None:
    n = 60_000
    table = pa.table({"i": np.arange(n), "t": [f"some text {i}" for i in range(n)]})
    source = Dataset(table).to_parquet(tmp_path / "in", output_files=3, row_group_size=9_999)
    ds = Dataset(source.files, part_size=200_000)
    files = ["b", "a", "c"]
    outs = [
        ds.to_parquet(
            tmp_path / kind.__name__, shuffle=shuffle, output_files=files, executor=kind()
        )
        for kind in (LocalExecutor, Cluster)
    ]
    here, there = ([pq.read_table(f) for f in out.files] for out in outs)
    assert all(a.equals(b) for a, b in zip(here, there, strict=True))
    assert names(tmp_path / "Cluster") == names(tmp_path / "LocalExecutor")
    assert names(tmp_path / "Cluster") == ["_tabfeed.json", "a.parquet", "b.parquet", "c.parquet"]


# -- within its memory ------------------------------------------------------------------


@pytest.fixture
def one_part(tmp_path: Path) -> Dataset:
    """100,000 rows of 8 bytes in one row group."""
    return Dataset({"i": np.arange(100_000)}).to_parquet(
        tmp_path / "one", output_files=1, row_group_size=100_000
    )


@pytest.mark.parametrize("shuffle", [None, "PER_WORKER", "FULL"])
def test_a_map_that_counts_on_its_partitions_has_them_whole(
    one_part: Dataset, tmp_path: Path, shuffle: str | None
) -> None:
    rows: list[int] = []

    def watch(table: pa.Table) -> pa.Table:
        rows.append(table.num_rows)
        return table

    watched = one_part.map(watch, schema=one_part.schema, keeps_rows=False)
    watched.to_parquet(tmp_path / "o", shuffle=shuffle, memory_limit="1MiB")
    assert [n for n in rows if n > 256] == [100_000]  # and a few rows, for their size


def test_a_numbered_map_knows_its_place_within_a_limit(one_part: Dataset, tmp_path: Path) -> None:
    def number(table: pa.Table, first: int) -> pa.Table:
        return table.append_column("n", pa.array(np.arange(first, first + table.num_rows)))

    numbered = one_part.map(number, numbered=True)
    out = numbered.to_parquet(tmp_path / "o", shuffle="PER_WORKER", memory_limit="1MiB").to_arrow()
    assert out["i"].to_pylist() == out["n"].to_pylist()


@pytest.mark.parametrize("shuffle", [None, "FULL"])
def test_row_groups_take_a_sixteenth_of_the_limit(tmp_path: Path, shuffle: str | None) -> None:
    ds = Dataset({"i": np.arange(300_000)})
    out = ds.to_parquet(tmp_path / "o", output_files=1, shuffle=shuffle, memory_limit="16MiB")
    metadata = pq.read_metadata(out.files[0])
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert rows == [131_072, 131_072, 37_856]


@pytest.mark.parametrize("parts", [1, 2, 6])
def test_how_large_it_is_in_memory_is_known_or_measured(parts: int) -> None:
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"a": np.arange(600)})
    for ds in (
        Dataset(frame, npartitions=parts),
        Dataset(dd.from_pandas(frame, npartitions=parts)),
    ):
        assert ds.table.estimated_bytes() == pytest.approx(4800, rel=0.01)


@pytest.mark.parametrize("executor", [LocalExecutor(2), Cluster(2)])
@pytest.mark.parametrize("shuffle", [None, "FULL"])
def test_the_bar_ends_where_it_says(
    one_part: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shuffle: str | None,
    executor: LocalExecutor,
) -> None:
    totals, done = [], []

    class Bar:
        def advance(self, amount: int = 1) -> None:
            done.append(amount)

    @contextmanager
    def progress(what: str, total: int | None) -> Iterator[Bar]:
        totals.append(total)
        yield Bar()

    monkeypatch.setattr("tabfeed.io.write.writer.progress", progress)
    one_part.to_parquet(tmp_path / "o", shuffle=shuffle, executor=executor)
    assert totals == [sum(done)]


# -- when it fails ----------------------------------------------------------------------


def fail_at(number: int, error: Exception) -> Callable[[pa.Table], pa.Table]:
    def check(table: pa.Table) -> pa.Table:
        if table.num_rows and table["i"][-1].as_py() >= number:
            raise error
        return table

    return check


@pytest.mark.parametrize("shuffle", [None, *Shuffle])
@pytest.mark.parametrize("partition_on", [None, "t"])
@pytest.mark.parametrize("error", [RuntimeError("boom"), FileNotFoundError(2, "no such table")])
def test_a_failing_source_leaves_the_old_dataset(
    ds: Dataset, tmp_path: Path, shuffle: Shuffle | None, partition_on: str | None, error: Exception
) -> None:
    Dataset({"i": [1, 2, 3]}).to_parquet(tmp_path / "o")
    before = contents(tmp_path / "o")
    broken = ds.map(fail_at(700, error), schema=ds.schema)
    with pytest.raises(type(error), match=r"boom|no such table") as caught:
        broken.to_parquet(
            tmp_path / "o",
            shuffle=shuffle,
            overwrite=True,
            partition_on=partition_on,
            row_group_size=50,
            memory_limit=1,
        )
    assert caught.value is error  # not taken for a full disk
    assert contents(tmp_path / "o") == before
    assert names(tmp_path / "o") == ["_tabfeed.json", "part_0.parquet"]
    with pytest.raises(type(error)):
        broken.to_parquet(tmp_path / "new", shuffle=shuffle, partition_on=partition_on)
    assert not (tmp_path / "new").exists()


def test_a_failing_writer_leaves_no_thread(ds: Dataset, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    broken = ds.map(fail_at(100, RuntimeError("boom")), schema=ds.schema)
    with pytest.raises(RuntimeError):
        broken.to_parquet(tmp_path / "o", executor=LocalExecutor(threads=4))
    assert set(threading.enumerate()) <= before


FULL_DISK = """
    import resource, signal, sys
    import numpy as np, pyarrow as pa
    from tabfeed import Dataset
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    rng = np.random.default_rng(0)
    i = np.arange(300_000)
    table = pa.table({"i": i, "f": rng.random(len(i)), "k": i % 3})
    ds = Dataset(table, npartitions=3)
    options = eval(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        ds.to_parquet(sys.argv[1], overwrite=True, **options)
    except BaseException as e:
        print(type(e).__name__, e)
"""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition_on": ["k"]},
        {"layout": "fast", "row_group_size": 1000},
        {"shuffle": "FULL"},
        {"shuffle": "FULL", "memory_limit": "1MB"},
        {"shuffle": "PER_WORKER", "memory_limit": "1MB"},
    ],
)
def test_a_full_disk(tmp_path: Path, options: dict[str, Any]) -> None:
    """A real error of the operating system, at the first byte too many."""
    Dataset({"i": [1, 2, 3]}).to_parquet(tmp_path / "o")
    before = contents(tmp_path / "o")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path / "o"), repr(options)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("WriteError could not write ")
    assert f"{tmp_path}/o/" in done.stdout
    assert "File too large" in done.stdout or "27" in done.stdout
    assert "run it again" in done.stdout
    assert done.stderr == ""
    assert contents(tmp_path / "o") == before
    assert names(tmp_path / "o") == ["_tabfeed.json", "part_0.parquet"]


# -- what is there already --------------------------------------------------------------


def test_an_existing_dataset_is_replaced_only_when_asked(ds: Dataset, tmp_path: Path) -> None:
    ds.to_parquet(tmp_path / "o", partition_on="t", output_files=1)
    with pytest.raises(DatasetExistsError, match="overwrite=True"):
        ds.to_parquet(tmp_path / "o")
    out = ds.select(["i"]).to_parquet(tmp_path / "o", overwrite=True, output_files=2)
    assert names(tmp_path / "o") == ["_tabfeed.json", "part_0.parquet", "part_1.parquet"]
    assert order(out) == list(range(ROWS))


def test_what_else_is_in_the_folder_stays_and_does_not_disturb(ds: Dataset, tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    (tmp_path / "plot.png").write_bytes(b"mine")
    for _ in range(2):
        out = ds.to_parquet(tmp_path, overwrite=True, output_files=1)
        assert order(out) == order(Dataset(tmp_path)) == list(range(ROWS))
    assert (tmp_path / "README").read_text() == "mine"
    assert names(tmp_path) == ["README", "_tabfeed.json", "part_0.parquet", "plot.png"]


def test_a_folder_with_only_an_unfinished_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    (tmp_path / STAGING).mkdir()
    (tmp_path / STAGING / "part_0.parquet").write_bytes(b"PAR1")
    for engine in (None, "parquet"):
        with pytest.raises(UnfinishedDatasetError, match="an unfinished write"):
            Dataset(tmp_path, engine=engine)
    out = Dataset({"i": [7]}).to_parquet(tmp_path)
    assert order(out) == [7]
    assert names(tmp_path) == ["README", "_tabfeed.json", "part_0.parquet"]


def test_a_numbered_map_into_several_files_of_one_row_group(tmp_path: Path) -> None:
    def number(table: pa.Table, first: int) -> pa.Table:
        return table.append_column("n", pa.array(range(first, first + table.num_rows), pa.int64()))

    schema = Schema([ColumnSchema("i", "int64"), ColumnSchema("n", "int64")])
    source = Dataset({"i": np.arange(ROWS)}).to_parquet(tmp_path / "in", output_files=1)
    out = source.map(number, schema=schema, numbered=True).to_parquet(
        tmp_path / "out", output_files=3
    )
    table = out.to_arrow()
    assert len(out.files) == 3 and table["n"].to_pylist() == table["i"].to_pylist()


def test_a_dataset_is_not_written_over_itself(ds: Dataset, tmp_path: Path) -> None:
    out = ds.to_parquet(tmp_path / "o")
    with pytest.raises(ArgumentError, match="over itself"):
        out.to_parquet(tmp_path / "o", overwrite=True)


def test_two_at_once(ds: Dataset, tmp_path: Path) -> None:
    """One writes, the other is told so; afterwards the folder is whole."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(table: pa.Table) -> pa.Table:
        inside.set()
        assert go_on.wait(HANG)
        return table

    first = threading.Thread(
        target=ds.map(slow, schema=ds.schema).to_parquet, args=(tmp_path / "o",)
    )
    first.start()
    try:
        assert inside.wait(HANG)
        with pytest.raises(WriteError, match="another process is writing"):
            ds.to_parquet(tmp_path / "o", overwrite=True)
    finally:
        go_on.set()
        first.join()
    assert order(Dataset(tmp_path / "o")) == list(range(ROWS))


def test_memory_filesystem(ds: Dataset) -> None:
    memory = fsspec.filesystem("memory")
    url = "memory://test_writer/o"
    try:
        for shuffle in (None, "FULL"):
            out = ds.to_parquet(
                url, shuffle=shuffle, overwrite=True, output_files=2, memory_limit=1
            )
            assert sorted(order(out)) == list(range(ROWS))
        by_key = ds.to_parquet(url, partition_on="t", overwrite=True, output_files=1)
        assert sorted(order(by_key)) == list(range(ROWS))
        with pytest.raises(DatasetExistsError):
            ds.to_parquet(url)
        found = memory.find("/test_writer")
        assert not [f for f in found if STAGING in f]
    finally:
        memory.rm("/test_writer", recursive=True)


# -- the manifest -----------------------------------------------------------------------


def test_tags_and_rows_are_kept(tmp_path: Path) -> None:
    schema = Schema([ColumnSchema("i", "int64", tags=["target"], properties={"unit": "m"})])
    ds = Dataset({"i": range(10)}, schema=schema, npartitions=2)
    out = ds.to_parquet(tmp_path / "o")
    assert out.schema == ds.schema
    assert Dataset(tmp_path / "o").schema["i"].properties == {"unit": "m"}
    manifest = json.loads((tmp_path / "o" / "_tabfeed.json").read_text())
    assert [f["rows"] for f in manifest["files"]] == [5, 5]


def test_a_schema_that_cannot_be_saved_is_said_before_anything_is_written(tmp_path: Path) -> None:
    schema = Schema([ColumnSchema("i", "int64", properties={"fn": print})])
    ds = Dataset({"i": range(10)}, schema=schema)
    with pytest.raises(SchemaError, match="properties of i"):
        ds.to_parquet(tmp_path / "o")
    assert not (tmp_path / "o").exists()


# -- arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shuffle": "ALL"}, "shuffle is 'ALL'; it must be one of PER_PARTITION"),
        ({"shuffle": 3}, "shuffle is 3"),
        ({"seed": -1}, "seed is -1"),
        ({"output_files": 0}, "output_files is 0"),
        ({"output_files": "x.parquet"}, "give a list of names"),
        ({"output_files": ["a", "a.parquet"]}, "name each file once"),
        ({"output_files": []}, "name each file once"),
        ({"output_files": ["_a"]}, "is not a plain name"),
        ({"output_files": ["a/.b"]}, "is not a plain name"),
        ({"output_files": ["../a"]}, "not a name below the folder"),
        ({"output_files": ["/a"]}, "not a name below the folder"),
        ({"output_files": ["k=1/a"]}, "not a name below the folder"),
        ({"output_files": {"a": [0], "b": [0, 1]}}, "place each of the 10 partitions once"),
        ({"output_files": {"a": range(10)}, "shuffle": "FULL"}, "give names or a number"),
        ({"output_files": 2, "out_files_per_proc": 2}, "not both"),
        ({"preserve_files": True}, "come from memory"),
        ({"preserve_files": True, "output_files": 2}, "no output_files"),
        ({"preserve_files": True, "shuffle": "FULL"}, "no preserve_files"),
        ({"partition_on": ["i", "t"]}, "names every column"),
        ({"memory_limit": "much"}, "memory_limit is 'much'"),
        ({"memory_limit": 0}, "memory_limit is 0"),
        ({"compression": "zip"}, "compression is 'zip'"),
    ],
)
def test_arguments_are_checked_before_anything_is_written(
    ds: Dataset, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        ds.to_parquet(tmp_path / "o", **options)
    assert not (tmp_path / "o").exists()


def test_an_unknown_key(ds: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ColumnNotFoundError, match=r"no column 'tt'.*did you mean 't'"):
        ds.to_parquet(tmp_path / "o", partition_on="tt")


@pytest.mark.parametrize(
    "column", [[[1], [2]], [{"a": 1}, {"a": 2}], [b"x", b"y"], pa.array([b"x"]).dictionary_encode()]
)
def test_folders_are_not_named_by_values_that_are_no_text(tmp_path: Path, column: Any) -> None:
    table = pa.table({"k": column, "i": range(len(column))})
    with pytest.raises(ArgumentError, match="folders are named by numbers"):
        Dataset(table).to_parquet(tmp_path / "o", partition_on="k")
    assert not (tmp_path / "o").exists()


def test_files_of_one_name_cannot_be_preserved(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        Dataset({"i": [1]}).to_parquet(tmp_path / folder)
    ds = Dataset([tmp_path / "a" / "part_0.parquet", tmp_path / "b" / "part_0.parquet"])
    with pytest.raises(ArgumentError, match="two input files are named 'part_0'"):
        ds.to_parquet(tmp_path / "o", preserve_files=True)


@pytest.mark.parametrize(
    ("shuffle", "expected"),
    [
        ("PER_PARTITION", [11, 10, 8, 9, 2, 0, 1, 3, 6, 4, 5, 7]),
        ("PER_WORKER", [2, 0, 1, 3, 8, 6, 10, 11, 9, 4, 5, 7]),
        ("FULL", [2, 9, 0, 6, 11, 1, 10, 5, 8, 7, 4, 3]),
    ],
)
def test_a_seed_gives_one_order_for_ever(tmp_path: Path, shuffle: str, expected: list[int]) -> None:
    ds = Dataset({"i": np.arange(12)}, npartitions=3)
    assert order(ds.to_parquet(tmp_path / "o", shuffle=shuffle, seed=5, output_files=2)) == expected
