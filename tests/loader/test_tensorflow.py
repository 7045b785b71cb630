"""KerasSequenceLoader on TensorFlow: what comes out, what is refused, how Keras finds it."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("needs Keras on TensorFlow", allow_module_level=True)

from tabfeed import ColumnSchema, Dataset, Schema  # noqa: E402  # noqa: E402
from tabfeed.errors import (  # noqa: E402
    ArgumentError,
    ColumnNotFoundError,
    LoaderError,
    SourceNotFoundError,
)
from tabfeed.framework_utils.tensorflow.layers import DenseFeatures  # noqa: E402
from tabfeed.loader.keras.columns import Embedding, Identity  # noqa: E402
from tabfeed.loader.tensorflow import (  # noqa: E402
    KerasSequenceLoader,
    configure_tensorflow,
)
from tabfeed.trace import ListRecorder, recording  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
fc = tf.feature_column
LISTS = [[1, 2], [], [3], [4, 5, 6], [7]]


def table() -> pa.Table:
    return pa.table(
        {
            "C": pa.array([1, 2, 3, 4, 5], pa.int32()),
            "D": pa.array([9, 8, 7, 6, 5], pa.int64()),
            "I": pa.array([0.5, 1.5, 2.5, 3.5, 4.5], pa.float64()),
            "J": pa.array([1, 2, 3, 4, 5], pa.int16()),
            "T": pa.array(LISTS, pa.list_(pa.int64())),
            "V": pa.array([[i, -i] for i in range(5)], pa.list_(pa.float32(), 2)),
            "y": pa.array([0, 1, 0, 1, 1], pa.int8()),
            "z": pa.array([2.0, 3.0, 4.0, 5.0, 6.0]),
        }
    )


def dataset(npartitions: int = 2) -> Dataset:
    return Dataset(table(), npartitions=npartitions)


def make(source: Any = None, batch_size: int = 2, **options: Any) -> KerasSequenceLoader:
    options = {"shuffle": False, "label_names": ["y"], "cat_names": ["C"], **options}
    return KerasSequenceLoader(dataset() if source is None else source, batch_size, **options)


def ids(batches: Any, name: str = "C") -> list[list[int]]:
    return [batch[0][name].numpy()[:, 0].tolist() for batch in batches]


# -- what comes out --------------------------------------------------------------------------


def test_a_batch_holds_what_was_asked_for_and_nothing_else() -> None:
    loader = make(cat_names=["C", "D", "J"], cont_names=["I", "V"])
    batches = list(loader)
    x, y = batches[0]
    kinds = {name: (t.dtype.name, tuple(t.shape)) for name, t in x.items()}
    assert kinds == {
        "C": ("int32", (2, 1)),
        "D": ("int64", (2, 1)),
        "J": ("int32", (2, 1)),
        "I": ("float32", (2, 1)),
        "V": ("float32", (2, 2)),
    }
    assert isinstance(y, tf.Tensor) and y.dtype == tf.float32 and y.shape == (2, 1)
    assert [len(b[1]) for b in batches] == [2, 2, 1] and len(loader) == 3
    assert ids(batches) == [[1, 2], [3, 4], [5]] and ids(batches, "D") == [[9, 8], [7, 6], [5]]
    assert np.concatenate([b[0]["V"] for b in batches]).tolist() == [[i, -i] for i in range(5)]
    assert loader.num_rows_processed == 5
    list(loader)
    assert loader.num_rows_processed == 5  # of the latest pass


def test_labels_are_one_tensor_a_list_or_none() -> None:
    _, y = make(label_names=["y", "z"])[0]
    assert isinstance(y, list) and [t.numpy().tolist() for t in y] == [[[0], [1]], [[2], [3]]]
    assert make(label_names=None)[0][1] is None
    assert make(label_names="y")[0][1].numpy().tolist() == [[0], [1]]


def rows_of(value: Any, form: str) -> list[list[int]]:
    if form == "ragged":
        assert isinstance(value, tf.RaggedTensor) and value.dtype == tf.int64
        return value.to_list()
    if form == "pair":
        values, nnz = value
        assert values.shape[1:] == nnz.shape[1:] == (1,) and nnz.dtype == tf.int32
        parts = np.split(values.numpy()[:, 0], np.cumsum(nnz.numpy()[:, 0])[:-1])
        return [p.tolist() for p in parts]
    if form == "sparse":
        assert isinstance(value, tf.SparseTensor) and value.shape[1] == 4
        value = tf.sparse.to_dense(value)
    assert value.shape[1] == 4
    return [[i for i in row if i] for row in value.numpy().tolist()]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("form", ["ragged", "pair", "sparse", "dense"])
def test_lists_in_every_form(form: str, shuffle: bool) -> None:
    options: dict[str, Any] = {"cat_names": ["C", "T"], "shuffle": shuffle}
    if form in ("ragged", "pair"):
        options["lists"] = form
    else:
        options.update(sparse_names=["T"], sparse_max={"T": 4}, sparse_as_dense=form == "dense")
    loader = make(**options)
    for batches in (loader, loader.as_tf_dataset(), loader.get_tf_dataset()):
        seen = {}
        for x, _ in batches:
            keys = x["C"].numpy()[:, 0].tolist()
            seen.update(zip(keys, rows_of(x["T"], form), strict=True))
        assert seen == dict(zip(range(1, 6), LISTS, strict=True))


def test_columns_by_their_tags_and_those_of_a_given_schema() -> None:
    schema = Schema(
        [
            ColumnSchema("D", "int64", tags="categorical"),
            ColumnSchema("I", "float64", tags="continuous"),
            ColumnSchema("y", "int8", tags="target"),
        ]
    )
    tagged = KerasSequenceLoader(Dataset(table(), schema=schema), 2, shuffle=False)
    given = KerasSequenceLoader(dataset(), 2, shuffle=False, schema=schema)
    for loader in (tagged, given):
        x, y = loader[0]
        assert list(x) == ["D", "I"] and y.numpy().tolist() == [[0], [1]]


def test_columns_from_feature_columns() -> None:
    columns = [
        fc.embedding_column(fc.categorical_column_with_identity("C", 6), 4),
        fc.indicator_column(fc.categorical_column_with_identity("T", 8)),
        fc.numeric_column("I"),
        fc.numeric_column("V", shape=(2,)),
        fc.bucketized_column(fc.numeric_column("J"), [2.0]),
        fc.embedding_column(fc.bucketized_column(fc.numeric_column("z"), [3.0]), 2),
    ]
    x, _ = make(cat_names=None, feature_columns=columns)[0]
    assert list(x) == ["C", "T", "I", "V", "J", "z"]
    assert [x[n].dtype for n in "CIJz"] == [tf.int32, tf.float32, tf.float32, tf.float32]
    assert x["V"].shape == (2, 2)


def test_weights_by_class() -> None:
    loader = make(class_weight={0: 0.5, 1: 3.0}, batch_size=5)
    expected = [0.5, 3.0, 0.5, 3.0, 3.0]
    assert loader[0][2].numpy().tolist() == expected
    (batch,) = loader.as_tf_dataset()
    assert batch[2].numpy().tolist() == expected
    with pytest.raises(ArgumentError, match="one label"):
        make(class_weight={0: 1.0}, label_names=["y", "z"])


def test_sources(tmp_path: Path) -> None:
    for number in range(2):
        dataset().to_parquet(tmp_path / f"set{number}")
    files = sorted(str(f) for f in tmp_path.glob("*/*.parquet"))
    sources = [(files, 10), (str(tmp_path / "set*" / "*.parquet"), 10), (tmp_path / "set0", 5)]
    for source, rows in sources:
        loader = make(source, engine="parquet")
        assert sum(len(b) for b in ids(loader)) == rows == loader.num_rows_processed
    text = tmp_path / "rows.csv"
    text.write_text("C;y\n1;0\n2;1\n")
    loader = make(str(text), engine="csv", reader_kwargs={"sep": ";"})
    assert ids(loader) == [[1, 2]]


# -- what is refused ---------------------------------------------------------------------------


def identity(name: str, size: int, default: int | None = None) -> Any:
    return fc.indicator_column(fc.categorical_column_with_identity(name, size, default))


@pytest.mark.parametrize("name", ["C", "T"])
def test_an_id_beyond_the_buckets_names_column_and_id(name: str) -> None:
    top = {"C": 5, "T": 7}[name]
    loader = make(cat_names=None, feature_columns=[identity(name, top)])
    with pytest.raises(LoaderError, match=f"column '{name}' has the id {top}; .*num_buckets={top}"):
        list(loader)
    list(make(cat_names=None, feature_columns=[identity(name, top + 1)]))
    list(make(cat_names=None, feature_columns=[identity(name, 2, 0)]))


def test_columns_that_are_not_there() -> None:
    with pytest.raises(ColumnNotFoundError, match=r"no column 'CC'.*did you mean 'C'"):
        make(cat_names=None, feature_columns=[identity("CC", 5)])
    with pytest.raises(ColumnNotFoundError, match="no column 'label'"):
        make(label_names=["label"])
    with pytest.raises(ColumnNotFoundError, match="no column 'K'"):
        make(cont_names=["K"])


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError):
        make(str(tmp_path / "*.parquet"))
    with pytest.raises(SourceNotFoundError):
        make([])


def test_arguments_that_contradict() -> None:
    with pytest.raises(ArgumentError, match="not both"):
        make(feature_columns=[identity("C", 9)])
    with pytest.raises(ArgumentError, match="no inputs"):
        make(cat_names=None)
    with pytest.raises(ArgumentError, match="one role"):
        make(cont_names=["C"])
    with pytest.raises(ArgumentError, match="both as an id and as a number"):
        make(cat_names=None, feature_columns=[identity("C", 9), fc.numeric_column("C")])
    with pytest.raises(ArgumentError, match=r'sparse_max=\{"T"'):
        make(cat_names=["T"], sparse_names=["T"])
    with pytest.raises(ArgumentError, match="lists is 'dense'"):
        make(lists="dense")
    with pytest.raises(ArgumentError, match="reader_kwargs has sep"):
        make(reader_kwargs={"sep": ";"})
    with pytest.raises(LoaderError, match="label 'T' holds lists"):
        make(label_names=["T"])
    with pytest.raises(TypeError, match="unknown"):
        make(unknown=1)


def test_a_list_longer_than_allowed() -> None:
    loader = make(cat_names=["T"], sparse_names=["T"], sparse_max={"T": 2})
    with pytest.raises(LoaderError, match="a row of 3 values; sparse_max allows 2"):
        list(loader)


# -- a PyDataset ------------------------------------------------------------------------------


def test_the_index_is_honoured() -> None:
    loader = make(dataset(5), 1, shuffle=True, seed=1)
    by_number = {i: ids([loader[i]])[0] for i in (3, 0, 4, 1, 2)}
    assert ids([loader[-1]])[0] == by_number[4]
    assert (
        [by_number[i] for i in range(5)] == ids(loader) == ids([loader_at(1)[i] for i in range(5)])
    )
    with pytest.raises(IndexError, match="batch 5 of 5"):
        loader[5]
    loader.close()


def loader_at(seed: int) -> KerasSequenceLoader:
    return make(dataset(5), 1, shuffle=True, seed=seed)


def test_the_end_of_an_epoch_moves_on() -> None:
    loader, passes = loader_at(2), loader_at(2)
    for _ in range(3):
        assert ids([loader[i] for i in range(5)]) == ids(passes)
        loader.on_epoch_end()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("shuffle", [False, True])
def test_as_any_py_dataset(workers: int, shuffle: bool) -> None:
    """Through Keras's own adapter, which draws an order of its own: each row once an epoch."""
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    loader = loader_at(0)
    loader.workers = workers
    adapter = PyDatasetAdapter(loader, shuffle=shuffle)
    orders = []
    for _ in range(2):
        adapter.on_epoch_begin()
        rows = [int(x["C"][0, 0]) for x, _ in adapter.get_numpy_iterator()]
        adapter.on_epoch_end()
        assert sorted(rows) == [1, 2, 3, 4, 5]
        orders.append(rows)
    assert orders[0] != orders[1]
    loader.close()


