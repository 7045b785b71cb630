"""MosaicML streaming: its own MDS files; a row a sample, or a block of rows a sample."""

from __future__ import annotations

from functools import partial

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import each
from benchmarks.peers._samples import BLOCK, in_a_batch, join, samples


def convert(case: Case, block: int) -> None:
    """Three fields a sample: fixed-size arrays decode faster than forty numbers."""
    from streaming import MDSWriter

    columns = {"cats": "ndarray:int64", "conts": "ndarray:float32", "label": "ndarray:float32"}
    if block == 1:
        columns = {
            "cats": f"ndarray:int64:{len(case.cats)}",
            "conts": f"ndarray:float32:{len(case.conts)}",
            "label": "float32",
        }
    with MDSWriter(out=f"{case.scratch}/mds", columns=columns, progress_bar=False) as out:
        for sample in samples(case, block):
            out.write(sample)


def opened(case: Case, block: int) -> Epoch:
    """`StreamingDataset` in a `StreamingDataLoader`."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    size = in_a_batch(case, block)
    data = StreamingDataset(
        local=f"{case.scratch}/mds", shuffle=case.shuffle, batch_size=size, num_canonical_nodes=1
    )
    loader = StreamingDataLoader(
        data,
        batch_size=size,
        num_workers=case.workers,
        persistent_workers=case.workers > 0,
        collate_fn=join if block > 1 else None,
    )
    return each(loader)


_MODULES = ("benchmarks.peers._streaming", "streaming", "torch", "numpy")
_FORM = "torch, int64 and float32 matrices"

CONTENDERS = (
    Contender(
        name="mosaic",
        title="MosaicML streaming, own format, a row a sample",
        open=partial(opened, block=1),
        suites=("loading",),
        modules=_MODULES,
        delivers=_FORM,
        shuffles="blocks of samples (py1e)",
        why="A sample is decoded by itself and stacked again: made for documents and images.",
        convert=partial(convert, block=1),
        most_rows=4_096,
    ),
    Contender(
        name="mosaic-blocks",
        title="MosaicML streaming, own format, 1,024 rows a sample",
        open=partial(opened, block=BLOCK),
        suites=("loading",),
        modules=_MODULES,
        delivers=_FORM,
        shuffles="blocks of 1,024 rows",
        why="Its files hold the matrices as they are delivered, in twice the bytes of the Parquet "
        "files: nothing is decoded. Neighbours in the files stay together in every epoch.",
        convert=partial(convert, block=BLOCK),
    ),
)
