"""MosaicML streaming: its own MDS files, a sample a row, its StreamingDataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch


def convert(case: Case) -> None:
    """A row as three fields: fixed-size arrays decode faster than forty numbers."""
    import numpy as np
    from streaming import MDSWriter

    from benchmarks.peers.torch_memory import tensors

    cats, conts, labels = (t.numpy() for t in tensors(case))
    columns = {
        "cats": f"ndarray:int64:{len(case.cats)}",
        "conts": f"ndarray:float32:{len(case.conts)}",
        "label": "float32",
    }
    with MDSWriter(out=f"{case.scratch}/mds", columns=columns, progress_bar=False) as out:
        for i in range(case.rows):
            out.write({"cats": cats[i], "conts": conts[i], "label": np.float32(labels[i])})


def samples(case: Case) -> Epoch:
    """`StreamingDataset` in a `StreamingDataLoader`."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    data = StreamingDataset(
        local=f"{case.scratch}/mds",
        shuffle=case.shuffle,
        batch_size=case.batch,
        num_canonical_nodes=1,
    )
    loader = StreamingDataLoader(data, batch_size=case.batch, num_workers=case.workers)

    def epoch() -> Iterator[tuple[int, Any]]:
        for batch in loader:
            yield len(batch["label"]), batch

    return epoch


CONTENDERS = (
    Contender(
        name="mosaic",
        title="MosaicML streaming, own format",
        open=samples,
        suites=("loading",),
        modules=("benchmarks.peers._streaming", "streaming", "torch", "numpy"),
        delivers="torch, int64 and float32 matrices",
        shuffles="blocks of samples (py1e)",
        why="A sample is decoded by itself and stacked again: made for documents and images.",
        convert=convert,
        most_rows=32_768,
    ),
)