def test_processes_are_refused() -> None:
    loader = make()
    loader.use_multiprocessing = False
    with pytest.raises(ArgumentError, match="threads="):
        loader.use_multiprocessing = True


def test_what_keras_asks_of_batches() -> None:
    assert (make().batch_size, make().has_partial_batch, make().partial_batch_size) == (2, True, 1)
    full = make(drop_last=True)
    assert (full.num_batches, full.has_partial_batch, full.partial_batch_size) == (2, False, None)
    x, _ = next(make().get_numpy_iterator())
    assert isinstance(x["C"], np.ndarray)


# -- tf.data ------------------------------------------------------------------------------------


def test_a_tf_dataset_says_what_it_holds_and_composes() -> None:
    dataset_of = make(cat_names=["C", "T"]).as_tf_dataset()
    spec, label = dataset_of.element_spec
    assert spec["C"] == tf.TensorSpec((None, 1), tf.int32)
    assert spec["T"] == tf.RaggedTensorSpec((None, None), tf.int64, 1)
    assert label == tf.TensorSpec((None, 1), tf.float32)
    assert dataset_of.cardinality() == 3
    doubled = dataset_of.map(lambda x, y: (x["C"] * 2, y)).unbatch().batch(5)
    ((x, _),) = doubled
    assert x.numpy()[:, 0].tolist() == [2, 4, 6, 8, 10]
    assert make(drop_last=True).as_tf_dataset().element_spec[1].shape == (2, 1)
    assert list(make(label_names=None).as_tf_dataset().element_spec[0]) == ["C"]


