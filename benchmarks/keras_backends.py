"""How close ``model.fit`` comes to batches that lie on the device already; any Keras backend.

The model is that of `keras_fit.py`, which looks at TensorFlow and what else can feed it. Here the
loader and frozen batches run in turn, on torch or JAX, on a GPU where there is one. An epoch of
each comes first and is not counted: JAX compiles the step once for each shape of batch, the short
last one included, unless ``--drop-last``. Prints JSON.

    KERAS_BACKEND=jax python benchmarks/keras_backends.py --rows 8000000 --drop-last
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras

from tabfeed import Dataset, datagen
from tabfeed.budget import cpu_count
from tabfeed.datagen.criteo_shaped import CARDINALITIES
from tabfeed.framework_utils.tensorflow.layers import DenseFeatures
from tabfeed.loader.keras import KerasSequenceLoader
from tabfeed.loader.keras.adapter import KerasFeed
from tabfeed.loader.keras_columns import Embedding, Identity

CATS = [f"C{i}" for i in range(1, 27)]
CONTS = [f"I{i}" for i in range(1, 14)]


class Frozen(KerasFeed):
    """Eight batches of a loader, over and over, as many as it has in an epoch."""

    def __init__(self, loader: KerasSequenceLoader) -> None:
        super().__init__(loader.feed, loader._raw)
        full = (batch for batch in loader if len(batch[1]) == loader.batch_size)
        self.batches = list(itertools.islice(full, 8))
        loader.close()

    def _lazily(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(self.batches), len(self))


def make_model(most_ids: int) -> keras.Model:
    """26 embeddings of 16, three dense layers of 128, SGD; ids from `most_ids` on count as 0."""
    inputs = {n: keras.Input((1,), dtype="int32", name=n) for n in CATS}
    inputs |= {n: keras.Input((1,), name=n) for n in CONTS}
    fill = keras.initializers.Constant(0.01)
    sizes = {n: min(most_ids, CARDINALITIES[n]) for n in CATS}
    columns = [Embedding(Identity(n, sizes[n], 0), 16, initializer=fill) for n in CATS]
    x = DenseFeatures(columns)(inputs)
    for _ in range(3):
        x = keras.layers.Dense(128, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile("sgd", "binary_crossentropy")
    return model


def make_loader(folder: Path, args: argparse.Namespace) -> KerasSequenceLoader:
    """Ours."""
    return KerasSequenceLoader(
        Dataset(folder),
        args.batch,
        label_names=["label"],
        cat_names=CATS,
        cont_names=CONTS,
        drop_last=args.drop_last,
        threads=args.threads,
    )


def rate(work: Callable[[], Any], rows: int) -> float:
    """Rows a second."""
    start = time.perf_counter()
    work()
    return rows / (time.perf_counter() - start)


def drain(loader: Any) -> None:
    """Take every batch, and wait for the last to be there."""
    for _, y in loader:
        last = y
    keras.ops.convert_to_numpy(last)


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Rates, round by round."""
    loader, frozen = make_loader(folder, args), Frozen(make_loader(folder, args))
    model = make_model(args.most_ids)
    rows = len(loader) * args.batch if args.drop_last else args.rows
    work: dict[str, Callable[[], Any]] = {
        "fit, frozen batches": lambda: model.fit(frozen, verbose=0),
        "fit, KerasSequenceLoader": lambda: model.fit(loader, verbose=0),
        "KerasSequenceLoader alone": lambda: drain(loader),
    }
    rates: dict[str, list[float]] = {name: [] for name in work}
    for number in range(-1, args.rounds):
        for name, function in work.items():
            counted = len(frozen) * args.batch if "frozen" in name else rows
            found = rate(function, counted)
            if number >= 0:
                rates[name].append(found)
    pairs = zip(rates["fit, KerasSequenceLoader"], rates["fit, frozen batches"], strict=True)
    return {
        "device": str(keras.ops.convert_to_tensor(0.0).device),
        "rows a second": {n: round(statistics.median(r)) for n, r in rates.items()},
        "fit over frozen, round by round": [round(ours / still, 3) for ours, still in pairs],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2**20)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--most-ids",
        type=int,
        default=100_000,
        help="rows of a table: gradients are dense here, and large tables all there is to see",
    )
    parser.add_argument("--drop-last", action="store_true")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "backend": keras.backend.backend(),
        "rows": args.rows,
        "cores": cpu_count(),
        "load": os.getloadavg(),
    }
    with tempfile.TemporaryDirectory() as temporary:
        datagen.criteo(Path(temporary) / "rows", args.rows)
        result |= measure(Path(temporary) / "rows", args)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
