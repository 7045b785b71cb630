"""The workflow of the README in tabfeed itself."""

from __future__ import annotations

from benchmarks.harness.contender import Contender
from benchmarks.peers._common import by_hand

CONTENDERS = (
    Contender(
        name="tabfeed-features",
        title="tabfeed `Workflow`",
        open=by_hand("tabfeed"),
        suites=("features",),
        modules=("tabfeed", "tabfeed.ops", "polars"),
    ),
)
