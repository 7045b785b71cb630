"""DenseFeatures and LinearFeatures against NumPy, gradients included, in every form of input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("the gradients are taken with TensorFlow", allow_module_level=True)

from tabfeed.errors import ArgumentError, ColumnNotFoundError  # noqa: E402
from tabfeed.framework_utils.tensorflow.layers import DenseFeatures, LinearFeatures  # noqa: E402
from tabfeed.loader.keras.columns import (  # noqa: E402
    Bucketized,
    Embedding,
    Identity,
    Indicator,
    Numeric,
)
from tests.framework_utils.tensorflow import reference  # noqa: E402

fc = tf.feature_column
RNG = np.random.default_rng(7)
SINGLE = [[3], [0], [6], [3]]
MULTI = [[1, 2, 2], [], [6], [0, 5]]
NUMBERS = np.array([[0.5], [-1.0], [2.0], [1.0]])
PAIRS = np.array([[0.5, 9.0], [-1.0, 1.0], [2.0, 0.0], [1.0, -3.0]])
FORMS = ["ragged", "sparse", "pair", "dense"]
COMBINERS = ["sum", "mean", "sqrtn"]


def as_form(rows: list[list[int]], form: str) -> Any:
    """Rows of ids as a batch may hold them."""
    ragged = tf.ragged.constant(rows, dtype=tf.int64, ragged_rank=1)
    if form == "ragged":
        return ragged
    if form == "sparse":
        return ragged.to_sparse()
    if form == "dense":
        return ragged.to_tensor(default_value=-1)
    return (ragged.flat_values[:, None], ragged.row_lengths()[:, None])


def gradients(layer: Any, inputs: Any) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The result, a random upstream gradient, and the gradients of the weights."""
    with tf.GradientTape() as tape:
        out = layer(inputs)
        up = RNG.standard_normal(out.shape)
        loss = tf.reduce_sum(out * tf.cast(up, out.dtype))
    grads = tape.gradient(loss, [w.value for w in layer.trainable_weights])
    return out.numpy(), up, [tf.convert_to_tensor(g).numpy() for g in grads]


def assert_close(left: Any, right: Any) -> None:
    np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("form", FORMS)
def test_embeddings_of_several_ids(form: str, combiner: str, dtype: str) -> None:
    column = fc.embedding_column(fc.categorical_column_with_identity("t", 7), 3, combiner=combiner)
    layer = DenseFeatures([column], dtype=dtype)
    out, up, (grad,) = gradients(layer, {"t": as_form(MULTI, form)})
    table = layer.weights[0].numpy().astype(np.float64)
    assert_close(out, reference.embed(MULTI, table, combiner))
    assert_close(grad, reference.embed_grad(MULTI, table, combiner, up))
    assert out.shape == (4, 3) and not out[1].any()


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_embeddings_of_one_id(combiner: str, shape: tuple[int, ...]) -> None:
    layer = DenseFeatures([Embedding(Identity("c", 7), 3, combiner)], dtype="float64")
    ids = tf.reshape(tf.constant(SINGLE), shape)
    out, up, (grad,) = gradients(layer, {"c": ids})
    table = layer.weights[0].numpy()
    assert_close(out, reference.embed(SINGLE, table, "sum"))
    assert_close(grad, reference.embed_grad(SINGLE, table, "sum", up))


@pytest.mark.parametrize("form", FORMS)
def test_indicators_count(form: str) -> None:
    column = fc.indicator_column(fc.categorical_column_with_identity("t", 7))
    out = DenseFeatures([column])({"t": as_form(MULTI, form)})
    assert_close(out, reference.indicate(MULTI, 7))


def test_numbers_go_through_and_are_normalised() -> None:
    columns = [
        fc.numeric_column("a", normalizer_fn=lambda x: 2 * x - 1),
        fc.numeric_column("b", shape=(2,)),
    ]
    out = DenseFeatures(columns)({"a": tf.constant(NUMBERS), "b": tf.constant(PAIRS)})
    assert_close(out, np.concatenate([2 * NUMBERS - 1, PAIRS], axis=1))


