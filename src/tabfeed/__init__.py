"""tabfeed feeds tables to models.

Raw tabular files, larger than memory, become features; features become shuffled
batches, prepared in the background for PyTorch, Keras, JAX and fastai.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tabfeed import errors, io
from tabfeed.execute import Distributed, set_client
from tabfeed.io import Dataset
from tabfeed.schema import ColumnSchema, Domain, Schema, Tags

if TYPE_CHECKING:
    from tabfeed import ops
    from tabfeed.io import Shuffle
    from tabfeed.schema.schema import ColumnSelector
    from tabfeed.workflow import Workflow

__version__ = "0.1.0"

__all__ = [
    "ColumnSchema",
    "ColumnSelector",
    "Dataset",
    "Distributed",
    "Domain",
    "Schema",
    "Shuffle",
    "Tags",
    "Workflow",
    "errors",
    "io",
    "ops",
    "set_client",
]


_LATER = {
    "ColumnSelector": "tabfeed.schema.schema",
    "Shuffle": "tabfeed.io.write.writer",
    "Workflow": "tabfeed.workflow",
}


def _let_polars_find_numpy() -> None:
    """Polars imports NumPy at first use, which may fail if two threads do it at once."""
    polars = sys.modules.get("polars")
    if polars is not None:
        polars.Series(importlib.import_module("numpy").empty(0))


_let_polars_find_numpy()


def __getattr__(name: str) -> Any:
    """What a loader needs none of is imported when it is first used; `ops` brings Polars along."""
    if name == "ops":
        return importlib.import_module("tabfeed.ops")
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'tabfeed' has no attribute {name!r}")
