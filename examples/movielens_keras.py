"""Film ratings with Keras: ids, and a list of genres for each film ("multi-hot").

Ratings name a user and a film; what genres the film has is joined from another table. The loader
finds by itself that ``genres`` holds lists, and gives them to the model as ragged tensors; an
embedding with a combiner makes one vector of each. The model and the workflow are saved side by
side, loaded again, and rate films from raw rows.

    python examples/movielens_keras.py
    python examples/movielens_keras.py --rows 2_000_000 --batch-size 16384
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import tabfeed
from tabfeed import Dataset, datagen, ops
from tabfeed.framework_utils.tensorflow import layers
from tabfeed.loader.keras_columns import Embedding, Identity
from tabfeed.loader.tensorflow import KerasSequenceLoader

IDS = ["userId", "movieId"]
LISTS = ["genres"]
LABEL = "rating"


def make_features(folder: Path, rows: int) -> None:
    """Write raw ratings, join the genres, turn names into ids; learned from the training part."""
    train = datagen.movielens(folder / "raw" / "train", rows, seed=0)
    valid = datagen.movielens(folder / "raw" / "valid", max(1, rows // 10), seed=1)
    genres = ops.JoinExternal(train.movies, on="movieId", columns_ext=["movieId", *LISTS])
    cats = IDS >> genres >> ops.Categorify()
    workflow = tabfeed.Workflow(cats + tabfeed.ColumnSelector([LABEL]))
    workflow.fit(train.ratings)
    workflow.transform(train.ratings).to_parquet(folder / "train")
    workflow.transform(valid.ratings).to_parquet(folder / "valid")
    workflow.save(folder / "workflow")


def make_loader(
    data: Dataset, batch_size: int, *, shuffle: bool, labels: tuple[str, ...] = (LABEL,)
) -> KerasSequenceLoader:
    """Batches of ``({"userId": (N, 1), "movieId": (N, 1), "genres": ragged}, rating)``."""
    return KerasSequenceLoader(
        data, batch_size, label_names=labels, cat_names=[*IDS, *LISTS], shuffle=shuffle
    )


def make_model(workflow: tabfeed.Workflow) -> keras.Model:
    """A vector for each user, film and set of genres; their products, then two dense layers."""
    single, several = ops.get_embedding_sizes(workflow)
    inputs = {n: keras.Input((1,), dtype="int64", name=n) for n in IDS}
    inputs |= {n: keras.Input((None,), dtype="int64", name=n, ragged=True) for n in LISTS}
    columns = [Embedding(Identity(n, single[n][0]), 16) for n in IDS]
    columns += [Embedding(Identity(n, several[n][0]), 16, combiner="mean") for n in LISTS]
    vectors = layers.DenseFeatures(columns, aggregation="stack")(inputs)
    products = layers.DotProductInteraction()(vectors)
    x = keras.layers.Concatenate()([keras.layers.Flatten()(vectors), products])
    x = keras.layers.Dense(64, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, bias_initializer="ones")(x))
    error = keras.metrics.RootMeanSquaredError(name="rmse")
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=[error])
    return model


def rate(folder: Path, rows: int = 3) -> None:
    """What a server does: load both, and rate films from raw rows."""
    workflow = tabfeed.Workflow.load(folder / "workflow").remove_inputs([LABEL])
    model = keras.saving.load_model(folder / "model.keras")
    raw = Dataset(folder / "raw" / "valid" / "ratings").head(rows)
    features = workflow.transform(raw.drop(LABEL))
    found = model.predict(make_loader(features, rows, shuffle=False, labels=()), verbose=0)
    given = raw.to_arrow().column(LABEL).to_numpy()
    for guess, stars in zip(found[:, 0], given, strict=True):
        print(f"expected {guess:.2f} stars, were {stars}")


def main() -> None:
    """Run every step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=1_024)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("demo_data/movielens_keras"))
    args = parser.parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    make_features(args.folder, args.rows)
    train = make_loader(Dataset(args.folder / "train"), args.batch_size, shuffle=True)
    valid = make_loader(Dataset(args.folder / "valid"), args.batch_size, shuffle=False)
    model = make_model(tabfeed.Workflow.load(args.folder / "workflow"))
    history = model.fit(train, validation_data=valid, epochs=args.epochs, verbose=2).history
    model.save(args.folder / "model.keras")
    rate(args.folder)
    ratings = Dataset(args.folder / "valid").select([LABEL]).to_arrow().column(LABEL).to_numpy()
    print(f"RMSE {history['val_rmse'][-1]:.3f}; of always the mean {np.std(ratings):.3f}.")
    print(f"Workflow and model are in {args.folder.resolve()}.")


if __name__ == "__main__":
    main()
