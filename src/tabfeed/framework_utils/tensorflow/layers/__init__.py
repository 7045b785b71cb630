"""Keras 3 layers for tabular models: feature columns to tensors, and products of their vectors.

They run on every Keras backend; ragged and sparse inputs exist on TensorFlow alone.
"""

from __future__ import annotations

from tabfeed.framework_utils.tensorflow.layers.dense import DenseFeatures
from tabfeed.framework_utils.tensorflow.layers.interaction import (
    DotProductInteraction,
    XDeepFmOuterProduct,
)
from tabfeed.framework_utils.tensorflow.layers.linear import LinearFeatures

__all__ = ["DenseFeatures", "DotProductInteraction", "LinearFeatures", "XDeepFmOuterProduct"]