@pytest.mark.parametrize("numbers", [NUMBERS, PAIRS])
def test_buckets_are_one_hot(numbers: np.ndarray) -> None:
    boundaries = (0.0, 1.0, 2.0)
    source = fc.numeric_column("a", shape=(numbers.shape[1],))
    column = fc.bucketized_column(source, list(boundaries))
    out = DenseFeatures([column])({"a": tf.constant(numbers)})
    rows = reference.buckets(numbers, boundaries)
    assert_close(out, reference.indicate(rows, 4 * numbers.shape[1]))


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("numbers", [NUMBERS, PAIRS])
def test_buckets_are_embedded(numbers: np.ndarray, combiner: str) -> None:
    source = fc.numeric_column("a", shape=(numbers.shape[1],))
    column = fc.embedding_column(fc.bucketized_column(source, [0.0, 1.0]), 3, combiner=combiner)
    layer = DenseFeatures([column], dtype="float64")
    out, up, (grad,) = gradients(layer, {"a": tf.constant(numbers)})
    rows, table = reference.buckets(numbers, (0.0, 1.0)), layer.weights[0].numpy()
    assert_close(out, reference.embed(rows, table, combiner))
    assert_close(grad, reference.embed_grad(rows, table, combiner, up))


def test_columns_stand_side_by_side_in_the_order_of_their_names() -> None:
    columns = [
        Numeric("I1"),
        Embedding(Identity("b", 7), 3, "sum"),
        Indicator(Identity("a", 7)),
        Bucketized(Numeric("z"), (0.0,)),
    ]
    layer = DenseFeatures(columns, dtype="float64")
    batch = {
        "I1": tf.constant(NUMBERS),
        "a": tf.constant(SINGLE),
        "b": as_form(MULTI, "ragged"),
        "z": tf.constant(NUMBERS),
        "unasked": tf.constant(NUMBERS),
    }
    out, up, (grad,) = gradients(layer, batch)
    table = layer.weights[0].numpy()
    parts = [
        NUMBERS,
        reference.indicate(SINGLE, 7),
        reference.embed(MULTI, table, "sum"),
        reference.indicate(reference.buckets(NUMBERS, (0.0,)), 2),
    ]
    assert_close(out, np.concatenate(parts, axis=1))
    assert_close(grad, reference.embed_grad(MULTI, table, "sum", up[:, 8:11]))
    shapes = {name: tuple(getattr(t, "shape", ())) for name, t in batch.items()}
    assert layer.compute_output_shape(shapes) == out.shape


