"""Callbacks of Keras, Lightning and fastai, on a small model of each."""

import time
from typing import Any

import numpy as np
import pytest

from tests.profile import cases as c

STEPS = 12


class SlowRows(c.Rows):
    """Rows as (x, y) pairs, slow to read."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), np.float32(0)


def loader() -> Any:
    data = pytest.importorskip("torch.utils.data")
    return data.DataLoader(SlowRows(reading=0.005, rows=STEPS * 4), batch_size=4)


def test_keras_sees_steps_and_times_the_input_alone() -> None:
    keras = pytest.importorskip("keras")
    from tabfeed.profile.keras import ProfilerCallback

    rows = loader()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=keras.backend.backend() == "torch")
    watch = ProfilerCallback(data=rows)
    model.fit(rows, epochs=2, shuffle=False, verbose=0, callbacks=[watch])
    run = watch.profiler.run
    assert run.steps.count == 2 * STEPS
    assert run.waits_seen == (keras.backend.backend() == "torch")
    if not run.waits_seen:
        assert run.parts[0].seconds >= 0.02
        assert "input" in watch.profiler.verdict.sentence
    assert watch.profiler.report()


def test_keras_without_data_says_what_it_cannot_see() -> None:
    keras = pytest.importorskip("keras")
    if keras.backend.backend() == "torch":
        pytest.skip("on torch the waits are seen")
    from tabfeed.profile.keras import ProfilerCallback

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = ProfilerCallback()
    model.fit(np.zeros((32, 3)), np.zeros(32), batch_size=2, verbose=0, callbacks=[watch])
    assert watch.profiler.verdict.cause == "unseen"


def test_lightning() -> None:
    lightning = pytest.importorskip("lightning")
    torch = pytest.importorskip("torch")
    from tabfeed.profile.lightning import ProfilerCallback

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    watch = ProfilerCallback()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning advises more workers
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", callbacks=[watch], enable_model_summary=False, **quiet
        )
        trainer.fit(Model(), loader())
    run = watch.profiler.run
    assert run.steps.count == 2 * STEPS
    assert run.steps.rows == 2 * STEPS * 4
    assert (watch.profiler.verdict.cause, run.loader.kind) == ("read", "torch")


def test_fastai() -> None:
    fast = pytest.importorskip("fastai.basics")
    torch = pytest.importorskip("torch")
    pytest.importorskip("fastai.callback.progress")
    from tabfeed.profile.fastai import ProfilerCallback

    watch = ProfilerCallback()
    rows = loader()
    learn = fast.Learner(
        fast.DataLoaders(rows, rows, device=torch.device("cpu")),
        torch.nn.Linear(3, 1),
        loss_func=lambda x, y: x.square().mean(),
        cbs=[watch],
    )
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
    run = watch.profiler.run
    assert run.steps.count == STEPS
    assert watch.profiler.verdict.cause == "read"


def test_a_pass_without_an_end_is_ended_by_stop() -> None:
    from tabfeed.profile import Profiler

    prof = Profiler()
    prof.start()
    begun = prof.start_epoch("by hand")
    for _ in range(6):
        begun.arrived(None)
        time.sleep(0.001)
        begun.requested()
    prof.stop()
    prof.stop()
    assert prof.run.steps.count == 6
    assert prof.run.times.compute >= 0.006