def two_labels() -> KerasSequenceLoader:
    """Labels far apart in size: 0 and 100."""
    rows = {"I": np.ones(8), "click": np.zeros(8), "amount": np.full(8, 100.0)}
    names = ["click", "amount"]
    return KerasSequenceLoader(Dataset(rows), 4, label_names=names, cont_names=["I"])


def always(value: float, name: str, inputs: Any) -> Any:
    """An output that is that number, whatever comes in."""
    bias = keras.initializers.Constant(value)
    layer = keras.layers.Dense(1, name=name, kernel_initializer="zeros", bias_initializer=bias)
    return layer(inputs)


@pytest.mark.parametrize("outputs", ["a list", "a dict", "a subclass"])
def test_labels_of_a_tf_dataset_find_the_outputs_of_their_names(outputs: str) -> None:
    x = keras.Input((1,), name="I")
    heads = {"amount": always(100.0, "amount", x), "click": always(0.0, "click", x)}
    model = keras.Model({"I": x}, list(heads.values()) if outputs == "a list" else heads)
    if outputs == "a subclass":  # Keras learns its outputs' names when it first runs
        model = keras.Sequential([model])
    model.compile("sgd", {"amount": "mse", "click": "mse"})
    batches = two_labels().as_tf_dataset(by_name=True)
    told = {"validation_data": batches, "epochs": 2, "verbose": 0, "shuffle": False}
    history = model.fit(batches, **told).history
    assert history["loss"] == history["val_loss"] == [0.0, 0.0]
    assert sum(model.evaluate(batches, verbose=0)) == 0.0
    by_position = two_labels().as_tf_dataset()
    assert model.evaluate(by_position, verbose=0)[0] == 20_000.0


