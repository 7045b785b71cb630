"""JAX on several processes: each gives its rows, the arrays are those of all together.

    job="examples/jax_processes.py --data $(python examples/small_clicks.py)"
    export JAX_PLATFORMS=cpu  # on one machine; two processes cannot share a GPU
    python $job --address localhost:9876 --processes 2 --number 0 &
    python $job --address localhost:9876 --processes 2 --number 1

On a TPU pod or under SLURM ``jax.distributed.initialize()`` finds the three numbers itself. The
loader asks JAX which process this is. Batches must divide evenly over the devices, so the last
one is filled up: ``last="wrap"``.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from small_clicks import ITEMS, options, tell

from tabfeed import Dataset
from tabfeed.loader.jax import Loader


def loss_of(weights: dict[str, Any], x: dict[str, Any], click: Any) -> Any:
    """Binary cross entropy of a line over an item's weight and the price."""
    logit = weights["item"][x["item"]] + weights["price"] * x["price"]
    return jnp.mean(jnp.logaddexp(0.0, logit) - click * logit)


@jax.jit
def step(weights: dict[str, Any], x: dict[str, Any], click: Any) -> tuple[dict[str, Any], Any]:
    """One step of gradient descent."""
    loss, slopes = jax.value_and_grad(loss_of)(weights, x, click)
    return jax.tree.map(lambda w, s: w - 5.0 * s, weights, slopes), loss


def main() -> None:
    """Train."""
    parser = options("JAX on several processes")
    parser.add_argument("--address", required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--number", type=int, required=True)
    given = parser.parse_args()
    jax.distributed.initialize(given.address, given.processes, given.number)
    mesh = Mesh(jax.devices(), ("rows",))
    loader = Loader(
        Dataset(given.data),
        given.batch,
        shuffle=True,
        targets=["click"],
        sharding=NamedSharding(mesh, PartitionSpec("rows")),
        last="wrap",
    )
    everywhere = NamedSharding(mesh, PartitionSpec())
    start = {"item": jnp.zeros(ITEMS), "price": jnp.zeros(())}
    weights = jax.jit(lambda: start, out_shardings=everywhere)()
    losses, rows = [], 0
    for _ in range(given.epochs):
        for x, click in loader:
            weights, loss = step(weights, x, click)
            losses.append(float(loss))
            rows += len(click)  # of all processes: the array is global
    if jax.process_index() == 0:
        tell(kind="JAX", rows=rows, steps=len(losses), first=losses[0], last=losses[-1])
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
