# %% [markdown]
"""Click logs, from text to features: statistics, fit, transform, and what each step cost.

Criteo's logs are tab-separated text without a header: a label, 13 counts, 26 categories as hex
strings, with gaps in both. They become Parquet once, since text is slow to read and everything
after reads it more than once; a first look says what is in the columns; a workflow learns ids and
moments; and the features are written shuffled, in files made for a loader to read often. What
comes out is what the training examples start from.

    python examples/criteo_etl.py
    python examples/criteo_etl.py --data day_0 day_1 --folder features --memory-limit 4GB
    python examples/criteo_torch.py --folder demo_data/criteo_etl
"""

# %%
from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pyarrow.csv as pacsv
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, features, open_raw, raw_files
from showing import Clock, arguments, draw, fresh, table

from tabfeed import Dataset, Shuffle, Workflow, datagen, ops
from tabfeed.loader.torch import TorchAsyncItr

COLUMNS = [LABEL, *CONTINUOUS, *CATEGORICAL]
RESERVED = 3  # ids for padding, null and what is too rare

# %% [markdown]
# Without files of your own: made-up logs, in the form Criteo's have.


# %%
def write_text(folder: Path, rows: int) -> list[Path]:
    """Two days of logs as text."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = pacsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    paths = [folder / "day_0", folder / "day_1"]
    for day, path in enumerate(paths):
        made = datagen.criteo_tables(-(-rows // 2), raw=True, seed=day)
        first = next(made)
        with pacsv.CSVWriter(path, first.schema, write_options=plain) as writer:
            for part in (first, *made):
                writer.write_table(part)
    return paths


# %% [markdown]
# A first look. `DataStats` reads every column once, within the memory limit, however many distinct
# values there are.


# %%
def look(raw: Dataset, limit: str | None) -> dict[str, dict[str, Any]]:
    """What is in each column."""
    stats = ops.DataStats()
    Workflow(COLUMNS >> stats).fit(raw, memory_limit=limit)
    return stats.output


def tell_columns(found: dict[str, dict[str, Any]]) -> None:
    """The statistics as a table. Of text, the numbers are those of its length."""
    rows = [
        (name, f["dtype"], f"{f['cardinality']:,}", f"{f['per_nan']:.1f}",
         f"{f['mean']:.2f}", f"{f['std']:.2f}", f"{f['max']:.0f}")
        for name, f in found.items()
    ]  # fmt: skip
    heads = ("column", "type", "distinct", "nulls, %", "mean", "deviation", "largest")
    table("What is in the columns", heads, rows)


# %% [markdown]
# The last file is for validation: the latest clicks. The workflow learns from the others.


# %%
def split(raw: Dataset) -> tuple[Dataset, Dataset]:
    """All files but the last, and the last."""
    return Dataset(raw.files[:-1]), Dataset(raw.files[-1:])


def read_once(path: Path, batch_size: int) -> int:
    """Take shuffled batches of everything, as a training loop would."""
    columns = {"cats": CATEGORICAL, "conts": CONTINUOUS, "labels": [LABEL]}
    batches = TorchAsyncItr(Dataset(path), batch_size=batch_size, shuffle=True, **columns)
    return sum(len(y) for _, _, y in batches)


# %%
def run(args: argparse.Namespace, text: list[Path], clock: Clock) -> dict[str, dict[str, Any]]:
    """All steps, each timed; what was found in the columns."""
    folder, limit = args.folder, args.memory_limit
    logs = open_raw(text)
    rows, files = logs.num_rows, max(8, len(text))
    raw = clock.time(
        "raw to Parquet", rows, lambda: logs.to_parquet(folder / "raw", output_files=files)
    )
    found = clock.time("statistics", rows, lambda: look(raw, limit))
    train, valid = split(raw)
    workflow = Workflow(features())
    clock.time("fit", train.num_rows, lambda: workflow.fit(train, memory_limit=limit))
    for name, part, shuffle in (("train", train, Shuffle.FULL), ("valid", valid, None)):
        made, path = workflow.transform(part), folder / name
        clock.time(
            f"transform, write {name}",
            part.num_rows,
            lambda m=made, p=path, s=shuffle: m.to_parquet(
                p, shuffle=s, layout="fast", output_files=4, memory_limit=limit
            ),
        )
    workflow.save(folder / "workflow")
    clock.time("shuffled batches", train.num_rows, lambda: read_once(folder / "train", 65_536))
    return found


def main() -> None:
    """Run, and show what came of it."""
    args = arguments(make_parser())
    fresh(args.folder)
    text = [f for p in args.data or [] for f in raw_files(p)]
    text = text or write_text(args.folder / "text", args.rows)
    clock = Clock()
    found = run(args, text, clock)
    tell_columns(found)
    clock.show("What each step cost")
    sizes = {n: _megabytes(args.folder / n) for n in ("raw", "train", "valid", "workflow")}
    sizes = {"text": sum(f.stat().st_size for f in text) / 1e6} | sizes
    print(" -> ".join(f"{name} {size:,.1f} MB" for name, size in sizes.items()))
    workflow = Workflow.load(args.folder / "workflow")
    show(found, workflow, args.folder)
    print(f"To train on this: python examples/criteo_torch.py --folder {args.folder}")


def make_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", help="raw files, or folders of them")
    parser.add_argument("--rows", type=int, default=200_000, help="how many to make without")
    parser.add_argument("--folder", type=Path, default=Path("demo_data/criteo_etl"))
    parser.add_argument("--memory-limit", help="most memory for what is learned, such as 4GB")
    return parser


def _megabytes(folder: Path) -> float:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1e6


# %% [markdown]
# Two pictures: how many values each category has, and how many of them are frequent enough for an
# id of their own; and what logarithm and normalisation make of a count.


# %%
def show(found: dict[str, dict[str, Any]], workflow: Workflow, folder: Path) -> None:
    """Draw the categories and one count."""
    sizes = ops.get_embedding_sizes(workflow)
    assert isinstance(sizes, dict)  # a pair only where there are lists
    kept = {n: rows - RESERVED for n, (rows, _) in sizes.items()}
    names = sorted(CATEGORICAL, key=lambda n: -found[n]["cardinality"])
    count = CONTINUOUS[4]
    raw = Dataset(folder / "raw").sample(20_000)[count].drop_nulls().clip(0)
    made = Dataset(folder / "train").sample(20_000)[count]

    def paint(categories: Any, before: Any, after: Any) -> None:
        categories.bar(names, [found[n]["cardinality"] for n in names], color="#c3ccd6")
        categories.bar(names, [kept[n] for n in names], color="#2f6db5")
        categories.set_yscale("log")
        categories.set_ylabel("distinct values")
        categories.tick_params(axis="x", rotation=90, labelsize=7)
        categories.set_title("Categories: all values, and those with an id", loc="left")
        before.hist(raw, bins=60, color="#c3ccd6")
        before.set_title(f"{count}, raw", loc="left")
        after.hist(made, bins=60, color="#2f6db5")
        after.set_title(f"{count}, as a feature", loc="left")

    draw(folder / "columns.png", (12, 3.6), paint, panels=3)


# %%
if __name__ == "__main__":
    main()
