"""For Keras and TensorFlow: layers, and workflows made from feature columns.

Importing this lets ``model.save("x.savedmodel")`` write a SavedModel; see `savedmodel`.
"""

from __future__ import annotations

import importlib
from typing import Any

from tabfeed.framework_utils.tensorflow import layers, savedmodel
from tabfeed.io.convert import convert_tfrecords_to_parquet

savedmodel.install()

__all__ = ["convert_tfrecords_to_parquet", "layers", "make_feature_column_workflow"]


def __getattr__(name: str) -> Any:
    """Workflows are imported when they are first used; they bring Polars along."""
    if name == "make_feature_column_workflow":
        module = importlib.import_module("tabfeed.framework_utils.tensorflow.feature_columns")
        return module.make_feature_column_workflow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
