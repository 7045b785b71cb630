"""Hugging Face datasets: streamed from Parquet, and from Arrow files mapped into memory.

In the Arrow format both cut and shuffle whole tables, whose columns become tensors without a copy;
in the torch format every row is handled by itself. To shuffle Arrow files the documentation advises
`to_iterable_dataset`, since a shuffled index makes each row a look-up. The buffer is filled from
one shard at a time, and shards come in random order: filled from ten at a time, which is the
default, an epoch ends with five seconds of waiting for threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch

BUFFER = 250_000


def streamed(case: Case) -> Epoch:
    """`streaming=True`, shards by row group, a shuffle buffer."""
    data = _load(case, streaming=True)
    return _batches(data.reshard() if case.shuffle else data, case)


def mapped(case: Case) -> Epoch:
    """Arrow files mapped into memory."""
    data = _load(case, streaming=False)
    return _batches(data.to_iterable_dataset(num_shards=16) if case.shuffle else data, case)


def convert(case: Case) -> None:
    """The Arrow files."""
    _load(case, streaming=False)


def _load(case: Case, *, streaming: bool) -> Any:
    from datasets import load_dataset

    data = load_dataset(
        "parquet",
        data_files=case.files,
        columns=case.columns,
        split="train",
        streaming=streaming,
        cache_dir=None if streaming else f"{case.scratch}/cache",
    )
    return data.with_format("arrow")


def _batches(data: Any, case: Case) -> Epoch:
    import torch

    if case.shuffle:
        data = data.shuffle(seed=0, buffer_size=BUFFER, max_buffer_input_shards=1)
    state = {"epoch": 0}

    def epoch() -> Iterator[tuple[int, Any]]:
        state["epoch"] += 1
        if case.shuffle:
            data.set_epoch(state["epoch"])
        for table in data.iter(case.batch):
            batch = {n: torch.from_numpy(table.column(n).to_numpy()) for n in case.columns}
            yield table.num_rows, batch

    return epoch


_FORM = "torch, a tensor a column, the files' dtypes"
_WAY = f"shards, and a buffer of {BUFFER:,} rows"

CONTENDERS = (
    Contender(
        name="hf-streaming",
        title="Hugging Face datasets, streaming",
        open=streamed,
        suites=("loading",),
        modules=("datasets", "torch", "pyarrow"),
        delivers=_FORM,
        shuffles=_WAY,
        why="Tables are cut without a copy; one thread decodes, gathers and cuts. Shuffled, the "
        "buffer is gathered anew for each half of it.",
    ),
    Contender(
        name="hf-map",
        title="Hugging Face datasets, Arrow files",
        open=mapped,
        suites=("loading", "epochs"),
        modules=("datasets", "torch", "pyarrow"),
        delivers=_FORM,
        shuffles=_WAY,
        why="Its uncompressed Arrow files are mapped into memory: nothing is decoded. The buffer "
        "is gathered anew for each half of it.",
        convert=convert,
        orders=(True,),  # in order it would be slices of the mapped files: nothing to measure
    ),
)