def test_labels_of_a_tf_dataset_are_a_tuple_unless_asked_for_by_name() -> None:
    _, labels = next(iter(two_labels().as_tf_dataset()))
    assert [float(y[0, 0]) for y in labels] == [0.0, 100.0]  # the order of label_names
    _, labels = next(iter(two_labels().as_tf_dataset(by_name=True)))
    assert {name: float(y[0, 0]) for name, y in labels.items()} == {"click": 0.0, "amount": 100.0}
    weighed = make(class_weight={0: 1.0, 1: 3.0}).as_tf_dataset(by_name=True)
    assert list(weighed.element_spec[1]) == ["y"]
    assert weighed.element_spec[2] == tf.TensorSpec((None,), tf.float32)
    assert len(make(label_names=None).as_tf_dataset(by_name=True).element_spec) == 1


def test_passes_of_a_tf_dataset_are_epochs() -> None:
    dataset_of, loader = loader_at(5).as_tf_dataset(), loader_at(5)
    assert [ids(dataset_of) for _ in range(3)] == [ids(loader) for _ in range(3)]


def test_a_pass_begins_while_keras_builds_what_will_take_it() -> None:
    """The first is there before it is asked for; the next ones, and others', are in order."""
    loader, passes = loader_at(5), loader_at(5)
    with recording(recorder := ListRecorder()):
        given = loader.get_tf_dataset()
        wait_until(lambda: any(span.name == "chunk" for span in recorder.spans))
    assert loader.num_rows_processed == 0
    assert [ids(given) for _ in range(2)] == [ids(passes) for _ in range(2)]
    assert loader.get_tf_dataset() is given  # made once, begun again
    assert ids(loader) == ids(passes)  # a loop takes the epoch that was begun for `fit`
    assert ids(given) == ids(passes)
    wait_until(lambda: not loader_threads())


