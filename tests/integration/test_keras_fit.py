"""A small model is trained by `fit` from the loader, on whichever backend Keras has here."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import ArgumentError, LoaderError  # noqa: E402
from tabfeed.framework_utils.tensorflow.layers import DenseFeatures  # noqa: E402
from tabfeed.loader.keras import (  # noqa: E402
    KerasSequenceLoader,
    KerasSequenceValidater,
)
from tabfeed.loader.keras.columns import Embedding, Identity, Numeric  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
ROWS = 1_000


def dataset(seed: int = 0) -> Dataset:
    """A label that follows from an id, a number and a list."""
    random = np.random.default_rng(seed)
    ids, numbers = random.integers(0, 10, ROWS), random.standard_normal(ROWS)
    lists = [random.integers(1, 6, n).tolist() for n in random.integers(0, 4, ROWS)]
    score = (ids - 4.5) / 3 + numbers + np.array([len(items) - 1.5 for items in lists])
    labels = (score > 0).astype(np.float32)
    return Dataset({"C": ids, "I": numbers, "T": lists, "y": labels}, npartitions=5)


def loader(**options: Any) -> KerasSequenceLoader:
    """Lists as matrices, which every backend has."""
    return KerasSequenceLoader(
        dataset(),
        64,
        label_names=["y"],
        cat_names=["C", "T"],
        cont_names=["I"],
        sparse_names=["T"],
        sparse_max={"T": 3},
        sparse_as_dense=True,
        **options,
    )


def compiled() -> keras.Model:
    """A model of these rows."""
    inputs = {
        "C": keras.Input((1,), dtype="int32", name="C"),
        "T": keras.Input((3,), dtype="int32", name="T"),
        "I": keras.Input((1,), name="I"),
    }
    columns = [Embedding(Identity("C", 10), 4), Embedding(Identity("T", 6), 4, "sum"), Numeric("I")]
    x = DenseFeatures(columns)(inputs)
    x = keras.layers.Dense(16, activation="relu")(x)
    built = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
    built.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
    return built


@pytest.fixture(scope="module")
def trained() -> keras.Model:
    """One model for all tests, since compiling takes longest; each goes on training it."""
    return compiled()


def threads_of_ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tabfeed")]


def wait_until_gone() -> None:
    wait_until(lambda: not threads_of_ours(), threads_of_ours)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_layers_read_pairs_on_every_backend(combiner: str) -> None:
    layer = DenseFeatures([Embedding(Identity("T", 6), 3, combiner)])
    values, nnz = np.array([[1], [5], [2], [2]]), np.array([[2], [0], [2]], np.int32)
    out = keras.ops.convert_to_numpy(
        layer({"T": tuple(keras.ops.convert_to_tensor(a) for a in (values, nnz))})
    )
    table = keras.ops.convert_to_numpy(layer.weights[0])
    over = {"sum": 1.0, "mean": 2.0, "sqrtn": 2**0.5}[combiner]
    expected = np.stack([(table[1] + table[5]) / over, np.zeros(3), 2 * table[2] / over])
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def as_numpy(batches: Any) -> list[dict[str, Any]]:
    return [
        {name: keras.ops.convert_to_numpy(t) for name, t in {**x, "y": y}.items()}
        for x, y in batches
    ]


def test_what_is_said_of_a_gpu_is_looked_at_without_one() -> None:
    with pytest.raises(ArgumentError, match="reader is 'duck'; it must be one of auto, arrow"):
        loader(reader="duck")
    with pytest.raises(ArgumentError, match="device_memory is 'much'"):
        loader(device_memory="much")
    assert loader(reader="cudf").reader_choice.startswith("Arrow: ")


@pytest.mark.parametrize("device", [-1, "gpu:-1", "cpu:x", "", True, 1.5])
def test_what_is_no_device(device: Any) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"device is {device!r}; give ")):
        loader(device=device)


@pytest.mark.parametrize("device", [99, "gpu:99", "GPU:99"])
def test_a_device_that_is_not_there(device: Any) -> None:
    with pytest.raises(LoaderError, match=r"device is .*99'?, but (there are \d|\w+ finds no)"):
        loader(device=device)
    with pytest.raises((ArgumentError, LoaderError), match="device is 'duck'"):
        loader(device="duck")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of torch")
@pytest.mark.parametrize("device", ["mps", "xla"])
def test_a_kind_of_device_that_is_not_there(device: str) -> None:
    with pytest.raises(LoaderError, match=f"device is '{device}', which torch cannot use here"):
        loader(device=device)


@pytest.mark.parametrize("device", ["cpu", "CPU:0"])
def test_a_device_that_is_there(device: str) -> None:
    assert len(as_numpy(loader(device=device))) == 16


def test_batches_that_are_kept_stay_as_they_were() -> None:
    """Buffers go round; one that a tensor still looks at must not."""
    rows = 64 * 200
    data = Dataset({"C": np.arange(rows), "y": np.zeros(rows)}, npartitions=3)
    feed = KerasSequenceLoader(data, 64, label_names=["y"], cat_names=["C"], buffer_size=4_000)
    kept = [batch for _ in range(2) for batch in feed]
    feed.close()
    seen = np.sort(np.concatenate([b["C"][:, 0] for b in as_numpy(kept)]))
    np.testing.assert_array_equal(seen, np.repeat(np.arange(rows), 2))


def test_fit_learns_and_the_callback_validates(trained: keras.Model) -> None:
    train, valid = loader(), loader(shuffle=False)
    seen: list[dict[str, float]] = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append({k: float(v) for k, v in self.model.get_metrics_result().items()})

    callbacks = [KerasSequenceValidater(valid), Look()]
    history = trained.fit(train, epochs=4, callbacks=callbacks, verbose=0).history
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} == set(history)
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    assert history["val_accuracy"][-1] > 0.8
    assert train.num_rows_processed == valid.num_rows_processed == ROWS
    # The callback's figures are those of `evaluate`, which begins with fresh metrics; and the
    # metrics of training are what they were.
    loss, accuracy = trained.evaluate(valid, verbose=0)
    assert history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)
    assert history["val_accuracy"][-1] == pytest.approx(accuracy)
    for epoch in range(4):
        for name, value in seen[epoch].items():
            assert value == pytest.approx(history[name][epoch], rel=1e-5)
    wait_until_gone()


def two_labels(**options: Any) -> KerasSequenceLoader:
    """Labels whose names are in another order than the alphabet's, far apart in size."""
    rows = {"I": np.ones(256), "click": np.zeros(256), "amount": np.full(256, 100.0)}
    names = ["click", "amount"]
    return KerasSequenceLoader(Dataset(rows), 64, label_names=names, cont_names=["I"], **options)


