"""Click logs in JAX: a small network written out by hand, on one device or on several.

The loader's batches are JAX arrays. With several devices they are spread over them by rows, and the
compiled step runs on all: `jax.jit` sees how its arguments lie.

    python examples/jax_criteo.py
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/jax_criteo.py
    python examples/jax_criteo.py --data criteo/raw --batch-size 65536 --folder features
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, auc, options, prepare, tell_speed

from tabfeed import Dataset
from tabfeed.loader.jax import Loader

Weights = dict[str, Any]
WIDTHS = (128, 64, 1)


def make_weights(sizes: list[tuple[int, int]], seed: int = 0) -> Weights:
    """A table of embeddings for each category, then dense layers."""
    random = np.random.default_rng(seed)
    tables = [random.normal(0, 0.05, size).astype(np.float32) for size in sizes]
    layers, width = [], sum(d for _, d in sizes) + len(CONTINUOUS)
    for wide in WIDTHS:
        scale = np.sqrt(2 / width)
        layers.append((random.normal(0, scale, (width, wide)).astype(np.float32), np.zeros(wide)))
        width = wide
    weights: Weights = jax.tree.map(jnp.asarray, {"tables": tables, "layers": layers})
    return weights


@jax.jit
def forward(weights: Weights, inputs: dict[str, jax.Array]) -> jax.Array:
    """The log-odds of a click."""
    names = sorted(CATEGORICAL)
    looked_up = [t[inputs[n]] for n, t in zip(names, weights["tables"], strict=True)]
    numbers = jnp.stack([inputs[n] for n in CONTINUOUS], axis=1)
    x = jnp.concatenate([*looked_up, numbers], axis=1)
    *hidden, (last, bias) = weights["layers"]
    for matrix, shift in hidden:
        x = jax.nn.relu(x @ matrix + shift)
    return (x @ last + bias)[:, 0]


def loss_of(weights: Weights, inputs: dict[str, jax.Array], y: jax.Array) -> jax.Array:
    """How surprised the model is by the clicks."""
    score = forward(weights, inputs)
    return jnp.mean(jnp.logaddexp(0, score) - y * score)


@jax.jit
def step(
    weights: Weights, squares: Weights, inputs: dict[str, jax.Array], y: jax.Array
) -> tuple[Weights, Weights, jax.Array]:
    """One step of RMSprop."""
    loss, slope = jax.value_and_grad(loss_of)(weights, inputs, y)
    squares = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, squares, slope)
    rate = 3e-3
    weights = jax.tree.map(
        lambda w, g, s: w - rate * g / (jnp.sqrt(s) + 1e-4), weights, slope, squares
    )
    return weights, squares, loss


def rows_over_devices() -> jax.sharding.NamedSharding | None:
    """How batches lie over several devices; None for one."""
    if len(jax.devices()) == 1:
        return None
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))


def evaluate(weights: Weights, data: Dataset, batch_size: int) -> float:
    """The AUC on rows that the model has not seen."""
    scored = [
        (np.asarray(forward(weights, inputs)), np.asarray(y))
        for inputs, y in Loader(data, batch_size, targets=[LABEL])
    ]
    return auc(np.concatenate([s for s, _ in scored]), np.concatenate([y for _, y in scored]))


def main() -> None:
    """Make features, train, and say what came of it."""
    args = options(__doc__.splitlines()[0], "jax_criteo").parse_args()
    clicks = prepare(args)
    sharding = rows_over_devices()
    # Batches of one size, so that the step is compiled once.
    loader = Loader(
        clicks.train, args.batch_size, shuffle=True, targets=[LABEL], last="wrap", sharding=sharding
    )
    weights = make_weights(clicks.sizes)
    squares = jax.tree.map(jnp.zeros_like, weights)
    print(f"{len(loader)} batches of {args.batch_size} rows, on {len(jax.devices())} device(s)")
    seconds = 0.0
    for epoch in range(args.epochs):
        start, losses = time.perf_counter(), []
        for inputs, y in loader:
            weights, squares, loss = step(weights, squares, inputs, y)
            losses.append(loss)
        mean = float(jnp.stack(losses[-max(1, len(losses) // 10) :]).mean())
        seconds += time.perf_counter() - start
        area = evaluate(weights, clicks.valid, 4 * args.batch_size)
        print(f"epoch {epoch}: loss {mean:.4f}, AUC {area:.4f}")
    tell_speed(seconds, loader.num_rows_processed, args.epochs)


if __name__ == "__main__":
    main()
