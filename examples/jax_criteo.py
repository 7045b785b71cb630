# %% [markdown]
"""Click logs in JAX: a small network written out by hand, on one device or on several.

The loader's batches are JAX arrays. With several devices they are spread over them by rows, and the
compiled step runs on all: `jax.jit` sees how its arguments lie.

    python examples/jax_criteo.py
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/jax_criteo.py
    python examples/jax_criteo.py --data criteo/raw --batch-size 65536 --folder features
"""

# %%
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, auc, options, prepare, tell_speed
from showing import arguments, with_bar

from tabfeed import Dataset
from tabfeed.loader.jax import Loader

Weights = dict[str, Any]
Inputs = dict[str, jax.Array]
Forward = Callable[[Weights, Inputs], jax.Array]
Step = Callable[[Weights, Weights, Inputs, jax.Array], tuple[Weights, Weights, jax.Array]]
WIDTH, RATE = 16, 3e-3


# %%
def make_weights(sizes: list[tuple[int, int]], seed: int = 0) -> Weights:
    """One table for the embeddings of all categories, one below the other, then dense layers."""
    random = np.random.default_rng(seed)
    rows = [count for count, _ in sizes]
    table = random.normal(0, 0.05, (sum(rows), WIDTH))
    layers, width = [], WIDTH * len(rows) + len(CONTINUOUS)
    for wide in (128, 64, 1):
        layers.append((random.normal(0, np.sqrt(2 / width), (width, wide)), np.zeros(wide)))
        width = wide
    weights: Weights = jax.tree.map(jnp.float32, {"table": table, "layers": layers})
    return weights


def make_forward(sizes: list[tuple[int, int]]) -> Forward:
    """The model: the log-odds of a click."""
    first = np.cumsum([0, *(count for count, _ in sizes[:-1])])  # of each category, in the table

    @jax.jit
    def forward(weights: Weights, inputs: Inputs) -> jax.Array:
        ids = jnp.stack([inputs[name] for name in sorted(CATEGORICAL)], axis=1) + first
        numbers = jnp.stack([inputs[name] for name in CONTINUOUS], axis=1)
        x = jnp.concatenate([weights["table"][ids].reshape(len(ids), -1), numbers], axis=1)
        *hidden, (last, bias) = weights["layers"]
        for matrix, shift in hidden:
            x = jax.nn.relu(x @ matrix + shift)
        return (x @ last + bias)[:, 0]

    return forward


# %%
def make_step(forward: Forward) -> Step:
    """One step of RMSprop: the new weights, the new mean squares, the loss."""

    def loss_of(weights: Weights, inputs: Inputs, y: jax.Array) -> jax.Array:
        score = forward(weights, inputs)
        return jnp.mean(jnp.logaddexp(0, score) - y * score)

    @jax.jit
    def step(
        weights: Weights, squares: Weights, inputs: Inputs, y: jax.Array
    ) -> tuple[Weights, Weights, jax.Array]:
        loss, slope = jax.value_and_grad(loss_of)(weights, inputs, y)
        squares = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, squares, slope)
        moved = jax.tree.map(
            lambda w, g, s: w - RATE * g / (jnp.sqrt(s) + 1e-4), weights, slope, squares
        )
        return moved, squares, loss

    return step


# %%
def rows_over_devices() -> jax.sharding.NamedSharding | None:
    """How batches lie over several devices; None for one."""
    if len(jax.devices()) == 1:
        return None
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))


def evaluate(forward: Forward, weights: Weights, data: Dataset, batch_size: int) -> float:
    """The AUC on rows that the model has not seen."""
    scored = [
        (np.asarray(forward(weights, inputs)), np.asarray(y))
        for inputs, y in Loader(data, batch_size, targets=[LABEL])
    ]
    return auc(np.concatenate([s for s, _ in scored]), np.concatenate([y for _, y in scored]))


# %%
def main() -> None:
    """Make features, train, and say what came of it."""
    args = arguments(options(__doc__.splitlines()[0], "jax_criteo"))
    clicks = prepare(args)
    sharding = rows_over_devices()
    # Batches of one size, so that the step is compiled once.
    loader = Loader(
        clicks.train, args.batch_size, shuffle=True, targets=[LABEL], last="wrap", sharding=sharding
    )
    forward, weights = make_forward(clicks.sizes), make_weights(clicks.sizes)
    step = make_step(forward)
    squares = jax.tree.map(jnp.zeros_like, weights)
    print(f"{len(loader)} batches of {args.batch_size} rows, on {len(jax.devices())} device(s)")
    seconds = 0.0
    for epoch in range(args.epochs):
        start, losses = time.perf_counter(), []
        for inputs, y in with_bar(loader, f"epoch {epoch}"):
            weights, squares, loss = step(weights, squares, inputs, y)
            losses.append(loss)
        mean = float(jnp.stack(losses[-max(1, len(losses) // 10) :]).mean())
        seconds += time.perf_counter() - start
        area = evaluate(forward, weights, clicks.valid, 4 * args.batch_size)
        print(f"epoch {epoch}: loss {mean:.4f}, AUC {area:.4f}")
    tell_speed(seconds, loader.num_rows_processed, args.epochs)


# %%
if __name__ == "__main__":
    main()