def always(value: float, name: str, inputs: Any) -> Any:
    """An output that is that number, whatever comes in."""
    bias = keras.initializers.Constant(value)
    layer = keras.layers.Dense(1, name=name, kernel_initializer="zeros", bias_initializer=bias)
    return layer(inputs)


class TwoHeads(keras.Model):
    """Outputs by name that Keras knows only once the model has run."""

    def __init__(self) -> None:
        super().__init__()
        self.click = keras.layers.Dense(1, kernel_initializer="zeros")
        bias = keras.initializers.Constant(100.0)
        self.amount = keras.layers.Dense(1, kernel_initializer="zeros", bias_initializer=bias)

    def call(self, inputs: Any) -> Any:
        return {"click": self.click(inputs["I"]), "amount": self.amount(inputs["I"])}


@pytest.mark.parametrize("losses", ["mse", ["mse", "mse"], {"click": "mse", "amount": "mse"}])
@pytest.mark.parametrize("wrapped", [False, True])
def test_labels_find_outputs_that_keras_knows_once_the_model_has_run(
    losses: Any, wrapped: bool
) -> None:
    model = keras.Sequential([TwoHeads()]) if wrapped else TwoHeads()
    model.compile("sgd", losses)
    train = two_labels()
    history = model.fit(train, validation_data=two_labels(), epochs=2, verbose=0).history
    assert history["loss"] == history["val_loss"] == [0.0, 0.0]
    train.close()
    wait_until_gone()


def test_predict_needs_no_labels() -> None:
    x = keras.Input((1,), name="I")
    model = keras.Model({"I": x}, {"clicks": always(0.0, "a", x)})
    model.compile("sgd", "mse")
    assert model.predict(two_labels(), verbose=0)["clicks"].shape == (256, 1)


@pytest.mark.parametrize("outputs", ["dict", "named", "by position", "subclass"])
def test_each_label_goes_to_the_output_of_its_name(outputs: str) -> None:
    x = keras.Input((1,), name="I")
    names = ("first", "second") if outputs == "by position" else ("click", "amount")
    found = [always(0.0, names[0], x), always(100.0, names[1], x)]
    if outputs == "dict":
        found = {"click": always(0.0, "a", x), "amount": always(100.0, "b", x)}
    model = TwoHeads() if outputs == "subclass" else keras.Model({"I": x}, found)
    model.compile("sgd", {"click": "mse", "amount": "mse"} if outputs == "subclass" else "mse")
    train = two_labels()
    history = model.fit(train, validation_data=two_labels(), epochs=2, verbose=0).history
    assert history["loss"] == history["val_loss"] == [0.0, 0.0]
    assert model.evaluate(train, verbose=0, return_dict=True)["loss"] == 0.0
    _, labels = next(iter(train))
    assert [float(keras.ops.max(y)) for y in labels] == [0.0, 100.0]  # by hand, in the order given
    train.close()


