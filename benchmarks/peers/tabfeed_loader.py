"""tabfeed itself, through its doors for PyTorch and TensorFlow."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness.contender import Case, Contender, Epoch
from benchmarks.peers._common import KEY, REGION, each


def matrices(case: Case, cache: str | None = None) -> Epoch:
    """`TorchAsyncItr`: int64 categories, float32 numbers, labels."""
    from tabfeed.loader.torch import TorchAsyncItr

    loader = TorchAsyncItr(
        _dataset(case),
        cats=[*case.cats, *case.lists],
        conts=list(case.conts),
        labels=list(case.labels),
        batch_size=case.batch,
        shuffle=case.shuffle,
        cache=cache,
        host_memory="4GB" if cache else None,
        threads=case.workers or None,
    )

    return each(loader, lambda batch: len(batch[2]))


def columns(case: Case) -> Epoch:
    """`Loader`: a dict of tensors, one a column, in the dtypes of the files."""
    from tabfeed.loader.torch import Loader

    loader = Loader(
        _dataset(case),
        case.batch,
        case.shuffle,
        columns=case.columns,
        targets=list(case.labels),
        threads=case.workers or None,
    )

    return each(loader, lambda batch: len(batch[1]))


def tensorflow(case: Case) -> Epoch:
    """`KerasSequenceLoader`: a dict of TensorFlow tensors ``(N, 1)``."""
    from tabfeed.loader.tensorflow import KerasSequenceLoader

    loader = KerasSequenceLoader(
        _dataset(case),
        case.batch,
        label_names=list(case.labels),
        cat_names=list(case.cats),
        cont_names=list(case.conts),
        shuffle=case.shuffle,
    )

    return each(loader, lambda batch: int(batch[1].shape[0]))


def _dataset(case: Case) -> Any:
    from tabfeed import Dataset

    server = {"key": KEY, "secret": KEY, "endpoint_url": case.endpoint, "region_name": REGION}
    return Dataset(case.place, storage_options=server if case.endpoint else None)


_WAY = "rows within shuffle blocks of a few row groups, row groups anew each epoch"

CONTENDERS = (
    Contender(
        name="tabfeed",
        title="tabfeed `TorchAsyncItr`",
        open=matrices,
        suites=(
            "loading",
            "batch",
            "rows",
            "columns",
            "lists",
            "workers",
            "codec",
            "epochs",
            "remote",
        ),
        modules=("tabfeed", "torch", "tabfeed.loader.torch"),
        delivers="torch, int64 and float32 matrices",
        shuffles=_WAY,
    ),
    Contender(
        name="tabfeed-columns",
        title="tabfeed `Loader`",
        open=columns,
        suites=("loading", "batch", "lists", "codec"),
        modules=("tabfeed", "torch", "tabfeed.loader.torch"),
        delivers="torch, a tensor a column, the files' dtypes",
        shuffles=_WAY,
    ),
    Contender(
        name="tabfeed-cached",
        title='tabfeed `TorchAsyncItr(cache="memory")`',
        open=partial(matrices, cache="memory"),
        suites=("loading", "epochs"),
        modules=("tabfeed", "torch", "tabfeed.loader.torch"),
        delivers="torch, int64 and float32 matrices",
        shuffles=_WAY,
    ),
    Contender(
        name="tabfeed-tensorflow",
        title="tabfeed `KerasSequenceLoader`, TensorFlow",
        open=tensorflow,
        suites=("loading",),
        modules=("tabfeed", "tensorflow", "tabfeed.loader.tensorflow"),
        delivers="TensorFlow, a tensor a column, the files' dtypes",
        shuffles=_WAY,
    ),
)
