"""Products of vectors against NumPy, gradients included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("the gradients are taken with TensorFlow", allow_module_level=True)

from tabfeed.errors import ArgumentError  # noqa: E402
from tabfeed.framework_utils.tensorflow.layers import (  # noqa: E402
    DotProductInteraction,
    XDeepFmOuterProduct,
)
from tests.framework_utils.tensorflow import reference  # noqa: E402

RNG = np.random.default_rng(3)


def assert_close(left: Any, right: Any) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fields", [2, 4])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [None, "field_all", "field_each", "field_interaction"])
def test_dot_products(kind: str | None, both: bool, fields: int) -> None:
    x = RNG.standard_normal((5, fields, 3))
    layer = DotProductInteraction(kind, both, dtype="float64")
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        out = layer(given)
        up = RNG.standard_normal(out.shape)
        loss = tf.reduce_sum(out * up)
    of_x, *of_kernel = tape.gradient(loss, [given, *(w.value for w in layer.weights)])
    kernel = layer.weights[0].numpy() if kind else None
    assert_close(out, reference.dots(x, kind, kernel, both))
    expected_x, expected_kernel = reference.dots_grad(x, kind, kernel, both, up)
    assert_close(of_x, expected_x)
    if kind:
        assert_close(of_kernel[0], expected_kernel)
    count = fields * (fields + 1) // 2 if both else fields * (fields - 1) // 2
    assert out.shape == (5, count) == layer.compute_output_shape((5, fields, 3))
    assert layer.compute_output_shape((None, fields, 3)) == (None, count)


def test_dot_products_in_float32() -> None:
    x = RNG.standard_normal((5, 4, 3)).astype(np.float32)
    out = DotProductInteraction()(x)
    np.testing.assert_allclose(
        out, reference.dots(x.astype(np.float64), None, None, False), rtol=1e-5, atol=1e-6
    )


def test_a_mask_hides_vectors() -> None:
    x = np.ones((2, 3, 2))
    out = DotProductInteraction()(x, mask=tf.constant([[True, True, False], [True, True, True]]))
    assert_close(out, [[2, 0, 0], [2, 2, 2]])
    kernel = XDeepFmOuterProduct(1, kernel_initializer="ones")
    assert_close(
        kernel(x, mask=tf.constant([[True, False, False], [True] * 3])), [[[1, 1]], [[9, 9]]]
    )


@pytest.mark.parametrize("hidden", [None, 4])
def test_outer_products(hidden: int | None) -> None:
    x0 = RNG.standard_normal((5, 3, 2))
    xk = x0 if hidden is None else RNG.standard_normal((5, hidden, 2))
    layer = XDeepFmOuterProduct(6, dtype="float64")
    with tf.GradientTape() as tape:
        given_0, given_k = tf.constant(x0), tf.constant(xk)
        tape.watch([given_0, given_k])
        out = layer(given_0 if hidden is None else [given_0, given_k])
        up = RNG.standard_normal(out.shape)
        loss = tf.reduce_sum(out * up)
    of_0, of_k, of_w = tape.gradient(loss, [given_0, given_k, layer.kernel.value])
    kernel = layer.kernel.numpy()
    assert_close(out, reference.outer(x0, xk, kernel))
    expected_0, expected_k, expected_w = reference.outer_grad(x0, xk, kernel, up)
    assert_close(of_w, expected_w)
    if hidden is None:
        assert_close(of_0, expected_0 + expected_k)
    else:
        assert_close(of_0, expected_0)
        assert_close(of_k, expected_k)
    shape = x0.shape if hidden is None else [x0.shape, xk.shape]
    assert out.shape == (5, 6, 2) == layer.compute_output_shape(shape)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    x = RNG.standard_normal((5, 3, 2)).astype(np.float32)
    for layer in (
        DotProductInteraction("field_each", dtype=policy),
        XDeepFmOuterProduct(2, dtype=policy),
    ):
        out = layer(x)
        assert out.dtype == layer.compute_dtype and layer.weights[0].dtype == "float32"
        exact = type(layer).from_config({**layer.get_config(), "dtype": "float32"})
        exact(x)
        exact.set_weights(layer.get_weights())
        np.testing.assert_allclose(tf.cast(out, "float32"), exact(x), rtol=0.05, atol=0.1)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ArgumentError, match="interaction_type is 'all'"):
        DotProductInteraction("all")
    with pytest.raises(ArgumentError, match="aggregation='stack'"):
        DotProductInteraction().build((None, 12))
    with pytest.raises(ArgumentError, match="dim is 0"):
        XDeepFmOuterProduct(0)
    with pytest.raises(ArgumentError, match="of 2 and of 3 numbers"):
        XDeepFmOuterProduct(1).build([(None, 3, 2), (None, 3, 3)])
