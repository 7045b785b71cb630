"""JAX: batches as ``(dict of arrays, targets)``, on a device or sharded over several.

Arrays are made in the background: `Loader` in `dicts`, and how they reach a device in `transfer`.
JAX has 32-bit numbers unless `jax_enable_x64` is on; ids that do not fit are an error.
"""

from __future__ import annotations

from tabfeed.errors import MissingExtraError

try:
    import jax  # noqa: F401
except ImportError as e:
    raise MissingExtraError("jax", "JAX loaders") from e

from tabfeed.loader.jax.dicts import Loader

__all__ = ["Loader"]
