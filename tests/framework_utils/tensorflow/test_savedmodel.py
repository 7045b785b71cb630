"""Models with the layers are saved, exported, and loaded again with the same outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("SavedModels are TensorFlow's", allow_module_level=True)

from tabfeed.framework_utils import tensorflow as utils  # noqa: E402
from tabfeed.framework_utils.tensorflow import layers  # noqa: E402
from tabfeed.loader.keras.columns import (  # noqa: E402
    Bucketized,
    Embedding,
    Identity,
    Indicator,
    Numeric,
)

# TensorFlow's tensors meet NumPy 2 with an old signature when Keras writes weights.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
fc = tf.feature_column


@keras.saving.register_keras_serializable(package="tests")
def halve(x: Any) -> Any:
    return x / 2


def batch() -> dict[str, Any]:
    return {
        "a": tf.constant([[1], [2]]),
        "b": tf.constant([[3], [4]]),
        "t": tf.constant([[1, 2], [3, -1]], tf.int64),
        "n": tf.constant([[0.5], [1.5]]),
    }


def make_model() -> keras.Model:
    inputs = {
        "a": keras.Input((1,), dtype="int32", name="a"),
        "b": keras.Input((1,), dtype="int32", name="b"),
        "t": keras.Input((None,), dtype="int64", name="t"),
        "n": keras.Input((1,), name="n"),
    }
    deep = [
        fc.embedding_column(fc.categorical_column_with_identity("a", 5), 4),
        Embedding(Identity("b", 5), 4, "sum", initializer="glorot_normal"),
        Embedding(Identity("t", 5), 4, "sqrtn", max_norm=1.0),
        Embedding(Bucketized(Numeric("n", (1,), halve), (0.5,)), 4),
    ]
    stacked = layers.DenseFeatures(deep, aggregation="stack")(inputs)
    parts = [
        layers.DotProductInteraction("field_each", self_interaction=True)(stacked),
        keras.layers.Flatten()(layers.XDeepFmOuterProduct(3)(stacked)),
        layers.DenseFeatures([Indicator(Identity("a", 5)), Numeric("n")])(inputs),
        layers.LinearFeatures([*deep, Numeric("n")], mask_zero=True)(inputs),
    ]
    x = keras.layers.Concatenate()(parts)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def test_a_keras_file_gives_the_model_back(tmp_path: Path) -> None:
    model = make_model()
    model.compile("sgd", "mse")
    model.train_on_batch(batch(), tf.ones((2, 1)))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(batch()), model(batch()))
    again.train_on_batch(batch(), tf.ones((2, 1)))


def test_save_writes_a_saved_model_for_its_ending(tmp_path: Path) -> None:
    model = make_model()
    model.save(str(tmp_path / "model.savedmodel"))
    loaded = tf.saved_model.load(tmp_path / "model.savedmodel")
    np.testing.assert_allclose(loaded.serve(batch()), model(batch()), rtol=1e-6, atol=1e-7)
    layer = keras.layers.TFSMLayer(tmp_path / "model.savedmodel", call_endpoint="serve")
    np.testing.assert_allclose(layer(batch()), model(batch()), rtol=1e-6, atol=1e-7)
    with pytest.raises(FileExistsError, match="already exists; pass overwrite=True"):
        model.save(tmp_path / "model.savedmodel", overwrite=False)


def test_other_endings_are_left_to_keras(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Invalid filepath extension"):
        make_model().save(tmp_path / "model.other")


def test_the_wrapper_goes_on_once_and_comes_off(tmp_path: Path) -> None:
    utils.install_savedmodel()
    once = keras.Model.save
    utils.install_savedmodel()
    assert keras.Model.save is once
    try:
        utils.uninstall_savedmodel()
        with pytest.raises(ValueError, match="Invalid filepath extension"):
            make_model().save(tmp_path / "model.savedmodel")
    finally:
        utils.install_savedmodel()


def test_layers_come_back_from_their_config() -> None:
    for layer in (
        layers.DenseFeatures(
            [Numeric("n", (2,), halve)], mask_zero=True, name="d", trainable=False
        ),
        layers.LinearFeatures([Identity("a", 5, default_value=1)], name="l"),
        layers.DotProductInteraction("field_all", True, kernel_initializer="ones", name="p"),
        layers.XDeepFmOuterProduct(3, kernel_initializer="zeros", dtype="mixed_bfloat16", name="x"),
    ):
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
        assert type(again) is type(layer) and again.name == layer.name
        assert again.get_config() == layer.get_config()
        assert again.trainable == layer.trainable