def test_outputs_of_other_names_than_the_labels_are_refused() -> None:
    x = keras.Input((1,), name="I")
    model = keras.Model({"I": x}, {"clicks": always(0.0, "a", x), "amount": always(1.0, "b", x)})
    model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match=r"outputs are clicks, amount, .* click, amount"):
        model.fit(two_labels(), verbose=0)


def test_weights_that_keras_would_ignore_are_refused(trained: keras.Model) -> None:
    with pytest.raises(ArgumentError, match=r"KerasSequenceLoader\(..., class_weight="):
        trained.fit(loader(), class_weight={0: 1.0, 1: 2.0}, verbose=0)
    with pytest.raises(ArgumentError, match="sample_weight= does not reach a loader"):
        trained.fit(loader(), sample_weight=np.ones(ROWS), verbose=0)
    with pytest.raises(ArgumentError, match="sample_weight= does not reach a loader"):
        trained.evaluate(loader(), sample_weight=np.ones(ROWS), verbose=0)
    with pytest.raises(ArgumentError, match="sample_weight= does not reach a loader"):
        trained.fit(loader(), validation_data=(loader(), None, np.ones(ROWS)), verbose=0)
    wait_until_gone()


def test_labels_given_beside_the_loader_are_refused(trained: keras.Model) -> None:
    with pytest.raises(ArgumentError, match=r"y= does not reach a loader.*label_names="):
        trained.fit(loader(), np.ones(ROWS), verbose=0)
    with pytest.raises(ArgumentError, match="y= does not reach a loader"):
        trained.fit(loader(), validation_data=(loader(), np.ones(ROWS)), verbose=0)
    wait_until_gone()


@pytest.mark.parametrize("trained_on", [1, 6, 16])
def test_a_state_in_mid_epoch_is_at_the_next_batch(trained: keras.Model, trained_on: int) -> None:
    expected = as_numpy(loader(seed=3))
    train, states = loader(seed=3), []

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            states.append(train.state_dict())

    trained.fit(train, epochs=1, verbose=0, callbacks=[Save()])
    resumed = loader(seed=3)
    resumed.load_state_dict(states[trained_on - 1])
    left = as_numpy(resumed)
    assert len(left) == len(expected) - trained_on or trained_on == len(expected)
    for ours, right in zip(left, expected[trained_on:], strict=False):
        np.testing.assert_array_equal(ours["I"], right["I"])


def test_validation_data_predict_and_evaluate(trained: keras.Model) -> None:
    valid = loader(shuffle=False)
    history = trained.fit(loader(), validation_data=valid, epochs=2, verbose=0).history
    assert history["val_loss"][-1] == pytest.approx(trained.evaluate(valid, verbose=0)[0], rel=1e-5)
    predicted = trained.predict(valid, verbose=0)
    assert predicted.shape == (ROWS, 1)
    labels = dataset().to_arrow().column("y").to_numpy()
    accuracy = np.mean((predicted[:, 0] > 0.5) == labels)
    assert history["val_accuracy"][-1] == pytest.approx(accuracy)  # rows came in order


def test_each_epoch_of_fit_has_an_order_of_its_own(trained: keras.Model) -> None:
    orders = []
    for _ in range(2):
        train = loader(seed=3)
        trained.fit(train, epochs=2, verbose=0)
        assert train.num_rows_processed == ROWS
        orders.append([keras.ops.convert_to_numpy(y).tolist() for _, y in train])
    assert orders[0] == orders[1]  # as many epochs on, the same order
    first = [keras.ops.convert_to_numpy(y).tolist() for _, y in loader(seed=3)]
    assert first != orders[0] and sorted(map(len, first)) == sorted(map(len, orders[0]))


def labels_of(batches: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(y).tolist() for _, y in batches]


def test_a_pass_ends_a_walk_by_numbers() -> None:
    train, expected = loader(seed=3), labels_of(loader(seed=3))
    assert labels_of([train[0]]) == expected[:1]
    _, walk = train._walk
    batches = iter(train)
    assert train._walk is None and next(walk, None) is None  # nor does it hold a thread
    got = labels_of([next(batches) for _ in range(5)])
    later = labels_of([train[2], train[3], train[0]])  # of the next pass, in the middle of this one
    assert got + labels_of(batches) == expected
    following = labels_of(train)
    assert later == [following[i] for i in (2, 3, 0)]
    train.close()
    wait_until_gone()


