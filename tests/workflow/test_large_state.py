"""An operator of a user's whose state is larger than memory, on threads and on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import OperatorError
from tabfeed.execute import LocalExecutor
from tabfeed.testing.op import check_op

MODULE = '''
"""Each value by how often it occurs in the data, kept in files while a fit is short of memory."""

import os

import polars as pl

from tabfeed import ops
from tabfeed.schema import Schema


def note(what):
    """Say in a file what was done: other processes do some of it."""
    with open(os.environ["COUNT_NOTES"], "a") as file:
        file.write(what + "\\n")


class Counts:
    """Values (v) and counts (n), in tables and in files."""

    def __init__(self, tables, memory):
        self.tables, self.files, self.memory = tables, [], memory

    def join(self, other):
        self.tables += other.tables
        self.files += other.files
        return self

    def split(self, count):
        note("split")
        whole = self.whole()
        number = whole["v"].hash() % count
        return [Counts([whole.filter(number == i)], self.memory) for i in range(count)]

    def nbytes(self):
        return sum(t.estimated_size() for t in self.tables)

    def spill(self):
        note("spill")
        if self.tables:
            self.files.append(self.memory.new_file())
            pl.concat(self.tables).write_parquet(self.files[-1])
        self.tables = []

    def whole(self):
        tables = [*self.tables, *map(pl.read_parquet, self.files)]
        return pl.concat(tables).group_by("v").agg(pl.col("n").sum())

    def __getstate__(self):
        return {"tables": [self.whole()], "files": [], "memory": self.memory}


class CountEncode(ops.StatOperator):
    """Replace each value by how often it occurs."""

    def output_schema(self, inputs):
        return Schema(c.with_dtype("int64") for c in inputs.columns)

    def large_parts(self, inputs):
        return inputs.names

    def partial(self, frame, inputs):
        one = frame.select(pl.col(n).cast(pl.String) for n in inputs.names).collect()
        return {
            n: Counts([one.group_by(v=n).agg(n=pl.len().cast(pl.Int64))], inputs.memory)
            for n in inputs.names
        }

    def finish(self, summary, inputs):
        self.counts_ = {n: part.whole().sort("v").to_arrow() for n, part in summary.items()}

    def learn(self, summary, inputs):
        self.finish(summary, inputs)
        self.summary_ = True

    def state(self):
        return {"counts": self.counts_}

    def restore(self, state, inputs):
        self.counts_, self.summary_ = state["counts"], True

    def transform(self, frame, inputs):
        self.require_fitted()
        for n in inputs.names:
            counts = pl.from_arrow(self.counts_[n]).lazy().rename({"v": n})
            frame = frame.with_columns(pl.col(n).cast(pl.String))
            frame = frame.join(counts, on=n, how="left", nulls_equal=True, maintain_order="left")
            frame = frame.drop(n).rename({"n": n})
        return frame.select(inputs.names)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The operator in a module of its own, where other processes can import it too."""
    (tmp_path / "count_encode.py").write_text(MODULE)
    monkeypatch.setenv("COUNT_NOTES", str(tmp_path / "notes"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "notes").touch()
    try:
        import count_encode  # type: ignore[import-not-found]

        yield count_encode
    finally:
        sys.modules.pop("count_encode", None)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Ten files; each value of `a` occurs five times, each of `b` ten times."""
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(10):
        a = [f"a longer value, number {(i % 2) * 2000 + j}" for j in range(2000)]
        b = [f"another {j % 2000}" for j in range(2000)]
        pq.write_table(pl.DataFrame({"a": a, "b": b}).to_arrow(), folder / f"{i}.parquet")
    return folder


def notes(tmp_path: Path) -> list[str]:
    return (tmp_path / "notes").read_text().split()


def test_it_keeps_the_contract(module: Any) -> None:
    check_op(module.CountEncode, {"a": ["x", None, "y", "x", "x", None], "b": [1, 2, 3, 1, 1, 2]})


def test_it_fits_within_a_small_memory_limit(module: Any, files: Path, tmp_path: Path) -> None:
    workflow = Workflow(["a", "b"] >> module.CountEncode(), executor=LocalExecutor(2))
    workflow.fit(Dataset(files), memory_limit="500kB")
    assert notes(tmp_path).count("spill") > 2
    made = workflow.transform(Dataset(files)).to_arrow()
    assert made.to_pydict() == {"a": [5] * 20_000, "b": [10] * 20_000}


def test_its_columns_are_merged_apart_and_in_parts_on_a_cluster(
    module: Any, files: Path, tmp_path: Path, dask_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import get_task_stream

    def prepare(folder: str, file: str) -> None:
        sys.path.insert(0, folder)
        os.environ["COUNT_NOTES"] = file

    dask_client.run(prepare, str(tmp_path), str(tmp_path / "notes"))
    monkeypatch.setattr("tabfeed.execute.dask_cluster.Preflight.task_memory", lambda _: 200_000)
    with get_task_stream(dask_client) as stream:
        workflow = Workflow(["a", "b"] >> module.CountEncode(), client=dask_client)
        workflow.fit(Dataset(files, part_size=1 << 30), memory_limit="500kB")
    keys = [record["key"] for record in stream.data if isinstance(record["key"], str)]
    assert {"fit/CountEncode/a", "fit/CountEncode/b"} <= {k.rsplit("-", 2)[0] for k in keys}
    assert {"spill", "split"} <= set(notes(tmp_path))
    monkeypatch.undo()
    here = workflow.transform(pq.read_table(files / "0.parquet"))
    assert here.to_pydict() == {"a": [5] * 2000, "b": [10] * 2000}


class Wrong(ops.StatOperator):
    """Names a large part that its summary does not have, or that is not one."""

    def __init__(self, part: str) -> None:
        self.part = part

    def large_parts(self, inputs: ops.Inputs) -> list[str]:
        return [self.part]

    def partial(self, frame: Any, inputs: ops.Inputs) -> Any:
        return {"x": 1}


@pytest.mark.parametrize(
    ("part", "message"),
    [("y", r"large_parts\(\) names \['y'\], but partial\(\) returned \['x'\]"),
     ("x", r"returned int there, which is no tabfeed.ops.LargeState")],
)  # fmt: skip
def test_what_is_declared_must_be_there(part: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        Workflow(["x"] >> Wrong(part)).fit({"x": [1]})
