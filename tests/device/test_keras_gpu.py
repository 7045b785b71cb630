"""Keras's loader where tensors lie on a GPU; run it with KERAS_BACKEND torch and jax."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

keras = pytest.importorskip("keras")
if keras.backend.backend() == "tensorflow":
    pytest.skip("TensorFlow copies to a GPU itself", allow_module_level=True)

from tabfeed import Dataset  # noqa: E402
from tabfeed.loader.keras import KerasSequenceLoader  # noqa: E402
from tabfeed.testing.loader import check_loader  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "cpu" in str(keras.ops.zeros(1).device).lower(), reason="Keras's backend finds no GPU here"
    ),
]
ROWS = 300_000


def loader(device: str | None = None, **options: Any) -> KerasSequenceLoader:
    ids = np.arange(ROWS, dtype=np.int32)
    data = Dataset({"C": ids, "I": ids * 0.5, "y": ids % 2}, npartitions=7)
    return KerasSequenceLoader(
        data, 4096, label_names=["y"], cat_names=["C"], cont_names=["I"], device=device, **options
    )


def as_numpy(batch: Any) -> list[Any]:
    x, y = batch
    return [keras.ops.convert_to_numpy(t) for t in (x["C"], x["I"], y)]


def test_the_same_batches_as_on_the_cpu() -> None:
    on_gpu, on_cpu = loader(seed=3), loader("cpu", seed=3)
    for _ in range(2):
        for left, right in zip(on_gpu, on_cpu, strict=True):
            assert "cpu" not in str(left[1].device).lower()
            for a, b in zip(as_numpy(left), as_numpy(right), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


def test_batches_that_are_kept_stay_as_they_were() -> None:
    kept = [batch for _ in range(3) for batch in loader(seed=1)]
    seen = np.sort(np.concatenate([as_numpy(batch)[0][:, 0] for batch in kept]))
    np.testing.assert_array_equal(seen, np.repeat(np.arange(ROWS), 3))


def test_weights_are_made_there_and_the_same() -> None:
    weights = {0: 0.1, 1: 3.0}
    pairs = zip(loader(class_weight=weights), loader("cpu", class_weight=weights), strict=True)
    for (_, _, found), (_, _, expected) in pairs:
        assert "cpu" not in str(found.device).lower()
        found, expected = (keras.ops.convert_to_numpy(t) for t in (found, expected))
        assert found.dtype == expected.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


def test_readers_and_memory_are_as_asked_for(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("pylibcudf")
    ids = np.arange(ROWS, dtype=np.int32)
    table = pa.table({"C": ids, "I": (ids * 0.5).astype(np.float32), "y": ids % 2})
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=40_000)

    def make(**options: Any) -> KerasSequenceLoader:
        names = {"label_names": ["y"], "cat_names": ["C"], "cont_names": ["I"]}
        return KerasSequenceLoader(str(tmp_path), 4096, **names, **options)

    torch.cuda.init()
    for limit in ({"device_memory": "40MB"}, {"buffer_size": "40MB"}):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats().get("active_bytes.all.current", 0)
        asked, plain = make(reader="cudf", **limit), make(device="cpu")
        assert asked.reader_choice == "the GPU: as requested"
        for left, right in zip(asked, plain, strict=True):
            for a, b in zip(as_numpy(left), as_numpy(right), strict=True):
                np.testing.assert_array_equal(a, b)
            del left
        held = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
        assert 10**6 < held <= 40 * 10**6
        asked.close()
        del asked, right, a, b
        gc.collect()


def test_fit_takes_the_batches_as_they_are() -> None:
    """It learns which ids are odd, and sees each batch on the device, in the form we gave it."""
    seen = []

    class Look(keras.Model):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.table = keras.layers.Embedding(ROWS, 4)
            self.last = keras.layers.Dense(1, activation="sigmoid")

        def call(self, inputs: Any) -> Any:
            seen.append({name: tuple(t.shape[1:]) for name, t in inputs.items()})
            return self.last(self.table(inputs["C"])[:, 0])

    model = Look()
    model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy")
    history = model.fit(loader(drop_last=True), epochs=4, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    assert all(shapes == {"C": (1,), "I": (1,)} for shapes in seen)


def test_every_promise_of_a_loader_holds_on_the_gpu() -> None:
    def make(dataset: Any, **options: Any) -> KerasSequenceLoader:
        options.setdefault("shuffle", False)
        return KerasSequenceLoader(
            dataset,
            label_names=["y"],
            cat_names=["key", "check", "words"],
            cont_names=["x"],
            **options,
        )

    def read(batch: Any) -> dict[str, Any]:
        x, y = batch
        values, nnz = (keras.ops.convert_to_numpy(t)[:, 0] for t in x["words"])
        found = {name: keras.ops.convert_to_numpy(x[name])[:, 0] for name in ("key", "check", "x")}
        words = [w.tolist() for w in np.split(values, np.cumsum(nnz)[:-1])]
        return {**found, "y": keras.ops.convert_to_numpy(y)[:, 0], "words": words}

    check_loader(make, read)
