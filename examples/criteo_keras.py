# %% [markdown]
"""Click logs, end to end: raw files to features, features to a trained Keras model, both saved.

Hex strings and counts with gaps become ids and numbers (`make_features`); a loader gives them to
``model.fit`` in shuffled batches, read ahead in the background (`train`); at the end workflow and
model, saved side by side, score raw rows as a server would (`serve`). After training it prints how
long that took and how many rows a second went through the model (``dl_thru``). Where Graphviz and
pydot are installed, ``model.png`` shows the model.

    python examples/criteo_keras.py
    python examples/criteo_keras.py --data criteo/raw --batch-size 65536 --folder features
"""

# %%
from __future__ import annotations

import os
import shutil
import time
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow: say errors alone

import tensorflow as tf
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, options, raw_parts
from showing import arguments, fresh, on_screen

import tabfeed
from tabfeed import Dataset, ops
from tabfeed.framework_utils.tensorflow import layers
from tabfeed.loader.keras.columns import Embedding, Identity, Numeric
from tabfeed.loader.tensorflow import KerasSequenceLoader, KerasSequenceValidater


# %%
def make_features(folder: Path, train: Dataset, valid: Dataset) -> tabfeed.Workflow:
    """Learn a workflow from raw logs to train on, and apply it to both parts."""
    cats = CATEGORICAL >> ops.Categorify(max_size=100_000)
    conts = CONTINUOUS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp()
    conts = conts >> ops.Normalize(out_dtype="float32")
    workflow = tabfeed.Workflow(cats + conts + [LABEL])
    workflow.fit(train)
    workflow.transform(train).to_parquet(folder / "train")
    workflow.transform(valid).to_parquet(folder / "valid")
    workflow.save(folder / "workflow")
    return workflow


def make_loader(folder: Path, batch_size: int, *, shuffle: bool) -> KerasSequenceLoader:
    """Batches of one part of the features."""
    return KerasSequenceLoader(
        Dataset(folder),
        batch_size=batch_size,
        label_names=[LABEL],
        cat_names=CATEGORICAL,
        cont_names=CONTINUOUS,
        shuffle=shuffle,
    )


# %%
def make_model(workflow: tabfeed.Workflow) -> tf.keras.Model:
    """An embedding for each category, the numbers beside them, three dense layers.

    Columns may be those of `tf.feature_column` as well.
    """
    sizes = ops.get_embedding_sizes(workflow)
    assert isinstance(sizes, dict)  # a pair only where there are lists
    inputs = {n: tf.keras.Input(name=n, dtype=tf.int32, shape=(1,)) for n in CATEGORICAL}
    inputs |= {n: tf.keras.Input(name=n, dtype=tf.float32, shape=(1,)) for n in CONTINUOUS}
    columns = [Embedding(Identity(n, sizes[n][0]), min(16, sizes[n][1])) for n in CATEGORICAL]
    x = layers.DenseFeatures([*columns, *(Numeric(n) for n in CONTINUOUS)])(inputs)
    for _ in range(3):
        x = tf.keras.layers.Dense(128, activation="relu")(x)
    output = tf.keras.layers.Dense(1, activation="sigmoid", name="output")(x)
    model = tf.keras.Model(inputs=inputs, outputs=output)
    model.compile(tf.keras.optimizers.SGD(0.05), "binary_crossentropy", metrics=["auc"])
    return model


def draw(model: tf.keras.Model, path: Path) -> None:
    """A picture of the model, where Graphviz is installed."""
    if find_spec("pydot") is None or shutil.which("dot") is None:
        print("No picture of the model: that needs pydot and Graphviz.")
        return
    tf.keras.utils.plot_model(
        model, to_file=str(path), rankdir="LR", show_layer_names=True, show_shapes=True, dpi=60
    )
    print(f"The model is drawn in {path}.")


# %%
def train(
    model: tf.keras.Model, folder: Path, batch_size: int, epochs: int
) -> dict[str, list[float]]:
    """Train, validate after each epoch, and say how fast it went."""
    train_data = make_loader(folder / "train", batch_size, shuffle=True)
    valid_data = make_loader(folder / "valid", batch_size, shuffle=False)
    validation = KerasSequenceValidater(valid_data)
    start = time.time()
    history = model.fit(
        train_data, callbacks=[validation], epochs=epochs, verbose=1 if on_screen() else 2
    )
    seconds = time.time() - start
    rows = (train_data.num_rows_processed + valid_data.num_rows_processed) * epochs
    speed = f"epochs: {epochs} - dl_thru: {rows / seconds:.0f}"
    print(f"run_time: {seconds:.2f}  - rows:  {rows} - {speed}")
    found: dict[str, list[float]] = history.history
    return found


# %%
def serve(folder: Path, valid: Dataset) -> None:
    """What a server does: load workflow and model, and score raw rows."""
    workflow = tabfeed.Workflow.load(folder / "workflow").remove_inputs([LABEL])
    model = tf.saved_model.load(folder / "model.savedmodel")
    raw = valid.head(3).drop(LABEL)
    features = workflow.transform(raw)
    batch = {n: tf.constant(features[n].to_numpy()[:, None], tf.int32) for n in CATEGORICAL}
    batch |= {n: tf.constant(features[n].to_numpy()[:, None], tf.float32) for n in CONTINUOUS}
    print("Clicks expected of three raw rows:", model.serve(batch).numpy()[:, 0].round(3).tolist())


# %%
def main() -> None:
    """Run every step."""
    parser = options(__doc__.splitlines()[0], "criteo_keras")
    parser.set_defaults(rows=50_000)
    args = arguments(parser)
    fresh(args.folder)
    raw_train, raw_valid = raw_parts(args)
    workflow = make_features(args.folder, raw_train, raw_valid)
    model = make_model(workflow)
    draw(model, args.folder / "model.png")
    history = train(model, args.folder, args.batch_size, args.epochs)
    model.save(args.folder / "model.keras")
    model.save(args.folder / "model.savedmodel")
    serve(args.folder, raw_valid)
    first, last = history["loss"][0], history["loss"][-1]
    if args.epochs > 1:
        fell = "fell" if last < first else "did not fall"
        print(f"The loss {fell}: from {first:.4f} to {last:.4f}.")
    print(f"Workflow and model are in {args.folder.resolve()}.")


# %%
if __name__ == "__main__":
    main()
