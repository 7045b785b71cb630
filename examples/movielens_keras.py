# %% [markdown]
"""Film ratings with Keras: ids, and a list of genres for each film ("multi-hot").

Ratings name a user and a film; what genres the film has is joined from another table. The loader
finds by itself that ``genres`` holds lists, and gives them to the model as ragged tensors; an
embedding with a combiner makes one vector of each. The model and the workflow are saved side by
side, loaded again, and rate films from raw rows.

    python examples/movielens_keras.py
    python examples/movielens_keras.py --data ml-25m --batch-size 16384
"""

# %%
from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from movielens_data import IDS, LABEL, LISTS, open_films, options, prepare
from showing import arguments, fresh, on_screen

import tabfeed
from tabfeed import Dataset, ops
from tabfeed.framework_utils.tensorflow import layers
from tabfeed.loader.keras.columns import Embedding, Identity
from tabfeed.loader.tensorflow import KerasSequenceLoader


# %%
def make_loader(
    data: Dataset, batch_size: int, *, shuffle: bool, labels: tuple[str, ...] = (LABEL,)
) -> KerasSequenceLoader:
    """Batches of ``({"userId": (N, 1), "movieId": (N, 1), "genres": ragged}, rating)``."""
    return KerasSequenceLoader(
        data, batch_size, label_names=labels, cat_names=[*IDS, *LISTS], shuffle=shuffle
    )


# %%
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


# %%
def rate(folder: Path, valid: Dataset, rows: int = 3) -> None:
    """What a server does: load both, and rate films from raw rows."""
    workflow = tabfeed.Workflow.load(folder / "workflow").remove_inputs([LABEL])
    model = keras.saving.load_model(folder / "model.keras")
    raw = valid.head(rows)
    features = workflow.transform(raw.drop(LABEL))
    found = model.predict(make_loader(features, rows, shuffle=False, labels=()), verbose=0)
    given = raw.to_arrow().column(LABEL).to_numpy()
    for guess, stars in zip(found[:, 0], given, strict=True):
        print(f"expected {guess:.2f} stars, were {stars}")


# %%
def main() -> None:
    """Run every step."""
    args = arguments(options(__doc__.splitlines()[0], "movielens_keras", rows=200_000))
    fresh(args.folder)
    films = open_films(args)
    prepare(films, args.folder)
    train = make_loader(Dataset(args.folder / "train"), args.batch_size, shuffle=True)
    valid = make_loader(Dataset(args.folder / "valid"), args.batch_size, shuffle=False)
    model = make_model(tabfeed.Workflow.load(args.folder / "workflow"))
    history = model.fit(
        train, validation_data=valid, epochs=args.epochs, verbose=1 if on_screen() else 2
    ).history
    model.save(args.folder / "model.keras")
    rate(args.folder, films.valid)
    ratings = Dataset(args.folder / "valid").select([LABEL]).to_arrow().column(LABEL).to_numpy()
    print(f"RMSE {history['val_rmse'][-1]:.3f}; of always the mean {np.std(ratings):.3f}.")
    print(f"Workflow and model are in {args.folder.resolve()}.")


# %%
if __name__ == "__main__":
    main()
