"""Every promise of a loader, for Keras on its three backends and for `tf.data`.

A process has one Keras backend. The one that is not TensorFlow is tried in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
if BACKEND == "tensorflow":
    tf = pytest.importorskip("tensorflow")
    from tabfeed.loader.tensorflow import KerasSequenceLoader
else:
    from tabfeed.loader.keras import KerasSequenceLoader

from tabfeed.testing.loader import check_loader  # noqa: E402

INTS = {"tensorflow": "int64", "torch": "int64", "jax": "int32"}[BACKEND]


def make(dataset, **options):
    options.setdefault("shuffle", False)
    return KerasSequenceLoader(
        dataset,
        label_names=["y"],
        cat_names=["key", "check", "words"],
        cont_names=["x"],
        **options,
    )


def flat(tensor, dtype):
    """A column of a batch, which must be the backend's own tensor."""
    assert keras.ops.is_tensor(tensor), type(tensor)
    assert keras.backend.standardize_dtype(tensor.dtype) == dtype
    assert tuple(tensor.shape)[1:] == (1,)
    return np.array(keras.ops.convert_to_numpy(tensor))[:, 0]


def read(batch):
    x, y = batch
    assert sorted(x) == ["check", "key", "words", "x"]
    if BACKEND == "tensorflow":
        assert isinstance(x["words"], tf.RaggedTensor)
        words = x["words"].to_list()
    else:
        values, nnz = (flat(t, d) for t, d in zip(x["words"], (INTS, "int32"), strict=True))
        words = [w.tolist() for w in np.split(values, np.cumsum(nnz)[:-1])]
    return {
        "key": flat(x["key"], INTS),
        "check": flat(x["check"], "int32"),
        "x": flat(x["x"], "float32"),
        "y": flat(y, "float32"),
        "words": words,
    }


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_promises():
    check_loader(make, read)


class ByTensorFlow:
    """The loader's `tf.data.Dataset`, with what the suite asks beside batches."""

    def __init__(self, dataset, **options):
        self.loader = make(dataset, **options)
        self.dataset = self.loader.as_tf_dataset()
        self.close = self.loader.close

    def __iter__(self):
        return iter(self.dataset)

    def __len__(self):
        return len(self.dataset)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.data")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_promises_of_tf_data():
    # tf.data has exceptions of its own, and making a dataset for every restore takes a minute;
    # tests/loader/test_tensorflow.py looks at both.
    check_loader(ByTensorFlow, read, skip=["check_restore", "check_errors_arrive"])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="started by the run on TensorFlow")
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_backends(backend):
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    here = Path(__file__)
    others = [here.parents[1] / "integration" / f"test_keras_{n}.py" for n in ("fit", "devices")]
    tests = [str(here), *map(str, others)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=here.parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