@pytest.mark.parametrize("when", ["before", "within"])
def test_looking_at_a_batch_does_not_change_the_epochs_of_fit(
    trained: keras.Model, when: str
) -> None:
    train = loader(seed=3)

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if when == "within" and batch == 3:
                train[0]

    if when == "before":
        train[0]
    trained.fit(train, epochs=2, callbacks=[Look()], verbose=0)
    assert train.state.upcoming.epoch == 2
    assert train._walk is None
    wait_until_gone()


def new_model() -> keras.Model:
    shapes = {"C": (1,), "T": (3,), "I": (1,)}
    inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs["I"]))
    model.compile("sgd", "mse")
    return model


class Steps(keras.callbacks.Callback):
    """Counts the steps of a training."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.taken += 1


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # of an epoch that was begun
@pytest.mark.parametrize("begun", [0, 10])
def test_a_new_model_is_trained_from_where_the_loader_stands(begun: int) -> None:
    """Keras builds it with the first batch, which it then does not train on."""
    before = loader(seed=3)
    batches = iter(before)
    for _ in range(begun):
        next(batches)
    state, model = before.state_dict(), new_model()
    before.close()
    for _ in range(2):  # the second time it is built
        train, steps = loader(seed=3), Steps()
        train.load_state_dict(state)
        model.fit(train, epochs=2, callbacks=[steps], verbose=0)
        assert steps.taken == 32 - begun
        assert train.state.upcoming.epoch == 2
        assert train.state.rows_given == 2 * ROWS - begun * 64
    wait_until_gone()


def test_a_model_that_is_evaluated_first_loses_no_rows_either() -> None:
    train, model = loader(seed=3), new_model()
    model.evaluate(train, verbose=0)
    assert train.state.upcoming.epoch == 1 and train.state.rows_given == ROWS
    model.fit(train, epochs=1, verbose=0)
    assert train.state.upcoming.epoch == 2 and train.state.rows_given == 2 * ROWS


@pytest.mark.parametrize("steps", [1, 5, 16])
def test_a_pass_that_was_trained_on_in_part_is_not_begun_again(steps: int) -> None:
    train, model = loader(seed=3), new_model()
    model.fit(train, epochs=1, steps_per_epoch=steps, verbose=0)
    assert train.state.upcoming.epoch == 1


def test_steps_per_epoch_goes_on_through_the_data(trained: keras.Model) -> None:
    train = loader()
    trained.fit(train, epochs=3, steps_per_epoch=5, verbose=0)
    assert 15 * 64 <= train.num_rows_processed <= ROWS


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX compiles by shape")
def test_a_step_is_compiled_once_for_each_size_of_batch() -> None:
    traced = []

    class Count(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traced.append(tuple(x.shape))
            return x

    inputs = {"I": keras.Input((1,), name="I")}
    model = keras.Model(inputs, keras.layers.Dense(1)(Count()(inputs["I"])))
    model.compile("sgd", "mse")
    rows = {"I": np.arange(100.0), "y": np.zeros(100)}
    train = KerasSequenceLoader(
        Dataset(rows, npartitions=3), 32, label_names=["y"], cont_names=["I"]
    )
    model.fit(train, epochs=1, verbose=0)
    once = list(traced)
    assert {(32, 1), (4, 1)} <= set(once)
    model.fit(train, epochs=3, verbose=0)
    assert traced == once


def test_stopping_early_leaves_no_thread(trained: keras.Model) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    trained.fit(loader(), epochs=3, callbacks=[Stop()], verbose=0)
    wait_until_gone()


class Planned(RuntimeError):
    """Raised on purpose."""


class Late:
    """A transform that says its schema, so that it is not tried beforehand, and then fails."""

    output_schema = dataset().schema

    def __call__(self, table: Any) -> Any:
        raise Planned("on purpose")


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_what_a_transform_raises_arrives_with_its_type(trained: keras.Model) -> None:
    broken = loader(transforms=Late())
    if keras.backend.backend() != "jax":  # there a model is of no use after an exception
        with pytest.raises(Planned, match="on purpose"):
            trained.fit(loader(), validation_data=broken, epochs=1, verbose=0)
    with pytest.raises(Planned, match="on purpose"):
        trained.fit(broken, epochs=1, verbose=0)
    wait_until_gone()
