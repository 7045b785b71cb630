"""What loaders say of themselves, in a terminal and in a notebook."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tabfeed import Dataset

NASTY = "<script>alert(1)</script>"
DATA = {
    "a": np.arange(10),
    NASTY: np.arange(10),
    "x": np.linspace(0, 1, 10),
    "tags": [[1, 2]] * 10,
    "y": np.ones(10, np.float32),
}


def loader(framework: str, **options: Any) -> Any:
    pytest.importorskip(framework)
    dataset = Dataset(DATA)
    if framework == "torch":
        from tabfeed.loader.torch import Loader as TorchLoader

        return TorchLoader(dataset, targets=["y"], device="cpu", **options)
    from tabfeed.loader.jax import Loader as JaxLoader

    return JaxLoader(dataset, targets=["y"], **options)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_line_for_a_terminal(framework: str) -> None:
    with loader(framework, batch_size=4, shuffle=True) as pipeline:
        assert repr(pipeline) == (
            "<Loader: 10 rows, 3 batches of 4, shuffled, epoch 0, 0 rows given>"
        )
        for _ in pipeline:
            pass
        assert repr(pipeline).endswith("epoch 0, 10 rows given>")


def test_a_table_for_a_notebook() -> None:
    with loader("torch", batch_size=4) as pipeline:
        shown = pipeline._repr_html_()
    assert "<b>Loader</b> · 10 rows · 3 batches of 4 · in order" in shown
    assert "as in the data, from 1 partition<" in shown
    assert "lists of int64" in shown and ">tags<" in shown
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert len(shown) < 3_000


def test_many_columns_are_a_few_names() -> None:
    from tabfeed.loader.torch import TorchAsyncItr

    names = [f"C{i:02}" for i in range(30)]
    data = Dataset({n: np.arange(4) for n in names})
    with TorchAsyncItr(data, cats=names, batch_size=2, device="cpu") as pipeline:
        assert ">C00, C01, C02, C03, ... C29 (30)<" in pipeline._repr_html_()


def test_a_dataloader_tells_of_what_it_is_over() -> None:
    from tabfeed.loader.torch import DLDataLoader

    with loader("torch", batch_size=4) as pipeline:
        shown = DLDataLoader(pipeline)._repr_html_()
        assert pipeline._repr_html_() in shown
    assert "<b>DLDataLoader</b> · 0 worker processes, over" in shown


def test_keras() -> None:
    pytest.importorskip("keras")
    from tabfeed.loader.keras import KerasSequenceLoader

    data = Dataset({"a": np.arange(10), "y": np.ones(10, np.float32)})
    pipeline = KerasSequenceLoader(
        data, batch_size=4, cat_names=["a"], cont_names=[], label_names=["y"], shuffle=False
    )
    assert repr(pipeline).startswith("<KerasSequenceLoader: 10 rows, 3 batches of 4, in order")
    assert "<b>KerasSequenceLoader</b>" in pipeline._repr_html_()


def test_the_rank_is_told_where_there_are_several() -> None:
    with loader("torch", batch_size=2, global_size=2, global_rank=1) as pipeline:
        assert "rank 1 of 2" in repr(pipeline)


def test_the_batches_are_those_of_a_state_from_other_ranks() -> None:
    with loader("torch", batch_size=2, global_size=2, global_rank=0) as pipeline:
        state = pipeline.state_dict()
    with loader("torch", batch_size=2) as pipeline:
        pipeline.load_state_dict(state)
        assert len(pipeline) == len(list(pipeline)) == 3
        assert "10 rows, 3 batches of 4" in repr(pipeline)
        assert "3 batches of 4" in pipeline._repr_html_()


def test_looking_starts_nothing() -> None:
    before = set(threading.enumerate())
    pipeline = loader("torch", batch_size=4)
    assert repr(pipeline) and pipeline._repr_html_()
    assert set(threading.enumerate()) <= before


def test_a_data_loader_names_what_it_reads_from() -> None:
    from tabfeed.loader.torch import DLDataLoader

    told = repr(DLDataLoader(loader("torch", batch_size=4), num_workers=2))
    assert told.startswith("<DLDataLoader of 2 worker processes over <Loader: 10 rows")
