"""The verdict names the bottleneck that was put there, and times add up."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.io import Dataset
from tabfeed.profile import Profiler
from tests.profile import cases as c


def check(prof: c.Timed, cause: str, named: str = "") -> None:
    """The right cause, and times that add up to what the test's own clock allows."""
    verdict, times = prof.verdict, prof.run.times
    assert verdict.cause == cause, verdict
    assert named in verdict.sentence
    parts = times.startup + times.wait + times.compute + times.copy
    assert prof.least - 1e-6 <= parts <= prof.most + 1e-6
    assert min(times.startup, times.wait, times.compute, times.copy) >= 0
    assert prof.run.timeline is not None
    shown = prof.run.timeline.sums
    drawn = sum(sum(shown[name]) for name in ("startup", "wait", "compute"))
    assert drawn == pytest.approx(times.wall)
    if prof.run.loader.kind == "tabfeed":
        check_stages(prof)


def check_stages(prof: c.Timed) -> None:
    """What each loader thread did adds up to the time it was at it, nested stages counted once.

    Not to the time it lived: on a busy machine it is put off its core between two stages, too.
    """
    sums = prof._sampler.stages
    at_it = 0
    for thread in {t for t, _ in sums.sums if "loader" in t}:
        spans = sorted((e.start, e.end) for e in sums.recent if e.thread == thread)
        until = spans[0][0]
        for start, end in spans:
            at_it += max(0, end - max(start, until))
            until = max(until, end)
    assert sum(s.seconds for s in prof.run.stages) == pytest.approx(at_it / 1e9, rel=0.05)


# -- our loader ----------------------------------------------------------------------------------


def test_ours_slow_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    with c.slow_storage(monkeypatch):
        prof = c.profile(c.ours(), c.quick_step)
    check(prof, "read", "waiting for storage")
    more = prof.verdict.advice[0]
    assert more.text == "more loader threads: threads=2"
    assert 1.2 < more.gain < 2.2


def test_ours_slow_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    with c.slow_storage(monkeypatch, c.work):
        prof = c.profile(c.ours(), c.quick_step)
    check(prof, "decode")


def test_ours_slow_decoding_of_real_files(tmp_path: Path) -> None:
    """Compressed hard and read as a loader reads it, with nothing replaced.

    Decoding takes nine tenths of half a second of work, so that it stands out on a busy machine.
    """
    pytest.importorskip("torch")
    from tabfeed.loader.torch import Loader

    steps = np.random.default_rng(0).standard_normal((8, 400_000))
    walks = np.cumsum(steps, axis=1).round(2).astype(np.float32)
    table = pa.table({f"x{i}": walk for i, walk in enumerate(walks)})
    options = {"compression": "brotli", "use_dictionary": False}
    pq.write_table(table, tmp_path / "0.parquet", 20_000, **options)
    for i in range(1, 8):
        shutil.copy(tmp_path / "0.parquet", tmp_path / f"{i}.parquet")
    prof = c.profile(Loader(Dataset(tmp_path), 10_000, threads=1), lambda batch: None)
    check(prof, "decode", "decoding files")
    read = next(s for s in prof.run.stages if s.name == "read")
    assert read.rows == 8 * 400_000


def test_ours_slow_transform() -> None:
    prof = c.profile(c.ours(c.slow_transform), c.quick_step)
    check(prof, "transform", "slow_transform")


def test_ours_slow_copy_in_the_background() -> None:
    prof = c.profile(c.ours(finish=c.slow_finish), c.quick_step)
    check(prof, "copy")


def test_ours_slow_copy_in_the_loop() -> None:
    check(c.profile(c.ours(), c.step_with_copy), "copy", "copy_to_device")


def test_ours_copy_marked_by_hand() -> None:
    def step(batch: Any) -> None:
        with Profiler.span("copy"):
            time.sleep(c.SLOW)

    prof = c.profile(c.ours(), step)
    check(prof, "copy")
    assert prof.run.times.copy > 0.8 * prof.run.times.steady


