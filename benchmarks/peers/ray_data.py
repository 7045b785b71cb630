"""Ray Data: `iter_torch_batches` over Parquet, with a local shuffle buffer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import arrow_files, arrow_s3


def batches(case: Case) -> Epoch:
    """On a cluster of this machine."""
    import ray
    import ray.data

    if not ray.is_initialized():
        ray.init(
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            configure_logging=True,
            logging_level="error",
            log_to_driver=False,
            object_store_memory=2 * 2**30,
        )
    ray.data.DataContext.get_current().enable_progress_bars = False
    files = "files" if case.shuffle else None
    data = ray.data.read_parquet(
        arrow_files(case), columns=case.columns, shuffle=files, filesystem=arrow_s3(case)
    )

    def epoch() -> Iterator[tuple[int, Any]]:
        for batch in data.iter_torch_batches(
            batch_size=case.batch,
            prefetch_batches=2,
            local_shuffle_buffer_size=250_000 if case.shuffle else None,
            device="cpu",
        ):
            yield len(batch["label"]), batch

    return epoch


CONTENDERS = (
    Contender(
        name="ray",
        title="Ray Data `iter_torch_batches`",
        open=batches,
        suites=("loading", "remote"),
        modules=("ray", "ray.data", "torch"),
        delivers="torch, a tensor a column, the files' dtypes",
        shuffles="files, and a buffer of 250,000 rows",
        why="Blocks travel from worker processes through an object store: made for many machines, "
        "which one machine pays for.",
    ),
)
