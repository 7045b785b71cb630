"""In a forked child Polars works, or says that it cannot: nobody waits without end."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import TabfeedError

DATA = pa.table({"c": ["a", "b", None], "x": [1.0, 2.0, 4.0]})

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork"),
]


def in_child(work: Callable[[], Any]) -> str:
    """What a forked child got or raised; Polars has started its threads in the parent."""
    pl.DataFrame({"a": [1, 2]}).lazy().select(pl.col("a") + 1).collect()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = "nothing"
        try:
            told = repr(work())
        except TabfeedError as e:
            told = f"{type(e).__name__}: {e}"
        except BaseException as e:
            told = f"!! {e!r}"
        finally:
            os.write(writing, told.encode())
            os._exit(0)
    ready, _, _ = select.select([reading], [], [], 60)
    if not ready:
        os.kill(pid, 9)
    os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read() if ready else "it waits without end"


WORKFLOW = Workflow((["x"] >> ops.Normalize()) + (["c"] >> ops.Categorify())).fit(DATA)
FRAME = pl.DataFrame(DATA)
LAZY = FRAME.lazy()


@pytest.mark.parametrize(
    "work",
    [
        lambda: Dataset(DATA).head(),
        lambda: Dataset(DATA).sample(2),
        lambda: Dataset(DATA).to_polars(),
        lambda: Dataset(FRAME),
        lambda: Dataset(LAZY),
        lambda: Dataset(FRAME.lazy().filter(pl.col("x") > 1)).num_rows,
        lambda: WORKFLOW.transform(FRAME),
        lambda: WORKFLOW.transform(LAZY),
        lambda: WORKFLOW.transform(DATA),
        lambda: WORKFLOW.transform(DATA.to_pandas()),
        lambda: WORKFLOW.transform(Dataset(DATA)).to_arrow(),
        lambda: Workflow(["x"] >> ops.Normalize()).fit(DATA),
        lambda: Workflow(["x"] >> ops.FillMedian()).fit(Dataset(DATA)),
        lambda: ops.Clip(0)(FRAME),
        lambda: ops.Clip(0)(DATA),
        lambda: ops.Normalize().fit(DATA),
        lambda: ops.Filter(lambda df: df["x"] > 1)(DATA),
        lambda: ops.LambdaOp(lambda col: col * 2)(DATA),
        lambda: ops.JoinExternal({"c": ["a"], "y": [1]}, on="c"),
        lambda: WORKFLOW.decode(FRAME),
    ],
)
def test_what_polars_would_wait_for_is_an_error(work: Callable[[], Any]) -> None:
    told = in_child(work)
    assert "start processes with spawn or forkserver" in told
    assert "gunicorn without --preload" in told


def test_what_needs_no_threads_of_polars_works(tmp_path: Path) -> None:
    FRAME.write_avro(tmp_path / "a.avro")
    FRAME.write_parquet(tmp_path / "a.parquet")
    for name in ("a.avro", "a.parquet"):
        path = str(tmp_path / name)
        assert in_child(lambda path=path: Dataset(path).to_arrow().to_pydict()) == repr(
            DATA.to_pydict()
        )
    row = {"c": "b", "x": 2.0}
    assert in_child(lambda: WORKFLOW.transform(row)) == repr(WORKFLOW.transform(row))
