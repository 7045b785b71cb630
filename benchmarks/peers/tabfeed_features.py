"""The workflow of the README in tabfeed itself."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.harness.contender import Case, Contender, Features


def features(case: Case) -> Features:
    """Fit, transform, write Parquet."""
    from benchmarks.etl import with_tabfeed

    out = Path(case.scratch) / "out"

    def run() -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)
        return with_tabfeed(Path(case.folder), out)

    return run


CONTENDERS = (
    Contender(
        name="tabfeed-features",
        title="tabfeed `Workflow`",
        open=features,
        suites=("features",),
        modules=("tabfeed", "tabfeed.ops", "polars"),
    ),
)
