"""Click logs as features, for the examples that train on them.

The data has the shape of Criteo's: ``label``, numbers ``I1`` to ``I13`` and categories ``C1`` to
``C26``, as Parquet files or as the tab-separated text it is distributed in (``day_0`` to
``day_23``, compressed or not). Without ``--data`` a small one is made. With it, the last file is
for validation; ``criteo_etl.py`` makes several files of one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tabfeed import Dataset, Workflow, datagen, ops

CATEGORICAL = [f"C{i}" for i in range(1, 27)]
CONTINUOUS = [f"I{i}" for i in range(1, 14)]
LABEL = "label"


@dataclass(frozen=True)
class Clicks:
    """Features, and how large the tables of embeddings must be, in the order of their names."""

    train: Dataset
    valid: Dataset
    sizes: list[tuple[int, int]]


def options(description: str, folder: str) -> argparse.ArgumentParser:
    """The arguments these examples share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, help="a folder of raw files, Parquet or Criteo's text")
    parser.add_argument("--rows", type=int, default=40_000, help="how many to make without --data")
    parser.add_argument("--folder", type=Path, default=Path("demo_data") / folder)
    parser.add_argument("--batch-size", type=int, default=1_024)
    parser.add_argument("--epochs", type=int, default=2)
    return parser


def prepare(args: argparse.Namespace) -> Clicks:
    """Learn the features and write them; if they lie there from before they are used again."""
    folder: Path = args.folder
    if not (folder / "workflow").exists():
        train, valid = raw_parts(args)
        workflow = Workflow(features()).fit(train)
        workflow.transform(train).to_parquet(folder / "train", overwrite=True)
        workflow.transform(valid).to_parquet(folder / "valid", overwrite=True)
        workflow.save(folder / "workflow")
    sizes = ops.get_embedding_sizes(Workflow.load(folder / "workflow"))
    assert isinstance(sizes, dict)  # a pair only where there are lists
    limited = [(rows, min(16, width)) for rows, width in sizes.values()]
    return Clicks(Dataset(folder / "train"), Dataset(folder / "valid"), limited)


def raw_parts(args: argparse.Namespace) -> tuple[Dataset, Dataset]:
    """Raw clicks to train on and to validate with."""
    if args.data is None:
        raw = args.folder / "raw"
        train = datagen.criteo(raw / "train", args.rows, raw=True, seed=0)
        return train, datagen.criteo(raw / "valid", max(1, args.rows // 5), raw=True, seed=1)
    files = raw_files(args.data)
    if len(files) < 2:
        raise SystemExit(f"{args.data} holds {len(files)} file(s) of clicks; two are needed")
    return open_raw(files[:-1]), open_raw(files[-1:])


def raw_files(path: Path) -> list[Path]:
    """The Parquet files of a folder, or all of its files; or the one file given."""
    if path.is_file():
        return [path]
    found = sorted(p for p in path.glob("**/*") if p.is_file() and p.name[0] not in "._")
    return [p for p in found if p.suffix == ".parquet"] or found


def open_raw(files: list[Path]) -> Dataset:
    """Parquet as it is; text by what is known of its columns, which it has no names for."""
    if files[0].suffix == ".parquet":
        return Dataset(files)
    types = dict.fromkeys(CATEGORICAL, "string") | dict.fromkeys(CONTINUOUS, "int64")
    names = [LABEL, *CONTINUOUS, *CATEGORICAL]
    return Dataset(files, "csv", sep="\t", header=None, names=names, dtypes=types)


def features() -> ops.Node:
    """Ids for the categories; filled, clipped, logged and normalised numbers."""
    cats = CATEGORICAL >> ops.Categorify(freq_threshold=3)
    conts = CONTINUOUS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp()
    conts = conts >> ops.Normalize(out_dtype="float32")
    return cats + conts + [LABEL]


def auc(scores: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """How often a click scores above what was not clicked: the area under the ROC curve."""
    score, clicked = np.asarray(scores), np.asarray(labels) == 1
    rank = np.empty(len(score))
    rank[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    clicks, others = clicked.sum(), (~clicked).sum()
    return float((rank[clicked].sum() - clicks * (clicks + 1) / 2) / (clicks * others))


def tell_speed(seconds: float, rows: int, epochs: int) -> None:
    """How long it took, and how many rows a second went through the model."""
    print(
        f"run_time: {seconds:.2f} - rows: {rows} - epochs: {epochs} - dl_thru: {rows / seconds:.0f}"
    )
