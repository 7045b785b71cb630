"""For Keras and TensorFlow: layers, and workflows made from feature columns.

Importing this lets ``model.save("x.savedmodel")`` write a SavedModel; see `savedmodel`.
"""

from __future__ import annotations

from tabfeed.framework_utils.tensorflow import layers, savedmodel
from tabfeed.framework_utils.tensorflow.feature_columns import make_feature_column_workflow
from tabfeed.io.convert import convert_tfrecords_to_parquet

savedmodel.install()

__all__ = ["convert_tfrecords_to_parquet", "layers", "make_feature_column_workflow"]
