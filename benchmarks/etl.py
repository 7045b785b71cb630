"""The README's workflow against the same written by hand in Polars and in DuckDB. Prints JSON.

    python benchmarks/etl.py [--rows 4000000] [--rounds 3]

26 categorical columns of strings get ids by frequency, 13 continuous ones are filled, clipped,
logged and normalised. Each contender runs in a process of its own, once a round, in turn; the
figures are medians. `transform` includes writing Parquet. Processor time is given too: it says
more on a machine that others use. Every contender must find the same ids. With a threshold, values
that come less often than that share one id, as in the README.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import criteo_raw
from criteo_raw import CATS, CONTS

Step = Callable[..., dict[str, Any]]
Moment = tuple[float, float]


def _now() -> Moment:
    """Wall clock and processor time, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def _spent(start: Moment, fitted: Moment, end: Moment) -> dict[str, Any]:
    return {
        "fit_s": fitted[0] - start[0],
        "fit_cpu_s": fitted[1] - start[1],
        "transform_s": end[0] - fitted[0],
        "transform_cpu_s": end[1] - fitted[1],
    }


def with_tabfeed(raw: Path, out: Path, *, threshold: int = 0) -> dict[str, Any]:
    """The workflow of the README."""
    import tabfeed as nvt
    from tabfeed import ops

    start = _now()
    rare = {"freq_threshold": threshold} if threshold else {"max_size": 10_000_000}
    cats = CATS >> ops.Categorify(**rare)
    conts = CONTS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    workflow = nvt.Workflow(cats + conts + ["label"])
    workflow.fit(nvt.Dataset(f"{raw}/*.parquet"))
    fitted = _now()
    workflow.transform(nvt.Dataset(f"{raw}/*.parquet")).to_parquet(out)
    return _spent(start, fitted, _now())


def with_polars(raw: Path, out: Path, *, threshold: int = 0) -> dict[str, Any]:
    """By hand, streaming."""
    import polars as pl

    start = _now()
    frame = pl.scan_parquet(f"{raw}/*.parquet")
    counts = [
        frame.select(c)
        .drop_nulls()
        .group_by(c)
        .len()
        .filter(pl.col("len") >= threshold)
        .sort(["len", c], descending=[True, False])
        for c in CATS
    ]
    logs = {c: pl.col(c).fill_null(0).clip(0).log1p().cast(pl.Float32) for c in CONTS}
    moments = frame.select(
        [e.cast(pl.Float64).mean().alias(f"{c}_mean") for c, e in logs.items()]
        + [e.cast(pl.Float64).std().alias(f"{c}_std") for c, e in logs.items()]
    )
    *tables, found = pl.collect_all([*counts, moments], engine="streaming")
    vocabularies = [
        t.lazy().select(c, (pl.int_range(pl.len()) + 3).alias(f"{c}_id"))
        for c, t in zip(CATS, tables, strict=True)
    ]
    fitted = _now()
    query = frame
    for c, vocabulary in zip(CATS, vocabularies, strict=True):
        query = query.join(vocabulary, on=c, how="left", maintain_order="left")
    ids = [
        pl.when(pl.col(c).is_null()).then(1).otherwise(pl.col(f"{c}_id").fill_null(2)).alias(c)
        for c in CATS
    ]
    mean, std = (lambda c: found[f"{c}_mean"][0]), (lambda c: found[f"{c}_std"][0])
    scaled = [((e.cast(pl.Float64) - mean(c)) / std(c)).alias(c) for c, e in logs.items()]
    out.mkdir()
    query.select([*ids, *scaled, "label"]).sink_parquet(
        out / "part_0.parquet", compression="snappy"
    )
    return _spent(start, fitted, _now())