def test_a_pass_begun_early_gives_way_to_what_is_said_after() -> None:
    state, expected = loader_at(5), loader_at(5)
    reached = ids([next(iter(state))])
    loader = loader_at(5)
    given = loader.get_tf_dataset()
    loader.load_state_dict(state.state_dict())
    assert reached + ids(given) == ids(expected)
    given = loader.get_tf_dataset()
    loader.set_epoch(7)
    expected.set_epoch(7)
    assert ids(given) == ids(expected)
    state.close()


def test_a_pass_begun_early_draws_one_seed() -> None:
    seeds = iter(range(10))
    loader = make(dataset(5), 1, shuffle=True, seed_fn=lambda: next(seeds))
    assert ids(loader.get_tf_dataset()) == ids(loader_at(0))
    assert next(seeds) == 1
    loader.close()


def test_what_is_begun_and_not_taken_ends_with_the_loader() -> None:
    loader = make(depth=1, buffer_size=16)  # three chunks, of which one is made
    loader.get_tf_dataset()
    assert loader_threads()
    loader.close()
    assert not loader_threads()
    loader.get_tf_dataset()
    gone = weakref.ref(loader)
    del loader
    assert gone() is None  # the dataset it made does not hold it
    wait_until(lambda: not loader_threads())


def loader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tabfeed-loader")]


def test_an_error_within_a_tf_dataset_is_told() -> None:
    loader = make(cat_names=None, feature_columns=[identity("C", 3)])
    with pytest.raises(tf.errors.OpError, match="column 'C' has the id 5"):
        list(loader.as_tf_dataset())