def test_ours_slow_model() -> None:
    prof = c.profile(c.ours(), c.slow_model)
    check(prof, "compute")


def test_ours_python_in_the_loop() -> None:
    prof = c.profile(c.ours(batches=2 * c.BATCHES), c.python_loop)
    check(prof, "python", "GIL")


def test_ours_tiny_batches() -> None:
    check(c.profile(c.ours(batch=8, batches=2000), c.tiny_step), "small_batches", "8 rows")


# -- torch ---------------------------------------------------------------------------------------


def torch_loader(workers: int = 0, **options: Any) -> Any:
    data = pytest.importorskip("torch.utils.data")
    return data.DataLoader(c.Rows(**options), batch_size=4, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1])
def test_torch_slow_reader(workers: int) -> None:
    prof = c.profile(torch_loader(workers, reading=c.SLOW / 4), c.quick_step)
    check(prof, "read", "Rows.read_row")
    assert prof.run.through is not None
    assert prof.run.through.rows_per_second > 2 * prof.run.rows_per_second
    assert any("a tabfeed loader delivers" in a.text for a in prof.verdict.advice)


@pytest.mark.parametrize("workers", [0, 1])
def test_torch_slow_transform(workers: int) -> None:
    prof = c.profile(torch_loader(workers, transforming=c.SLOW / 4), c.quick_step)
    check(prof, "transform", "Rows.transform")


@pytest.mark.parametrize(
    ("step", "cause"),
    [(c.step_with_copy, "copy"), (c.slow_model, "compute"), (c.python_loop, "python")],
)
def test_torch_in_the_loop(step: Callable[[Any], None], cause: str) -> None:
    check(c.profile(torch_loader(rows=c.BATCHES * 8), step), cause)


def test_torch_tiny_batches() -> None:
    check(c.profile(torch_loader(rows=4000), c.tiny_step), "small_batches", "4 rows")


# -- tf.data -------------------------------------------------------------------------------------


def tf_source(seconds: float = 0.0, rows: int = c.BATCHES * 4) -> Any:
    tf = pytest.importorskip("tensorflow")

    def read() -> Any:
        for i in range(rows):
            c.pause(seconds)
            yield np.float32(i)

    return tf.data.Dataset.from_generator(read, output_signature=tf.TensorSpec((), tf.float32))


def slow_map(value: Any) -> Any:
    tf = pytest.importorskip("tensorflow")

    def work(x: Any) -> Any:
        time.sleep(c.SLOW / 4)
        return x * 2

    out = tf.numpy_function(work, [value], tf.float32)
    out.set_shape(())
    return out


def test_tf_slow_reader() -> None:
    prof = c.profile(tf_source(c.SLOW / 4).batch(4).prefetch(2), c.quick_step)
    check(prof, "read", "the source")


def test_tf_slow_transform() -> None:
    tf = pytest.importorskip("tensorflow")
    rows = tf.data.Dataset.from_tensor_slices(np.zeros(c.BATCHES * 4, np.float32))
    prof = c.profile(rows.shuffle(100).map(slow_map).batch(4).prefetch(2), c.quick_step)
    check(prof, "transform", "slow_map")


@pytest.mark.parametrize(
    ("step", "cause"),
    [(c.step_with_copy, "copy"), (c.slow_model, "compute"), (c.python_loop, "python")],
)
def test_tf_in_the_loop(step: Callable[[Any], None], cause: str) -> None:
    tf = pytest.importorskip("tensorflow")
    check(c.profile(tf.data.Dataset.range(c.BATCHES * 8).batch(4), step), cause)


def test_tf_tiny_batches() -> None:
    tf = pytest.importorskip("tensorflow")
    prof = c.profile(tf.data.Dataset.range(4000).batch(4), c.tiny_step)
    check(prof, "small_batches", "4 rows")
