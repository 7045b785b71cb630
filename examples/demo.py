"""What tabfeed does, on generated data: raw files to features to a trained model to a verdict.

Run ``make demo``, or ``python examples/demo.py --rows 800_000 --folder demo_data``. It ends with a
report that opens in the browser.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
from demo_model import Columns, rate_alone, row_by_row_loader, tabfeed_loader, train
from demo_report import Result, Story, open_in_browser, save_reports

import tabfeed
from tabfeed import Dataset, Workflow, datagen, ops
from tabfeed.hashing import hash_columns

CATS = [f"C{i}" for i in range(1, 27)]
CONTS = [f"I{i}" for i in range(1, 14)]
SHOWN = ["label", "I1", "I2", "I3", "C1", "C2", "C3"]


def features() -> Workflow:
    """Ids for the categories; filled, clipped, logged and normalised numbers."""
    cats = CATS >> ops.Categorify(freq_threshold=5)
    conts = CONTS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    return Workflow(cats + conts + ["label"])


def fingerprint(dataset: Dataset) -> tuple[int, int]:
    """Rows, and the sum of all rows' hashes: the same for the same rows in any order."""
    rows = total = 0
    for table in dataset.iter_tables():
        rows += table.num_rows
        total += int(hash_columns(table, dataset.column_names).sum(dtype=np.uint64))
    return rows, total % 2**64


def make_raw(story: Story, folder: Path, rows: int) -> tuple[Dataset, Dataset]:
    """Click logs as they come, and some more of them to try the model on."""
    held_out = rows // 8
    with story.step("Make raw click logs: numbers, hex strings, nulls", rows + held_out):
        raw = datagen.criteo(folder / "raw", rows, raw=True, seed=1)
        valid = datagen.criteo(folder / "raw_valid", held_out, raw=True, seed=2)
    story.look_at(raw, SHOWN)
    return raw, valid


def mix(story: Story, raw: Dataset, folder: Path) -> Dataset:
    """The same rows in one random order, and the proof that they are the same."""
    rows = raw.num_rows
    with story.step("Write them in one random order of all rows, in 1 GB of memory", rows):
        mixed = raw.to_parquet(
            folder / "mixed", shuffle=tabfeed.Shuffle.FULL, memory_limit="1GB", seed=3
        )
    with story.step("Read both back and compare every row", 2 * rows):
        before, after = fingerprint(raw), fingerprint(mixed)
    if before != after:
        raise SystemExit(f"rows were lost or changed: {before} before, {after} after")
    story.tell(
        f"[bold green]No row was lost:[/] {after[0]:,} rows before and after, and the sum of all "
        f"row hashes is {after[1]:016x} both times."
    )
    return mixed


def make_features(
    story: Story, mixed: Dataset, raw_valid: Dataset, folder: Path
) -> tuple[Dataset, Dataset]:
    """What the model reads, for the rows to train on and those to try it on."""
    rows = mixed.num_rows
    with story.step("Learn the features: vocabularies, means, deviations", rows):
        workflow = features().fit(mixed)
        workflow.save(folder / "workflow")
    with story.step("Make the features", rows + raw_valid.num_rows):
        ready = workflow.transform(mixed).to_parquet(folder / "train", layout="fast")
        valid = workflow.transform(raw_valid).to_parquet(folder / "valid", layout="fast")
    story.look_at(ready, SHOWN)
    return ready, valid


def train_twice(story: Story, ready: Dataset, valid: Dataset, columns: Columns) -> list[Result]:
    """The same model on the same rows, fed row by row and fed by tabfeed."""
    rows = ready.num_rows
    held_out = list(tabfeed_loader(valid, columns, shuffle=False))
    feed = row_by_row_loader(ready, columns)
    with story.step("Train with PyTorch, fed row by row from memory", rows):
        slow = train("row by row", feed, columns)
    results = [story.verdict(slow, held_out)]
    loader = tabfeed_loader(ready, columns, shuffle=True)
    with story.step("Train the same model, fed by tabfeed from the files", rows):
        fast = train("tabfeed", loader, columns)
    results.append(story.verdict(fast, held_out))
    story.tell(f"The loader alone, with nobody training, gives {rate_alone(loader):,.0f} rows/s.")
    return results


def main() -> None:
    """Run every step and tell what it did."""
    parser = argparse.ArgumentParser(description="From raw files to a trained model and a verdict.")
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--folder", type=Path, default=Path("demo_data"))
    parser.add_argument("--no-browser", action="store_true", help="only say where the report is")
    args = parser.parse_args()
    start = time.perf_counter()
    shutil.rmtree(args.folder, ignore_errors=True)
    story = Story(f"tabfeed {tabfeed.__version__}, on {args.rows:,} generated rows")

    raw, raw_valid = make_raw(story, args.folder, args.rows)
    mixed = mix(story, raw, args.folder)
    ready, valid = make_features(story, mixed, raw_valid, args.folder)
    sizes = ops.get_embedding_sizes(Workflow.load(args.folder / "workflow"))
    # Loaders give columns sorted by name, as the sizes come.
    columns = Columns(CATS, CONTS, "label", [ids for ids, _ in sizes.values()])
    results = train_twice(story, ready, valid, columns)

    report = save_reports(story, results, args.folder)
    story.finish(time.perf_counter() - start, report, args.folder)
    if not args.no_browser:
        open_in_browser(report)


if __name__ == "__main__":
    main()
