"""tabfeed feeds tables to models.

Raw tabular files, larger than memory, become features; features become shuffled
batches; batches reach PyTorch, Keras, JAX and fastai before the model asks for them.
"""

from __future__ import annotations

from tabfeed import errors, io, ops
from tabfeed.io import Dataset, Shuffle
from tabfeed.schema import ColumnSchema, Domain, Schema, Tags
from tabfeed.selector import ColumnSelector
from tabfeed.workflow import Workflow

__version__ = "0.1.0"

__all__ = [
    "ColumnSchema",
    "ColumnSelector",
    "Dataset",
    "Domain",
    "Schema",
    "Shuffle",
    "Tags",
    "Workflow",
    "errors",
    "io",
    "ops",
]
