"""DuckDB by hand: the workflow of the README in SQL."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.harness.contender import Case, Contender, Features


def features(case: Case) -> Features:
    """Vocabularies as tables, a join for each column."""
    from benchmarks.etl import with_duckdb

    out = Path(case.scratch) / "out"

    def run() -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        return with_duckdb(Path(case.folder), out)

    return run


CONTENDERS = (
    Contender(
        name="duckdb-features",
        title="DuckDB by hand",
        open=features,
        suites=("features",),
        modules=("duckdb",),
        why="Vocabularies are tables; each of 26 columns is a join.",
    ),
)
