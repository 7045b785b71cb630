from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import WriteError
from tabfeed.io.shuffle import local as module
from tabfeed.io.shuffle.local import (
    SpillBudget,
    draw_keys,
    read_bucket,
    shuffled,
    sort_rows,
    split_into_buckets,
)


def pieces(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def numbers(count: int) -> pa.Table:
    return pa.table({"i": np.arange(count)})


def permutation(
    count: int,
    folder: Path,
    *,
    memory: int,
    rows: int = 1000,
    seed: int = 1,
    nbytes: int = 0,
    stream: int = 0,
) -> npt.NDArray[np.int64]:
    tables = shuffled(
        pieces(numbers(count), rows),
        seed=seed,
        stream=stream,
        nbytes=nbytes,
        budget=SpillBudget(memory, folder),
    )
    return np.concatenate([t["i"].to_numpy() for t in tables])


# -- keys -------------------------------------------------------------------------------


def test_keys_do_not_depend_on_where_one_starts() -> None:
    whole = draw_keys(3, 2, 0, 1001)
    parts = [draw_keys(3, 2, start, 77) for start in range(0, 1001, 77)]
    assert (np.concatenate(parts)[:1001] == whole).all()


def test_streams_and_seeds_differ() -> None:
    drawn = {tuple(draw_keys(seed, stream, 0, 4)) for seed in range(3) for stream in range(3)}
    assert len(drawn) == 9


def test_keys_stay_the_same_for_ever() -> None:
    assert draw_keys(0, 0, 0, 2).tolist() == [259491006799949737, 4754966410622352325]


def test_sort_rows_keeps_the_order_of_equal_keys() -> None:
    table = pa.table({"x": ["a", "b", "c", "d"]})
    keys = np.array([2, 1, 2, 0], dtype=np.uint64)
    assert sort_rows(table, keys)["x"].to_pylist() == ["d", "b", "a", "c"]


# -- the shuffle ------------------------------------------------------------------------


def test_the_order_depends_on_seed_and_rows_alone(tmp_path: Path) -> None:
    """Not on the memory, the partitions, the estimate, nor on whether it went over the disk."""
    whole = permutation(60_000, tmp_path, memory=1 << 30)
    assert sorted(whole.tolist()) == list(range(60_000))
    for memory, rows, nbytes in [
        (1, 5000, 0),
        (1 << 20, 7777, 10**12),
        (1 << 20, 60_000, 960_000),
        (1 << 21, 300, 1),
    ]:
        again = permutation(60_000, tmp_path, memory=memory, rows=rows, nbytes=nbytes)
        assert (again == whole).all(), (memory, rows, nbytes)
        assert list(tmp_path.iterdir()) == []
    assert (permutation(60_000, tmp_path, memory=1 << 20, seed=2) != whole).any()
    assert (permutation(60_000, tmp_path, memory=1 << 20, stream=1) != whole).any()


@pytest.mark.parametrize("memory", [1 << 20, 1 << 30])
def test_it_looks_random(tmp_path: Path, memory: int) -> None:
    """Chi-square of where each block went, runs up and down, correlation of neighbours."""
    n, blocks = 100_000, 20
    rows = permutation(n, tmp_path, memory=memory, rows=10_000)
    table, _, _ = np.histogram2d(rows, np.arange(n), bins=blocks, range=[[0, n], [0, n]])
    expected, freedom = n / blocks**2, (blocks - 1) ** 2
    chi_square = ((table - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) / math.sqrt(2 * freedom) < 4
    up = np.diff(rows) > 0
    runs = 1 + (up[1:] != up[:-1]).sum()
    assert abs(runs - (2 * n - 1) / 3) / math.sqrt((16 * n - 29) / 90) < 4
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) * math.sqrt(n) < 4


def test_every_permutation_is_as_likely(tmp_path: Path) -> None:
    """All 24 orders of 4 rows, over 2,400 seeds: chi-square of 23 degrees of freedom."""
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2400):
        order = tuple(permutation(4, tmp_path, memory=1 << 20, seed=seed).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((c - 100) ** 2 / 100 for c in counts.values()) < 49.7  # one in a thousand


def test_no_rows(tmp_path: Path) -> None:
    budget = SpillBudget(1 << 20, tmp_path)
    assert list(shuffled([], seed=0, stream=0, nbytes=0, budget=budget)) == []
    empty = numbers(0)
    assert (
        sum(t.num_rows for t in shuffled([empty] * 3, seed=0, stream=0, nbytes=0, budget=budget))
        == 0
    )


def test_all_is_read_before_the_first_row_comes_out(tmp_path: Path) -> None:
    read = []

    def watched() -> Iterator[pa.Table]:
        for table in pieces(numbers(50_000), 1000):
            read.append(table.num_rows)
            yield table

    tables = shuffled(watched(), seed=0, stream=0, nbytes=0, budget=SpillBudget(1 << 20, tmp_path))
    next(tables)
    assert sum(read) == 50_000


def test_columns_of_all_kinds_stay_together(tmp_path: Path) -> None:
    n = 20_000
    table = pa.table(
        {
            "i": np.arange(n),
            "text": [f"row {i}" if i % 7 else None for i in range(n)],
            "list": [[i] * (i % 4) if i % 5 else None for i in range(n)],
            "dict": pa.array([f"d{i % 10}" for i in range(n)]).dictionary_encode(),
            "ordered": pa.DictionaryArray.from_arrays(
                pa.array(np.arange(n) % 3), pa.array(["low", "mid", "high"]), ordered=True
            ),
        }
    )
    budget = SpillBudget(1 << 20, tmp_path)
    mixed = pa.concat_tables(
        shuffled(pieces(table, 5000), seed=1, stream=0, nbytes=0, budget=budget),
        promote_options="none",
    )
    order = mixed["i"].to_numpy()
    assert (order != np.arange(n)).any()
    for name in table.column_names:
        assert mixed[name].to_pylist() == table[name].take(pa.array(order)).to_pylist()
    assert mixed.schema.field("ordered").type.ordered


# -- memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 10**6, 10**12])
def test_no_table_held_is_larger_than_the_room_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    """Whatever the estimate said: what is sorted at once is measured."""
    largest = []
    prepare = module.prepare

    def watched(table: pa.Table) -> pa.Table:
        largest.append(table.nbytes)
        return prepare(table)

    monkeypatch.setattr(module, "prepare", watched)
    budget = SpillBudget(1 << 20, tmp_path)
    table = pa.table({"i": np.arange(500_000)})  # 8 MB with its keys
    out = list(shuffled(pieces(table, 20_000), seed=0, stream=0, nbytes=nbytes, budget=budget))
    assert sum(t.num_rows for t in out) == 500_000
    assert max(largest) <= budget.sortable
    assert max(t.nbytes for t in out) <= 2 * budget.slice + 64


def test_rows_of_very_different_width(tmp_path: Path) -> None:
    """A few long texts among many short ones: a bucket that holds them is split again."""
    texts = ["x" * (100_000 if i % 1000 == 0 else 4) for i in range(20_000)]
    table = pa.table({"i": np.arange(20_000), "text": texts})
    budget = SpillBudget(1 << 20, tmp_path)
    out = list(shuffled(pieces(table, 1000), seed=0, stream=0, nbytes=200_000, budget=budget))
    order = np.concatenate([t["i"].to_numpy() for t in out])
    assert sorted(order.tolist()) == list(range(20_000))
    assert sum(t["text"].nbytes for t in out) >= 2_000_000
    assert (order == permutation(20_000, tmp_path, memory=1 << 30, seed=0)).all()


def test_one_table_larger_than_the_memory_is_dealt_in_slices(tmp_path: Path) -> None:
    budget = SpillBudget(1 << 20, tmp_path)
    out = list(shuffled([numbers(100_000)], seed=1, stream=0, nbytes=0, budget=budget))
    order = np.concatenate([t["i"].to_numpy() for t in out])
    assert (order == permutation(100_000, tmp_path, memory=1 << 30)).all()


def test_peak_memory_of_a_process_stays_near_the_limit(tmp_path: Path) -> None:
    """80 MB of rows within 16 MB, in a process of its own, against one that shuffles few."""
    program = """
        import resource, sys
        from pathlib import Path
        import numpy as np, pyarrow as pa
        from tabfeed.io.shuffle.local import SpillBudget, shuffled
        def tables(count):
            for i in range(count):
                text = pa.array(np.arange(20_000) + 10**9).cast(pa.string())
                yield pa.table({"i": np.arange(20_000), "a": text, "b": text, "c": text})
        budget = SpillBudget(16 << 20, Path(sys.argv[1]))
        def peak(count):
            mixed = shuffled(tables(count), seed=0, stream=0, nbytes=0, budget=budget)
            assert sum(t.num_rows for t in mixed) == 20_000 * count
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        base = peak(1)
        print(peak(70) - base)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 32
    assert list(tmp_path.iterdir()) == []


# -- buckets ----------------------------------------------------------------------------


def test_rows_of_a_bucket_keep_their_order(tmp_path: Path) -> None:
    table = pa.table({"i": np.arange(1000), "k": np.arange(1000) % 7})
    budget = SpillBudget(1 << 20, tmp_path)
    buckets = split_into_buckets(pieces(table, 90), lambda t: t["k"].to_numpy(), 9, budget)
    assert [b.rows for b in buckets] == [143] * 6 + [142, 0, 0]
    for number, bucket in enumerate(buckets[:7]):
        assert read_bucket(bucket)["i"].to_pylist() == list(range(number, 1000, 7))
    assert not buckets[8].path.exists()


def test_a_large_dictionary_is_not_copied_into_every_bucket(tmp_path: Path) -> None:
    words = pa.array([f"word number {i}" for i in range(5000)])
    codes = pa.DictionaryArray.from_arrays(pa.array(np.arange(20_000) % 5000), words)
    table = pa.table({"d": codes, "k": np.arange(20_000) % 100})
    budget = SpillBudget(1 << 20, tmp_path)
    buckets = split_into_buckets(pieces(table, 1000), lambda t: t["k"].to_numpy(), 100, budget)
    on_disk = sum(b.path.stat().st_size for b in buckets)
    assert on_disk < 3_000_000  # 700 kB of rows and what batches cost; 200 MB if copied
    assert read_bucket(buckets[3])["d"].to_pylist()[:2] == ["word number 3", "word number 103"]


def test_a_full_disk_names_the_temporary_file(tmp_path: Path) -> None:
    program = """
        import resource, signal, sys
        from pathlib import Path
        import numpy as np, pyarrow as pa
        from tabfeed.io.shuffle.local import SpillBudget, shuffled
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        tables = [pa.table({"i": np.arange(10_000)})] * 10
        budget = SpillBudget(1 << 20, Path(sys.argv[1]))
        try:
            list(shuffled(tables, seed=0, stream=0, nbytes=0, budget=budget))
        except OSError as e:
            print(type(e).__name__, e)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(
        f"WriteError could not write the temporary file {tmp_path}/bucket_"
    )
    assert "Raise the limit of file sizes (ulimit -f) or choose another folder" in done.stdout


def test_an_error_in_the_source_passes_through(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.Table]:
        yield numbers(50_000)
        raise FileNotFoundError("the source went away")

    with pytest.raises(FileNotFoundError, match="went away") as e:
        list(shuffled(failing(), seed=0, stream=0, nbytes=0, budget=SpillBudget(1 << 20, tmp_path)))
    assert not isinstance(e.value, WriteError)


def limited(init: Any, buckets: int) -> Any:
    def replaced(self: Any, memory: int, folder: Path, most: int = buckets) -> None:
        init(self, memory, folder, min(most, buckets))

    return replaced


def test_more_partitions_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpillBudget, "__init__", limited(SpillBudget.__init__, buckets=5))
    ds = Dataset({"k": range(3000), "i": range(3000)}, npartitions=3)
    grouped = ds.shuffle_by_keys("k", npartitions=60)
    assert grouped.npartitions == 60
    assert sorted(k for t in grouped.to_iter() for k in set(t["k"].to_pylist())) == list(
        range(3000)
    )
    assert sorted(grouped.to_arrow()["i"].to_pylist()) == list(range(3000))
    few = ds.shuffle_by_keys("k", npartitions=3)
    for a in range(60):  # the same buckets by arithmetic: 3 divides 60
        assert set(grouped.read(a)["k"].to_pylist()) <= set(few.read(a % 3)["k"].to_pylist())
