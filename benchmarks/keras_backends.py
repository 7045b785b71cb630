"""How close ``model.fit`` comes to its ceiling on Keras's torch or JAX backend, on a GPU or CPU.

The ceiling is the same model over as many steps, with different batches that lie on the device
already: as many as fit in 8 GB. Loader and ceiling go through ``model.fit`` in the same way, with
batches of the same form, by turns; what Keras itself takes for a step counts for both. A turn of
each comes first and is not counted: JAX compiles then. Rates are from the first batch on, and what
that took is told apart. Where there is a GPU and its driver can be asked, so is how busy it was.

The model is that of `keras_fit.py`, which looks at TensorFlow and what else can feed it. Needs
Keras, its backend, pyarrow and NumPy; one backend a process. Prints JSON.

    KERAS_BACKEND=jax python benchmarks/keras_backends.py --rows 8000000 --json OUT
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

import tabfeed
from benchmarks.harness.about import code_digest, versions
from benchmarks.harness.busy import Busy
from benchmarks.harness.data import CARDINALITIES, CATS, CONTS, Spec, make
from benchmarks.harness.gpu_about import gpu_about
from benchmarks.harness.medians import medians
from tabfeed import Dataset
from tabfeed.framework_utils.tensorflow.layers import DenseFeatures
from tabfeed.loader.keras import KerasSequenceLoader
from tabfeed.loader.keras.columns import Embedding, Identity

ROW_BYTES = 4 * (len(CATS) + len(CONTS) + 1)
PACKAGES = ("keras", "torch", "jax", "jaxlib", "numpy", "pyarrow")


class Turn(DataAdapter):  # type: ignore[misc,unused-ignore]
    """Batches as Keras takes them from a loader, and when the first one came.

    Parameters
    ----------
    begin
        Begins a pass.
    steps, batch_size
        Batches in a pass, and rows in each.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]], steps: int, batch_size: int) -> None:
        self.begin, self.steps, self.rows = begin, steps, batch_size
        self.asked = self.first = 0.0

    def _batches(self) -> Iterator[Any]:
        self.asked = time.perf_counter()
        batches = iter(self.begin())
        batch = next(batches)
        self.first = time.perf_counter()
        yield batch
        yield from batches

    def get_numpy_iterator(self) -> Iterator[Any]:
        """What a backend takes that has no way of its own."""
        return self._batches()

    get_jax_iterator = get_torch_dataloader = get_numpy_iterator
    num_batches = property(lambda self: self.steps)
    batch_size = property(lambda self: self.rows)
    has_partial_batch = property(lambda self: False)
    partial_batch_size = property(lambda self: None)


def pass_of(loader: KerasSequenceLoader) -> Callable[[], Iterator[Any]]:
    """What begins a pass of a loader within ``fit``."""
    on_jax = keras.backend.backend() == "jax"
    begin: Any = loader.get_jax_iterator if on_jax else loader.get_torch_dataloader
    return begin  # type: ignore[no-any-return]


def keep_batches(loader: KerasSequenceLoader, nbytes: float) -> list[Any]:
    """As many batches as fit in so many bytes, on the device, in memory of their own."""
    most = max(1, int(nbytes // (loader.batch_size * ROW_BYTES)))
    taken = itertools.islice(loader, most)
    kept = [keras.tree.map_structure(keras.ops.copy, batch) for batch in taken]
    loader.close()
    return kept


def make_model(most_ids: int) -> keras.Model:
    """26 embeddings of 16, three dense layers of 128, SGD; ids from `most_ids` on count as 0."""
    inputs = {n: keras.Input((1,), dtype="int32", name=n) for n in CATS}
    inputs |= {n: keras.Input((1,), name=n) for n in CONTS}
    fill = keras.initializers.Constant(0.01)
    sizes = {n: min(most_ids, size) for n, size in zip(CATS, CARDINALITIES, strict=True)}
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
        drop_last=True,
        threads=args.threads,
    )


def fit(model: keras.Model, turn: Turn) -> dict[str, Any]:
    """An epoch: million rows a second from the first batch on, seconds to it, percent busy."""
    with Busy() as busy:
        model.fit(turn, verbose=0)  # it ends with the figures of the epoch, which wait for the GPU
        end = time.perf_counter()
    rate = turn.steps * turn.rows / (end - turn.first) / 1e6
    return {"rate": rate, "first": turn.first - turn.asked, "busy": busy.percent}


def drain(loader: KerasSequenceLoader) -> float:
    """Million rows a second without a model."""
    start = time.perf_counter()
    for _, y in loader:
        last = y
    keras.ops.convert_to_numpy(last)
    return len(loader) * loader.batch_size / (time.perf_counter() - start) / 1e6


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Ceiling and loader by turns."""
    loader = make_loader(folder, args)
    kept = keep_batches(make_loader(folder, args), args.ceiling_gb * 1e9)
    steps = len(loader)
    turns = {
        "ceiling": Turn(lambda: itertools.islice(itertools.cycle(kept), steps), steps, args.batch),
        "KerasSequenceLoader": Turn(pass_of(loader), steps, args.batch),
    }
    model = make_model(args.most_ids)
    first = {name: fit(model, turn)["first"] for name, turn in turns.items()}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in turns}
    for _, (name, turn) in itertools.product(range(args.rounds), turns.items()):
        runs[name].append(fit(model, turn))
    pairs = zip(runs["KerasSequenceLoader"], runs["ceiling"], strict=True)
    shares = [ours["rate"] / best["rate"] for ours, best in pairs]
    return {
        "device": str(keras.ops.convert_to_tensor(0.0).device),
        "batches of the ceiling": len(kept),
        "steps": steps,
        "share of the ceiling": statistics.median(shares),
        "shares, round by round": shares,
        "very first batch, seconds": first["KerasSequenceLoader"],
        **{name: medians(found) for name, found in runs.items()},
        "loader alone, million rows a second": drain(loader),
        "reader": loader.reader_choice,
    }


def surroundings(args: argparse.Namespace) -> dict[str, Any]:
    """What it ran on, and how."""
    return {
        "date": date.today().isoformat(),
        **gpu_about(),
        "backend": keras.backend.backend(),
        "rows": args.rows,
        "batch": args.batch,
        "rows of a table": args.most_ids,
        "rounds": args.rounds,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "packages": {"tabfeed": tabfeed.__version__, **versions(PACKAGES)},
        "code": code_digest(),
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run, print, and give what was printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2**20)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--ceiling-gb", type=float, default=8.0)
    parser.add_argument(
        "--most-ids",
        type=int,
        default=100_000,
        help="rows of a table: gradients are dense here, and large tables all there is to see",
    )
    parser.add_argument("--data", type=Path, help="where files are kept; nowhere by default")
    parser.add_argument("--json", type=Path, help="where to write the result as well")
    args = parser.parse_args(arguments)
    result = surroundings(args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = make(Spec(args.rows), args.data or Path(temporary))
        result |= measure(folder, args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return result


if __name__ == "__main__":
    main()