def test_one_trace_serves_all_batches() -> None:
    traces = []

    @keras.saving.register_keras_serializable(package="tests")
    class Count(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            traces.append(x.shape)
            return keras.ops.cast(x, "float32")

    inputs = {"C": keras.Input((1,), dtype="int32", name="C")}
    model = keras.Model(inputs, keras.layers.Dense(1)(Count()(inputs["C"])))
    model.compile("sgd", "mse")
    model.fit(make(shuffle=True), epochs=1, verbose=0)
    after_one = len(traces)
    model.fit(make(shuffle=True), epochs=3, verbose=0)
    assert len(traces) == after_one and (None, 1) in [tuple(t) for t in traces]


@pytest.mark.parametrize("form", ["ragged", "pair", "sparse", "dense"])
def test_a_model_learns_from_lists_in_every_form(form: str) -> None:
    options: dict[str, Any] = {"cat_names": ["T"], "batch_size": 5}
    if form in ("ragged", "pair"):
        options["lists"] = form
    else:
        options.update(sparse_names=["T"], sparse_max={"T": 4}, sparse_as_dense=form == "dense")
    entry: Any = keras.Input((None,), dtype="int64", name="T", ragged=form == "ragged")
    if form == "sparse":
        entry = keras.Input((4,), dtype="int64", name="T", sparse=True)
    if form == "pair":
        entry = tuple(keras.Input((1,), dtype=d, name=f"T{d}") for d in ("int64", "int32"))
    column = Embedding(Identity("T", 8), 1, "mean", initializer="zeros")
    # Only dense lists are filled with id 0; the data have no such id.
    layer = DenseFeatures([column], mask_zero=form == "dense")
    model = keras.Model({"T": entry}, layer({"T": entry}))
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.fit(make(**options), epochs=1, verbose=0)
    labels, table = [0, 1, 0, 1, 1], np.zeros(8)
    for ids_of_row, label in zip(LISTS, labels, strict=True):
        for i in ids_of_row:  # the gradient of the mean squared error at a table of zeros
            table[i] += 2 / 5 * label / len(ids_of_row)
    np.testing.assert_allclose(layer.weights[0].numpy()[:, 0], table, rtol=1e-6)


def test_waiting_leaves_the_interpreter_to_others() -> None:
    ticks: list[int] = []
    done = threading.Event()

    class Slow:
        """Takes until another thread has come to run ten times."""

        output_schema = dataset().schema

        def __call__(self, rows: Any) -> Any:
            enough = len(ticks) + 10
            wait_until(lambda: len(ticks) >= enough)
            return rows

    def tick() -> None:
        while not done.wait(0.01):
            ticks.append(1)

    other = threading.Thread(target=tick)
    other.start()
    try:
        list(make(transforms=Slow()).as_tf_dataset())
    finally:
        done.set()
        other.join()
    assert len(ticks) >= 10


# -- memory ---------------------------------------------------------------------------------------


def test_shared_batches_outlive_their_loader() -> None:
    source = Dataset({"C": np.arange(64 * 40), "y": np.zeros(64 * 40)}, npartitions=3)
    loader = make(source, 64, shuffle=True)
    kept = list(loader) + list(loader)
    del loader
    seen = np.sort(np.concatenate([x["C"].numpy()[:, 0] for x, _ in kept]))
    assert np.array_equal(seen, np.repeat(np.arange(64 * 40), 2))


def test_a_device_is_honoured() -> None:
    x, _ = make(device="cpu:0")[0]
    assert x["C"].device.endswith("CPU:0")


def test_without_a_gpu_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setenv("TF_MEMORY_ALLOCATION", "0.5")
    configure_tensorflow()


def test_without_tensorflow_the_extra_is_named() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; import tabfeed.loader.tensorflow"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "tabfeed[tensorflow]"' in run.stderr.splitlines()[-1]


DISTRIBUTED = """
import tensorflow as tf
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, numpy as np
from tabfeed import Dataset
from tabfeed.loader.tensorflow import KerasSequenceLoader
data = Dataset({"C": np.arange(100) % 7, "y": np.ones(100)}, npartitions=3)
loader = KerasSequenceLoader(data, 16, label_names=["y"], cat_names=["C"])
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    inputs = {"C": keras.Input((1,), dtype="int32", name="C")}
    x = keras.layers.Flatten()(keras.layers.Embedding(7, 2)(inputs["C"]))
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
rows = 0
for x, y in strategy.experimental_distribute_dataset(loader.as_tf_dataset()):
    parts = strategy.experimental_local_results(y)
    assert len(parts) == 2
    rows += sum(len(p) for p in parts)
assert rows == 100, rows
history = model.fit(loader, epochs=2, verbose=0).history
assert history["loss"][1] < history["loss"][0]
model.fit(loader.as_tf_dataset(), epochs=1, verbose=0, shuffle=False)
print("distributed")
"""


def test_distributes() -> None:
    run = subprocess.run([sys.executable, "-c", DISTRIBUTED], capture_output=True, text=True)
    assert "distributed" in run.stdout, run.stderr[-3000:]


@pytest.mark.parametrize("given", [1, 2])
def test_a_state_of_tf_data_is_at_the_next_batch(given):
    expected = [batch[0]["C"].numpy().tolist() for batch in make(batch_size=2)]
    first = make(batch_size=2)
    for _ in zip(range(given), first.as_tf_dataset(), strict=False):
        pass
    again = make(batch_size=2)
    stale = again.as_tf_dataset()
    again.load_state_dict(first.state_dict())
    with pytest.raises(tf.errors.OpError, match=r"call as_tf_dataset\(\) again"):
        list(stale)
    dataset = again.as_tf_dataset()
    assert [batch[0]["C"].numpy().tolist() for batch in dataset] == expected[given:]
    assert len(list(dataset)) == len(expected)  # the next epoch is a whole one
