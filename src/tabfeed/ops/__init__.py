"""Operators: the steps that features are made of.

``["a", "b"] >> ops.FillMissing() >> ops.Normalize()`` makes a node of a graph; a
`tabfeed.Workflow` fits and applies it. `Operator` and `StatOperator` are the bases of
operators of your own; `LargeState` is what one of them learns that is larger than memory.
"""

from __future__ import annotations

from tabfeed.ops.base import Inputs, LargeState, Operator, StatOperator, register
from tabfeed.ops.categorify import Categorify
from tabfeed.ops.columns import (
    AddMetadata,
    AddProperties,
    AddTags,
    DropLowCardinality,
    LambdaOp,
    Rename,
    TagAsItemFeatures,
    TagAsItemID,
    TagAsUserFeatures,
    TagAsUserID,
)
from tabfeed.ops.external import ColumnSimilarity, JoinExternal
from tabfeed.ops.frames import get_embedding_sizes
from tabfeed.ops.graph.node import Node
from tabfeed.ops.graph.subgraph import Subgraph
from tabfeed.ops.hashing import Bucketize, HashBucket, HashedCross
from tabfeed.ops.keyed.join import JoinGroupby
from tabfeed.ops.keyed.target import TargetEncoding
from tabfeed.ops.lists import ListSlice, ValueCount
from tabfeed.ops.missing import FillMedian, FillMissing
from tabfeed.ops.numeric import Clip, LogOp, ReduceDtypeSize
from tabfeed.ops.rows import DifferenceLag, Dropna, Filter, Groupby
from tabfeed.ops.statistics import DataStats, Normalize, NormalizeMinMax
from tabfeed.ops.text import Tokenize
from tabfeed.schema.schema import ColumnSelector

UDF = LambdaOp

__all__ = [
    "UDF",
    "AddMetadata",
    "AddProperties",
    "AddTags",
    "Bucketize",
    "Categorify",
    "Clip",
    "ColumnSelector",
    "ColumnSimilarity",
    "DataStats",
    "DifferenceLag",
    "DropLowCardinality",
    "Dropna",
    "FillMedian",
    "FillMissing",
    "Filter",
    "Groupby",
    "HashBucket",
    "HashedCross",
    "Inputs",
    "JoinExternal",
    "JoinGroupby",
    "LambdaOp",
    "LargeState",
    "ListSlice",
    "LogOp",
    "Node",
    "Normalize",
    "NormalizeMinMax",
    "Operator",
    "ReduceDtypeSize",
    "Rename",
    "StatOperator",
    "Subgraph",
    "TagAsItemFeatures",
    "TagAsItemID",
    "TagAsUserFeatures",
    "TagAsUserID",
    "TargetEncoding",
    "Tokenize",
    "ValueCount",
    "get_embedding_sizes",
    "register",
]