@pytest.mark.parametrize("combiner", COMBINERS)
def test_columns_are_stacked(combiner: str) -> None:
    columns = [Embedding(Identity(name, 7), 3, combiner) for name in ("b", "a")]
    layer = DenseFeatures(columns, "stack", dtype="float64")
    batch = {"a": tf.constant(SINGLE), "b": as_form(MULTI, "pair")}
    out, up, grads = gradients(layer, batch)
    tables = [w.numpy() for w in layer.weights]
    expected = [
        reference.embed(r, t, combiner) for r, t in zip((SINGLE, MULTI), tables, strict=True)
    ]
    assert_close(out, np.stack(expected, axis=1))
    assert_close(grads[0], reference.embed_grad(SINGLE, tables[0], combiner, up[:, 0]))
    assert_close(grads[1], reference.embed_grad(MULTI, tables[1], combiner, up[:, 1]))
    assert layer.compute_output_shape({"a": (4, 1), "b": ((6, 1), (4, 1))}) == (4, 2, 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("combiner", COMBINERS)
def test_the_wide_part(combiner: str, form: str) -> None:
    columns = [
        Embedding(Identity("t", 7), 3, combiner),
        Identity("c", 7),
        Bucketized(Numeric("z", (2,)), (0.0, 1.0)),
        Numeric("n", (2,)),
        Indicator(Identity("m", 7)),
    ]
    layer = LinearFeatures(columns, dtype="float64")
    batch = {
        "t": as_form(MULTI, form),
        "m": as_form(MULTI, form),
        "c": tf.constant(SINGLE),
        "z": tf.constant(PAIRS),
        "n": tf.constant(PAIRS),
    }
    layer(batch)
    assert all(not w.numpy().any() for w in layer.weights)
    layer.set_weights([RNG.standard_normal(w.shape) for w in layer.weights])
    out, up, grads = gradients(layer, batch)
    by_name = {w.name: (w.numpy(), g) for w, g in zip(layer.weights, grads, strict=True)}
    rows = {
        "t_embedding": (MULTI, combiner),
        "c": (SINGLE, "sum"),
        "z_bucketized": (reference.buckets(PAIRS, (0.0, 1.0)), "sum"),
        "m_indicator": (MULTI, "sum"),
    }
    expected = by_name["bias"][0] + PAIRS @ by_name["n_weights"][0]
    for name, (ids, how) in rows.items():
        weights, grad = by_name[f"{name}_weights"]
        expected = expected + reference.embed(ids, weights, how)
        assert_close(grad, reference.embed_grad(ids, weights, how, up))
    assert_close(out, expected)
    assert_close(by_name["bias"][1], up.sum(axis=0))
    assert_close(by_name["n_weights"][1], PAIRS.T @ up)
    assert out.shape == (4, 1) == layer.compute_output_shape({name: (4, 1) for name in batch})


def test_an_id_below_zero_is_none_and_a_default_stands_in() -> None:
    ids = {"c": tf.constant([[-1], [9], [2]])}
    plain = DenseFeatures([Indicator(Identity("c", 10))])(ids)
    assert_close(plain[0], np.zeros(10))
    default = DenseFeatures([Indicator(Identity("c", 4, default_value=3))])(ids)
    assert_close(default, np.eye(4)[[3, 3, 2]])


@pytest.mark.parametrize("form", ["dense", "ragged"])
def test_mask_zero_makes_zero_padding(form: str) -> None:
    column = Embedding(Identity("t", 7), 3, "mean")
    layer = DenseFeatures([column], mask_zero=True, dtype="float64")
    out = layer({"t": as_form([[1, 2, 0], [0, 0, 0], [4, 0, 0]], form)})
    assert_close(out, reference.embed([[1, 2], [], [4]], layer.weights[0].numpy(), "mean"))


def test_a_mask_hides_ids() -> None:
    layer = DenseFeatures([Embedding(Identity("t", 7), 3, "mean")], dtype="float64")
    ids = tf.constant([[1, 2, 3], [4, 5, 6]])
    out = layer({"t": ids}, mask={"t": tf.constant([[True, False, True], [False] * 3])})
    assert_close(out, reference.embed([[1, 3], []], layer.weights[0].numpy(), "mean"))
    assert layer.supports_masking and layer.compute_mask(ids) is None


def test_a_mask_of_an_earlier_layer_arrives() -> None:
    @keras.saving.register_keras_serializable(package="tests")
    class Mask(keras.layers.Layer):
        def call(self, ids: Any) -> Any:
            return ids + 0

        def compute_mask(self, ids: Any, previous: Any = None) -> Any:
            return ids < 5

    ids = keras.Input((3,), dtype="int32")
    column = Embedding(Identity("t", 7), 2, "sum", initializer="ones")
    model = keras.Model(ids, DenseFeatures([column])({"t": Mask()(ids)}))
    assert_close(model(tf.constant([[1, 5, 6], [1, 2, 3]])), [[1, 1], [3, 3]])


@pytest.mark.parametrize("kind", [DenseFeatures, LinearFeatures])
def test_a_table_is_not_read_whole(kind: Any) -> None:
    layer = kind([Embedding(Identity("c", 7), 2)])
    layer({"c": tf.constant([[0]])})
    traced = tf.function(lambda ids: layer({"c": ids}))
    graph = traced.get_concrete_function(tf.TensorSpec((None, 1), tf.int32)).graph
    read = [op.inputs[0] for op in graph.get_operations() if op.type == "ReadVariableOp"]
    tables = [graph.capture(w.value.handle) for w in layer.weights if "bias" not in w.path]
    assert tables and not any(r is table for r in read for table in tables)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer({"c": tf.constant([[3], [3]])}))
    (table,) = (w.value for w in layer.weights if "bias" not in w.path)
    assert isinstance(tape.gradient(loss, table), tf.IndexedSlices)


