"""For Keras and TensorFlow: layers, workflows made from feature columns, and SavedModels.

Importing this lets ``model.save("x.savedmodel")`` write a SavedModel again, as it did before Keras
3. Keras 3 refuses every path that does not end in ``.keras`` or ``.h5``, and offers no hook before
it does. Code written for Keras 2 says ``model.save(".../model.savedmodel")``, so `keras.Model.save`
is wrapped for paths with this one ending, which then call
``model.export(path, format="tf_saved_model")``. Every other path reaches Keras unchanged, and what
changes for this one was an error before. `uninstall_savedmodel` takes the wrapper away.

A subclass of `keras.Model`, or a function of our own, would need no wrapper, but neither is what
such code calls. New code needs none of this: ``model.export(path)`` is Keras's own way.

What comes out serves (`tf.saved_model.load`, TensorFlow Serving, `keras.layers.TFSMLayer`); to go
on training later, save a ``.keras`` file.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import keras

from tabfeed.framework_utils.tensorflow import layers
from tabfeed.io.dataset import convert_tfrecords_to_parquet

__all__ = ["convert_tfrecords_to_parquet", "layers", "make_feature_column_workflow"]


def __getattr__(name: str) -> Any:
    """Workflows are imported when they are first used; they bring Polars along."""
    if name == "make_feature_column_workflow":
        module = importlib.import_module("tabfeed.framework_utils.tensorflow.feature_columns")
        return module.make_feature_column_workflow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def install_savedmodel() -> None:
    """Let `keras.Model.save` write SavedModels; calling it again changes nothing."""
    before = keras.Model.save
    if hasattr(before, "_tabfeed_before"):
        return

    @functools.wraps(before)
    def save(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(filepath, str | os.PathLike) and os.fspath(filepath).endswith(".savedmodel"):
            return _export(self, os.fspath(filepath), *args, **kwargs)
        return before(self, filepath, *args, **kwargs)

    save._tabfeed_before = before  # type: ignore[attr-defined]
    keras.Model.save = save


def _export(model: Any, path: str, overwrite: bool = True) -> None:
    """What `save` does for the one ending; options of other formats are a TypeError here."""
    if not overwrite and os.path.exists(path):
        raise FileExistsError(f"{path} already exists; pass overwrite=True to replace it")
    model.export(path, format="tf_saved_model", verbose=False)


def uninstall_savedmodel() -> None:
    """Give `keras.Model.save` back as it was."""
    keras.Model.save = getattr(keras.Model.save, "_tabfeed_before", keras.Model.save)


install_savedmodel()
