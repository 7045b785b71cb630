"""What the profiler times on a sample after the run."""

import time
from typing import Any

import numpy as np

from tabfeed import Dataset, Workflow
from tabfeed.loader.build import build_pipeline, dict_layout, split_steps
from tabfeed.loader.options import LoaderOptions
from tabfeed.ops import LambdaOp, LogOp
from tabfeed.profile.collect.probe import _cut, random_state_kept
from tests.profile import cases as c


def test_random_generators_are_left_as_they_were() -> None:
    np.random.seed(3)
    with random_state_kept():
        np.random.random(5)
    after = np.random.random()
    np.random.seed(3)
    assert after == np.random.random()


def test_a_workflows_slowest_operator_is_named() -> None:
    def slowly(column: Any) -> Any:
        time.sleep(0.05)
        return column + 1

    rows = {"x": np.arange(1.0, 4001.0), "y": np.arange(1.0, 4001.0)}
    ds = Dataset(rows, npartitions=8)
    workflow = Workflow((["x"] >> LogOp()) + (["y"] >> LambdaOp(slowly)))
    workflow.fit(ds)
    layout = dict_layout(workflow.output_schema, ["x", "y"])
    options = LoaderOptions(batch_size=500, threads=1, depth=1, buffer_size=12_000)
    feed = build_pipeline(ds, layout, options, _cut, split_steps(workflow)).start()
    prof = c.profile(feed, lambda batch: None)
    assert prof.verdict.cause == "transform"
    assert "in LambdaOp" in prof.verdict.sentence
