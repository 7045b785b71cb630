"""`check_executor`: what every executor promises, yours too.

Results come in the order of the items; summaries are merged in the order of
`tabfeed.execute.executor.MergeTree`; errors arrive and leave the executor usable; whatever a
workflow learns and writes is, byte for byte, what the threads of this machine learn and write.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed import ops
from tabfeed.errors import ArgumentError, TabfeedError
from tabfeed.execute import Executor, LocalExecutor
from tabfeed.execute.executor import MergeTree
from tabfeed.io import Dataset
from tabfeed.workflow import Workflow

__all__ = ["check_executor", "content"]

_SHUFFLES = (None, "PER_PARTITION", "PER_WORKER", "FULL")


def check_executor(executor: Executor, *, folder: str | Path | None = None) -> None:
    """Assert that an executor keeps the contract of `tabfeed.execute.Executor`.

    Parameters
    ----------
    executor
        What is checked.
    folder
        Where to put a few small files that the executor must be able to read and write; the
        system's temporary folder by default.

    Examples
    --------
    >>> check_executor(LocalExecutor(threads=2))
    """
    for check in (
        _order_is_kept,
        _an_early_end_is_no_harm,
        _neighbours_are_merged,
        _merging_may_change_its_inputs,
        _errors_arrive,
    ):
        check(executor)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        _works_like_threads(executor, Path(place))


# -- the two verbs ----------------------------------------------------------------------


def _order_is_kept(executor: Executor) -> None:
    for count in (0, 1, 50):
        got = list(executor.map(range(count), _square))
        assert got == [i * i for i in range(count)], f"map of {count} items gave {got}"
    assert list(executor.map(iter("ab"), _nothing)) == [None, None]


def _an_early_end_is_no_harm(executor: Executor) -> None:
    results = executor.map(range(1000), _square)
    assert list(islice(results, 3)) == [0, 1, 4]
    if isinstance(results, Generator):
        results.close()
    assert list(executor.map(range(3), _square)) == [0, 1, 4], "unusable after an early end"


def _neighbours_are_merged(executor: Executor) -> None:
    for count in (0, 1, 2, 8, 9, 65):
        tree: MergeTree[str] = MergeTree(_bracket)
        for i in range(count):
            tree.add(str(i))
        got = executor.reduce(range(count), str, _bracket)
        assert got == tree.result(), f"{count} items were merged as {got}"


def _merging_may_change_its_inputs(executor: Executor) -> None:
    got = executor.reduce(range(20), _listed, _extend)
    assert got == list(range(20)), f"a merge that works in place gave {got}"


def _errors_arrive(executor: Executor) -> None:
    _raises(lambda: list(executor.map(range(20), _fails_at_7)), "seven came")
    _raises(lambda: executor.reduce(range(20), _fails_at_7, _add), "seven came")
    _raises(lambda: executor.reduce(range(20), _square, _fails_to_merge), "no merge")
    try:
        list(executor.map(range(3), _refuses))
    except ArgumentError as e:
        assert "on purpose" in str(e), e
    else:
        raise AssertionError("an error of tabfeed's must arrive with its type")
    assert list(executor.map(range(3), _square)) == [0, 1, 4], "unusable after an error"


def _raises(work: Callable[[], Any], words: str) -> None:
    try:
        work()
    except (TabfeedError, RuntimeError) as e:
        assert words in str(e), f"the error's message was lost: {e}"
    else:
        raise AssertionError(f"the error {words!r} was lost")


def _square(x: int) -> int:
    return x * x


def _nothing(x: Any) -> None:
    return None


def _add(a: int, b: int) -> int:
    return a + b


def _bracket(a: str, b: str) -> str:
    return f"({a} {b})"


def _listed(x: int) -> list[int]:
    return [x]


def _extend(a: list[int], b: list[int]) -> list[int]:
    a.extend(b)
    b.clear()
    return a


def _fails_at_7(x: int) -> int:
    if x == 7:
        raise RuntimeError("seven came")
    return x


def _fails_to_merge(a: int, b: int) -> int:
    raise RuntimeError("no merge")


def _refuses(x: int) -> int:
    raise ArgumentError("refused on purpose")


# -- a whole workflow -------------------------------------------------------------------


def _works_like_threads(executor: Executor, folder: Path) -> None:
    _write_data(folder / "raw")
    data = Dataset(folder / "raw", part_size=20_000)
    whole = Dataset(folder / "raw")
    here = Workflow(_graph(), executor=LocalExecutor(1)).fit(whole)
    there = Workflow(_graph(), executor=executor).fit(data)
    here.save(folder / "here")
    there.save(folder / "there")
    _same_files(folder / "here", folder / "there", "what was learned")
    for shuffle in _SHUFFLES:
        mine, theirs = folder / f"mine_{shuffle}", folder / f"theirs_{shuffle}"
        here.transform(data).to_parquet(mine, shuffle=shuffle, output_files=3)
        there.transform(data).to_parquet(theirs, shuffle=shuffle, output_files=3, executor=executor)
        _same_files(mine, theirs, f"what was written with shuffle={shuffle}")
    grouped = data.shuffle_by_keys("c", executor=LocalExecutor(1))
    again = data.shuffle_by_keys("c", executor=executor)
    assert again.partition_lens == grouped.partition_lens, "rows were grouped otherwise"
    for a, b in zip(grouped.iter_tables(), again.iter_tables(), strict=True):
        assert repr(a.to_pylist()) == repr(b.to_pylist()), "rows were grouped otherwise"


def _graph() -> Any:
    ids = ["c", "d", "t"] >> ops.Categorify()
    numbers = ["x", "y"] >> ops.FillMedian() >> ops.Normalize()
    targets = ["c", ["c", "d"]] >> ops.TargetEncoding(["label", "x"], name_sep="+")
    groups = ["d"] >> ops.JoinGroupby("x", stats=["sum", "mean", "std", "min"])
    return ids + numbers + targets + groups + ["label"]


def _write_data(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(7)
    for i in range(3):
        rows = 1000 + i
        table = pa.table(
            {
                "c": rng.zipf(1.5, rows) % 500,
                "d": pa.array(rng.integers(0, 9, rows), pa.int32()),
                "t": [f"a longer text {n}" for n in rng.integers(0, 200, rows)],
                "x": rng.normal(1e6, 1.0, rows),
                "y": np.where(rng.random(rows) < 0.1, np.nan, rng.exponential(1.0, rows)),
                "label": rng.integers(0, 2, rows),
            }
        )
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=300)


def _same_files(mine: Path, theirs: Path, what: str) -> None:
    assert _names(mine) == _names(theirs), f"{what}: {_names(theirs)}, not {_names(mine)}"
    for name in _names(mine):
        assert content(mine / name) == content(theirs / name), f"{what} differs in {name}"


def _names(folder: Path) -> list[str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return sorted(str(p.relative_to(folder)) for p in files)


def content(path: Path) -> bytes:
    """What a file holds, but for when a workflow was saved, and the checksums of that."""
    if path.name == "checksums.json":
        return b""
    if path.name != "workflow.json":
        return path.read_bytes()
    saved = json.loads(path.read_text())
    return json.dumps({**saved, "created": None}).encode()
