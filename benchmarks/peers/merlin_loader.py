"""merlin-dataloader 23.08 and NVTabular 23.08 on CPU, in an environment of their own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch, Features


def batches(case: Case) -> Epoch:
    """Its torch loader."""
    warnings.simplefilter("ignore")
    from merlin.dataloader.torch import Loader
    from merlin.io import Dataset
    from merlin.schema import Tags

    data = Dataset(case.files, engine="parquet", cpu=True)
    schema = data.schema.select_by_name(case.columns)
    schema["label"] = schema["label"].with_tags([Tags.TARGET])
    data.schema = schema
    loader = Loader(data, batch_size=case.batch, shuffle=case.shuffle)

    def epoch() -> Iterator[tuple[int, Any]]:
        for inputs, target in loader:
            yield len(target), (inputs, target)

    return epoch


def first_rows(case: Case) -> None:
    """A file of no more than the rows it is to go over: it reads whole files at a time."""
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    table = ds.dataset(case.files).head(case.rows)
    pq.write_table(table, f"{case.scratch}/part_0000.parquet")


def short(case: Case) -> Epoch:
    """Its torch loader on that file."""
    return batches(replace(case, folder=case.scratch))


def features(case: Case) -> Features:
    """The workflow of the README."""
    import shutil
    import time

    warnings.simplefilter("ignore")
    import nvtabular as nvt
    from nvtabular import ops

    files = case.files
    scratch = Path(case.scratch)

    def run() -> dict[str, float]:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        start = time.perf_counter()
        cats = list(case.cats) >> ops.Categorify(
            freq_threshold=2, out_path=str(scratch / "categories")
        )
        conts = list(case.conts) >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp()
        workflow = nvt.Workflow(cats + (conts >> ops.Normalize()) + ["label"])
        workflow.fit(nvt.Dataset(files, engine="parquet", cpu=True))
        fitted = time.perf_counter()
        data = workflow.transform(nvt.Dataset(files, engine="parquet", cpu=True))
        data.to_parquet(str(scratch / "out"))
        return {"fit_s": fitted - start, "transform_s": time.perf_counter() - fitted}

    return run


CONTENDERS = (
    Contender(
        name="merlin",
        title="merlin-dataloader 23.08",
        open=batches,
        suites=("loading", "batch", "rows", "columns"),
        modules=("merlin.dataloader", "merlin.dataloader.torch", "merlin.io", "torch"),
        delivers="torch, a tensor a column, the files' dtypes",
        shuffles="partitions, and rows within chunks",
        why="Each chunk goes through pandas, and each batch is cut from it column by column. "
        "It was written for a GPU, where this costs less.",
        venv="merlin",
    ),
    Contender(
        name="merlin-lists",
        title="merlin-dataloader 23.08, 8,192 rows",
        open=short,
        suites=("lists",),
        modules=("merlin.dataloader", "merlin.dataloader.torch", "merlin.io", "torch"),
        delivers="torch, a tensor a column, the files' dtypes; lists as values and offsets",
        shuffles="partitions, and rows within chunks",
        why="Lists go through Python row by row, and larger batches of them take longer a row: "
        "the 65,536 rows of the others, eight lists each, took it half a minute.",
        convert=first_rows,
        most_rows=8_192,
        venv="merlin",
    ),
    Contender(
        name="nvtabular-features",
        title="NVTabular 23.08 on CPU",
        open=features,
        suites=("features",),
        modules=("nvtabular",),
        why="Partitions go through pandas one after the other.",
        most_rows=50_000,
        venv="merlin",
    ),
)
