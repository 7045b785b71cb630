"""litdata: its own optimised chunks, a sample a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch


def convert(case: Case) -> None:
    """A row as three tensors, in chunks of 64 MB."""
    from litdata.streaming.cache import Cache

    from benchmarks.peers.torch_memory import tensors

    cats, conts, labels = tensors(case)
    cache = Cache(f"{case.scratch}/chunks", chunk_bytes="64MB")
    for i in range(case.rows):
        cache[i] = {"cats": cats[i], "conts": conts[i], "label": labels[i]}
    cache.done()
    cache.merge()


def samples(case: Case) -> Epoch:
    """`StreamingDataset` in a `StreamingDataLoader`."""
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(f"{case.scratch}/chunks", shuffle=case.shuffle)
    loader = StreamingDataLoader(data, batch_size=case.batch, num_workers=case.workers)

    def epoch() -> Iterator[tuple[int, Any]]:
        for batch in loader:
            yield len(batch["label"]), batch

    return epoch


CONTENDERS = (
    Contender(
        name="litdata",
        title="litdata, own format",
        open=samples,
        suites=("loading",),
        modules=("litdata", "torch"),
        delivers="torch, int64 and float32 matrices",
        shuffles="chunks, and samples within each",
        why="A sample is decoded by itself and stacked again: made for documents and images.",
        convert=convert,
        most_rows=32_768,
    ),
)
