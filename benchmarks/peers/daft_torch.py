"""Daft: a lazy frame streamed out as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import KEY, REGION


def batches(case: Case) -> Epoch:
    """`into_batches`, partitions iterated as they come, columns as tensors."""
    import daft
    import torch

    server = _server(case) if case.endpoint else None

    def epoch() -> Iterator[tuple[int, Any]]:
        frame = daft.read_parquet(case.files, io_config=server)
        frame = frame.select(*case.columns).into_batches(case.batch)
        for part in frame.to_arrow_iter():
            columns = {n: torch.from_numpy(part.column(n).to_numpy()) for n in case.columns}
            yield part.num_rows, columns

    return epoch


def _server(case: Case) -> Any:
    from daft.io import IOConfig, S3Config

    return IOConfig(
        s3=S3Config(
            endpoint_url=case.endpoint,
            key_id=KEY,
            access_key=KEY,
            region_name=REGION,
            use_ssl=False,
        )
    )


CONTENDERS = (
    Contender(
        name="daft",
        title="Daft `to_arrow_iter`",
        open=batches,
        suites=("loading", "remote"),
        modules=("daft", "torch", "pyarrow"),
        delivers="torch, a tensor a column, the files' dtypes",
        why="A query engine: it decodes on all cores and streams; it has no shuffle for training.",
    ),
)
