"""litdata: its own optimised chunks; a row a sample, or a block of rows a sample.

Samples are NumPy arrays: as torch tensors, rows take about ten times as long to read. Blocks are
decoded one by one (``batch_decode=0``): shuffled, a whole window of them would be decoded for each.
"""

from __future__ import annotations

from functools import partial

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import each
from benchmarks.peers._samples import BLOCK, in_a_batch, join, samples


def convert(case: Case, block: int) -> None:
    """Chunks of 64 MB."""
    from litdata.streaming.cache import Cache

    cache = Cache(f"{case.scratch}/chunks", chunk_bytes="64MB")
    for i, sample in enumerate(samples(case, block)):
        cache[i] = sample
    cache.done()
    cache.merge()


def opened(case: Case, block: int) -> Epoch:
    """`StreamingDataset` in a `StreamingDataLoader`."""
    from litdata import StreamingDataLoader, StreamingDataset

    decode = 0 if block > 1 else "auto"
    data = StreamingDataset(f"{case.scratch}/chunks", shuffle=case.shuffle, batch_decode=decode)
    loader = StreamingDataLoader(
        data,
        batch_size=in_a_batch(case, block),
        num_workers=case.workers,
        persistent_workers=case.workers > 0,
        collate_fn=join if block > 1 else None,
    )
    return each(loader)


_FORM = "torch, int64 and float32 matrices"

CONTENDERS = (
    Contender(
        name="litdata",
        title="litdata, own format, a row a sample",
        open=partial(opened, block=1),
        suites=("loading", "workers"),
        modules=("litdata", "torch"),
        delivers=_FORM,
        shuffles="chunks, and rows within each",
        why="A sample is decoded by itself and stacked again: made for documents and images.",
        convert=partial(convert, block=1),
        most_rows=16_384,
    ),
    Contender(
        name="litdata-blocks",
        title="litdata, own format, 1,024 rows a sample",
        open=partial(opened, block=BLOCK),
        suites=("loading",),
        modules=("litdata", "torch"),
        delivers=_FORM,
        shuffles="blocks of 1,024 rows",
        why="Its files hold the matrices as they are delivered, in twice the bytes of the Parquet "
        "files: nothing is decoded. Neighbours in the files stay together in every epoch.",
        convert=partial(convert, block=BLOCK),
        most_rows=524_288,
    ),
)
