"""DuckDB by hand: the workflow of the README in SQL."""

from __future__ import annotations

from benchmarks.harness.contender import Contender
from benchmarks.peers._common import by_hand

CONTENDERS = (
    Contender(
        name="duckdb-features",
        title="DuckDB by hand",
        open=by_hand("duckdb"),
        suites=("features",),
        modules=("duckdb",),
        why="Vocabularies are tables; each of 26 columns is a join.",
    ),
)
