"""Workflows that hold every kind of state, and damage to them that no checksum tells."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fuzzing.mutate import TOKENS, mutate_bytes, mutate_json
from tabfeed import ColumnSelector, ops

N = 120
DATA = pa.table(
    {
        "c": [f"v{i % 11}" if i % 13 else None for i in range(N)],
        "k": [i % 5 for i in range(N)],
        "d": pa.array([i % 3 for i in range(N)], pa.int32()),
        "x": [i / 3 for i in range(N)],
        "l": [[f"v{i % 7}", "a"] for i in range(N)],
        "y": [float(i % 2) for i in range(N)],
        "f": [[float(i), 1.5] for i in range(N)],
        "t": [f"a Good text {i % 4}" for i in range(N)],
        "b": [i % 2 == 0 for i in range(N)],
    }
)
OTHER = pa.table({"k": list(range(5)), "z": [i * 1.5 for i in range(5)]})


def graphs() -> dict[str, Any]:
    """Graphs by name; together they hold every operator that learns or keeps a table."""
    both = ["x", "y"] >> ops.FillMissing()
    return {
        "ids": (["c", "l"] >> ops.Categorify(freq_threshold=2, num_buckets=3, max_size=8))
        + (["x"] >> ops.FillMedian(add_binary_cols=True)),
        "combined": ([["c", "k"]] >> ops.Categorify(encode_type="combo", max_size=20))
        + (["d", "t"] >> ops.Categorify(single_table=True, dtype="int32"))
        + (["l"] >> ops.Categorify(vocabs={"l": ["v1", "v2"]})),
        "groups": (["k", ["c", "k"]] >> ops.TargetEncoding("y", kfold=3))
        + (["k", ["c", "d"]] >> ops.JoinGroupby(["x", "y"], stats=["count", "mean", "std", "min"])),
        "joined": (["k", "x"] >> ops.JoinExternal(OTHER, on="k"))
        + (["c"] >> ops.HashBucket(10))
        + (["l"] >> ops.Categorify() >> ops.ListSlice(1, pad=True)),
        "numbers": (["x", "f"] >> ops.Clip(min_value=0.5, max_value=7))
        + (["k", "d"] >> ops.ReduceDtypeSize())
        + (["l"] >> ops.ValueCount() >> ops.ListSlice(0, 1))
        + ([["k", "d"]] >> ops.HashedCross(7))
        + (["y"] >> ops.Bucketize([0, 0.5]) >> ops.Rename(postfix="_b"))
        + (["y"] >> ops.LambdaOp(np.log1p, dtype="float64") >> ops.Rename(name="log")),
        "scaled": (["x"] >> ops.Normalize())
        + (["x"] >> ops.NormalizeMinMax(out_dtype="float32") >> ops.Rename(name="range"))
        + (["y"] >> ops.LogOp()),
        "stats": (["c", "k", "x"] >> ops.DataStats()) + (["t"] >> ops.Tokenize(pattern=r"\w+")),
        "rows": (both + "k" + "c")
        >> ops.Groupby("k", sort_cols="x", aggs={"x": ["list", "mean"], "c": "last"}),
        "shape": (both["x"] >> ops.DifferenceLag("k", [1, -1]))
        + (both - "y" >> ops.Rename(name="q"))
        + (ColumnSelector("k") >> ops.AddTags("id") >> ops.AddProperties({"a": [1]})),
        "whole": ["x", "k", "b"] >> ops.Dropna(),
        "similar": ([["k", "d"]] >> ops.ColumnSimilarity(np.arange(18.0).reshape(6, 3)))
        + (["c"] >> ops.Categorify() >> ops.DropLowCardinality())
        + ops.Node.of(ops.Subgraph("s", ["x"] >> ops.FillMissing() >> ops.Rename(name="w"))),
    }


def damage(folder: Path, rng: random.Random) -> None:
    """Change the structure, a value in it, or a table; and make the checksums anew."""
    from tests.workflow.test_artefact import reseal

    structure, tables = folder / "workflow.json", sorted((folder / "tables").glob("*"))
    kind = rng.random()
    if kind < 0.45 or not tables:
        body = json.loads(structure.read_text())
        _change_value(body, rng)
        structure.write_text(json.dumps(body))
    elif kind < 0.6:
        with suppress(RecursionError):  # nested more deeply than it can be written
            body = mutate_json(json.loads(structure.read_text()), rng)
            structure.write_text(json.dumps(body))
    elif kind < 0.65:
        structure.write_bytes(mutate_bytes(structure.read_bytes(), rng, tokens=TOKENS))
    elif kind < 0.9:
        _change_table(rng.choice(tables), rng)
    else:
        path = rng.choice(tables)
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    reseal(folder)


def _change_value(body: dict[str, Any], rng: random.Random) -> None:
    """Another value in place of one argument, or of one thing that was learned."""
    places = [p for node in body["nodes"] for k in ("params", "state") for p in _leaves(node[k])]
    if rng.random() < 0.1:
        places = list(_leaves(body["input_schema"]))
    holder, key = rng.choice(places)
    old = holder[key]
    others: list[Any] = [None, "x", 0, 1, -1, True, 0.5, ["x"], {"a": 1}, {"$tuple": [1]}]
    if isinstance(old, int):
        others = [-1, 0, 1, old + 1, -old, 2**31, 2**62, 2**63, -(2**63), 10**30, 10**400, 0.5, "x"]
    elif isinstance(old, float):
        others = [0.0, -1.0, 1e308, 5e-324, {"$float": "nan"}, {"$float": "x"}, 10**400, "x", None]
    elif isinstance(old, str):
        nested = "list<" * 200 + "int8" + ">" * 200
        others = [
            "",
            "c",
            "x",
            "int64",
            "list<int64>",
            "arrow:AAAA",
            nested,
            "[[[",
            "a{1000}{1000}",
        ]
        others += ["\\p{", "*", "mean", "y" * 5000, 3, None, {"$type": "int8"}]
    holder[key] = rng.choice(others)


def _leaves(value: Any) -> Any:
    """Every (container, key) of a value that holds no others."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        if isinstance(value[key], dict | list) and value[key]:
            yield from _leaves(value[key])
        else:
            yield value, key


def _change_table(path: Path, rng: random.Random) -> None:
    table = pq.ParquetFile(path).read()
    n, at = len(table), rng.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    others = [
        pa.array(["s"] * n), pa.nulls(n), pa.array([[1]] * n), pa.array([2**63 - 1] * n),
        pa.array([float("nan")] * n), pa.array([-5] * n), pa.array([{"a": 1}] * n),
        pa.array([True] * n), pa.array([0] * n, pa.timestamp("us")), pa.array([b"\xff"] * n),
        pa.array(["a"] * n).dictionary_encode(), pa.array([1] * n, pa.decimal128(5, 2)),
        pa.array([v if rng.random() < 0.7 else None for v in column.to_pylist()], column.type),
    ]  # fmt: skip
    changed = [
        table.drop_columns([name]),
        table.rename_columns(["q" if c == name else c for c in table.column_names]),
        table.slice(0, rng.randrange(n + 1)),
        pa.concat_tables([table, table]),
        table.append_column(rng.choice([name, "more"]), column),
        table.replace_schema_metadata({"rows": rng.choice(["x", "-1", "1" * 14]), "columns": "1"}),
        *(table.set_column(at, name, other) for other in others),
    ]
    pq.write_table(rng.choice(changed), path)