def test_vectors_are_clipped_to_a_norm() -> None:
    column = Embedding(Identity("c", 2), 2, initializer="ones", max_norm=0.5)
    out = DenseFeatures([column])({"c": tf.constant([[0], [1]])})
    assert_close(np.linalg.norm(out, axis=1), [0.5, 0.5])


def test_a_frozen_table_is_not_trained() -> None:
    column = fc.embedding_column(fc.categorical_column_with_identity("c", 2), 2, trainable=False)
    layer = DenseFeatures([column])
    layer({"c": tf.constant([[0]])})
    assert layer.trainable_weights == [] and len(layer.weights) == 1


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    columns = [
        Embedding(Identity("c", 7), 3, "mean"),
        Numeric("n"),
        Bucketized(Numeric("z"), (1000.25,)),
    ]
    layer = DenseFeatures(columns, dtype=policy)
    # 1000.3 rounds to 1000.5 as float16 and to 1000 as bfloat16: buckets are found before that.
    batch = {
        "c": tf.constant([[1]]),
        "n": tf.constant([[0.5]]),
        "z": tf.constant([[1000.3]]),
    }
    out = layer(batch)
    assert out.dtype == layer.compute_dtype and layer.weights[0].dtype == "float32"
    table = layer.weights[0].numpy()
    expected = np.concatenate([table[1], [0.5, 0.0, 1.0]])
    np.testing.assert_allclose(tf.cast(out, "float32")[0], expected, rtol=1e-2, atol=1e-2)
    wide = LinearFeatures(columns, dtype=policy)(batch)
    assert wide.dtype == layer.compute_dtype


def test_initializers_are_taken_over() -> None:
    identity = fc.categorical_column_with_identity("c", 20_000)
    default = DenseFeatures([fc.embedding_column(identity, 4)])
    given = DenseFeatures(
        [fc.embedding_column(identity, 4, initializer=tf.random_uniform_initializer(2.0, 3.0))]
    )
    for layer in (default, given):
        layer({"c": tf.constant([[0]])})
    table = default.weights[0].numpy()
    assert (
        abs(table.mean()) < 0.02 and np.abs(table).max() <= 2 * 4**-0.5 / 0.8 and table.std() > 0.4
    )
    assert given.weights[0].numpy().min() >= 2.0


def test_what_cannot_be_is_refused() -> None:
    identity = fc.categorical_column_with_identity("c", 7)
    with pytest.raises(ArgumentError, match="only an id"):
        DenseFeatures([identity])
    with pytest.raises(ArgumentError, match="make_feature_column_workflow"):
        words = fc.categorical_column_with_vocabulary_list("w", ["a", "b"])
        DenseFeatures([fc.embedding_column(words, 2)])
    with pytest.raises(ArgumentError, match="not a feature column"):
        DenseFeatures([fc.weighted_categorical_column(identity, "w")])
    with pytest.raises(ArgumentError, match="different widths"):
        DenseFeatures([fc.embedding_column(identity, 2), Numeric("n")], "stack")
    with pytest.raises(ArgumentError, match="aggregation is 'sum'"):
        DenseFeatures([Numeric("n")], "sum")
    with pytest.raises(ArgumentError, match="combiner"):
        Embedding(Identity("c", 7), 2, "max")
    with pytest.raises(ArgumentError, match="initializer"):
        DenseFeatures([Embedding(Identity("c", 7), 2, initializer=object())])(
            {"c": tf.constant([[0]])}
        )
    with pytest.raises(ColumnNotFoundError, match="did you mean 'numb'"):
        DenseFeatures([Numeric("num")])({"numb": tf.constant([[0.0]])})