def with_duckdb(raw: Path, out: Path, *, threshold: int = 0) -> dict[str, Any]:
    """By hand, in SQL."""
    import duckdb

    start = _now()
    files = f"'{raw}/*.parquet'"
    connection = duckdb.connect()
    for c in CATS:
        connection.execute(
            f"CREATE TABLE v_{c} AS "
            f"SELECT {c} AS v, row_number() OVER (ORDER BY n DESC, {c}) + 2 AS id "
            f"FROM (SELECT {c}, count(*) AS n FROM {files} WHERE {c} IS NOT NULL GROUP BY {c}) "
            f"WHERE n >= {threshold}"
        )
    logs = {c: f"ln(1 + greatest(coalesce({c}, 0), 0))::FLOAT::DOUBLE" for c in CONTS}
    stats = ", ".join(f"avg({e}), stddev({e})" for e in logs.values())
    found = connection.execute(f"SELECT {stats} FROM {files}").fetchone()
    assert found is not None
    fitted = _now()
    ids = [f"CASE WHEN r.{c} IS NULL THEN 1 ELSE coalesce(v_{c}.id, 2) END AS {c}" for c in CATS]
    scaled = [
        f"({e.replace(f'({c},', f'(r.{c},')} - {found[2 * i]}) / {found[2 * i + 1]} AS {c}"
        for i, (c, e) in enumerate(logs.items())
    ]
    joins = " ".join(f"LEFT JOIN v_{c} ON r.{c} = v_{c}.v" for c in CATS)
    out.mkdir()
    connection.execute(
        f"COPY (SELECT {', '.join([*ids, *scaled, 'label'])} FROM {files} AS r {joins}) "
        f"TO '{out}/part_0.parquet' (FORMAT parquet, COMPRESSION snappy)"
    )
    return _spent(start, fitted, _now())


CONTENDERS: dict[str, Step] = {
    "tabfeed": with_tabfeed, "polars": with_polars, "duckdb": with_duckdb,
}  # fmt: skip


def _work(name: str, raw: Path, out: Path, results: Any) -> None:
    import polars as pl

    found = CONTENDERS[name](raw, out)
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    sums = (
        pl.scan_parquet(f"{out}/**/*.parquet").select(pl.col(CATS).cast(pl.Int64).sum()).collect()
    )
    results.put({**found, "sums": sums.row(0)})


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return round(statistics.median(r[key] for r in runs), 3)


def main() -> None:
    """Run every contender in turn, print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--raw", type=Path, default=None, help="a folder to keep the raw data in")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tabfeed-etl-"))
    raw = args.raw or folder / "raw"
    context = multiprocessing.get_context("spawn")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    try:
        criteo_raw.write(raw, args.rows)
        for number in range(args.rounds):
            for name in CONTENDERS:
                results: Any = context.Queue()
                out = folder / f"{name}-{number}"
                process = context.Process(target=_work, args=(name, raw, out, results))
                process.start()
                process.join()
                if process.exitcode != 0:
                    raise SystemExit(f"{name} ended with {process.exitcode}")
                runs[name].append(results.get(timeout=10))
                shutil.rmtree(out, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(_report(runs, args.rows), indent=1))


def _report(runs: dict[str, list[dict[str, Any]]], rows: int) -> dict[str, Any]:
    keys = ("fit_s", "fit_cpu_s", "transform_s", "transform_cpu_s", "peak_gb")
    found = {name: {k: _median(r, k) for k in keys} for name, r in runs.items()}
    by_hand = [found["polars"], found["duckdb"]]
    return {
        "rows": rows,
        "rounds": len(runs["tabfeed"]),
        "same_ids": len({r["sums"] for each in runs.values() for r in each}) == 1,
        **found,
        "fit_over_best_by_hand": round(
            found["tabfeed"]["fit_s"] / min(b["fit_s"] for b in by_hand), 3
        ),
        "transform_over_best_by_hand": round(
            found["tabfeed"]["transform_s"] / min(b["transform_s"] for b in by_hand), 3
        ),
    }


if __name__ == "__main__":
    main()
