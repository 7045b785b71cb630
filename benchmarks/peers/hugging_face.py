"""Hugging Face datasets: streamed from Parquet, and map-style from Arrow files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch


def _load(case: Case, *, streaming: bool) -> Any:
    from datasets import load_dataset

    return load_dataset(
        "parquet",
        data_files=case.files,
        columns=case.columns,
        split="train",
        streaming=streaming,
        cache_dir=None if streaming else f"{case.scratch}/cache",
    )


def streamed(case: Case) -> Epoch:
    """`streaming=True`, a shuffle buffer, `batch`, torch format."""
    data = _load(case, streaming=True)
    if case.shuffle:
        data = data.shuffle(seed=0, buffer_size=10_000)
    data = data.with_format("torch").batch(case.batch)

    def epoch() -> Iterator[tuple[int, Any]]:
        for batch in data:
            yield len(batch["label"]), batch

    return epoch


def map_style(case: Case) -> Epoch:
    """Arrow files mapped into memory, `iter` with the torch format; shuffled by an index."""
    data = _load(case, streaming=False).select(range(case.rows)).with_format("torch")
    state = {"epoch": 0}

    def epoch() -> Iterator[tuple[int, Any]]:
        state["epoch"] += 1
        rows = data.shuffle(seed=state["epoch"]) if case.shuffle else data
        for batch in rows.iter(case.batch):
            yield len(batch["label"]), batch

    return epoch


def convert(case: Case) -> None:
    """The Arrow files."""
    _load(case, streaming=False)


_FORM = "torch, a tensor a column"

CONTENDERS = (
    Contender(
        name="hf-streaming",
        title="Hugging Face datasets, streaming",
        open=streamed,
        suites=("loading",),
        modules=("datasets", "torch"),
        delivers=_FORM,
        shuffles="files, and a buffer of 10,000 rows",
        why="The shuffle buffer holds rows as Python dicts.",
        most_rows=131_072,
    ),
    Contender(
        name="hf-map",
        title="Hugging Face datasets, map-style",
        open=map_style,
        suites=("loading",),
        modules=("datasets", "torch"),
        delivers=_FORM,
        shuffles="all rows, by an index",
        why="Arrow files are mapped into memory and sliced, then copied into tensors.",
        convert=convert,
        most_rows=262_144,
        orders=(False,),
    ),
    Contender(
        name="hf-map-shuffled",
        title="Hugging Face datasets, map-style, shuffled",
        open=map_style,
        suites=("loading",),
        modules=("datasets", "torch"),
        delivers=_FORM,
        shuffles="all rows, by an index",
        why="Each batch is gathered row by row through the index.",
        convert=convert,
        most_rows=8_192,
        orders=(True,),
    ),
)
