# %% [markdown]
"""One text model, fed twice: from Python, as most first versions are, and through tabfeed.

    python examples/deepconn.py
    python examples/deepconn.py --rows 200_000 --device cuda --json result.json
    python examples/deepconn.py --data reviews_Digital_Music_5.json

The model learns ratings from review texts (made up, see `tabfeed.datagen.reviews`, or Amazon's; see
`deepconn_data.py`). First its
batches are made in the training loop from Python lists: words looked up, cut, filled up, turned
into tensors. Then a workflow does that once, into Parquet files, and a loader reads them ahead.
Both runs train the same model on the same rows as often; a profiler watches both.
"""

# %%
from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from deepconn_data import gather_texts, make_texts
from deepconn_model import ITEM, RATING, USER, FedFromPython, Sizes, Trainer
from rich.console import Console
from rich.table import Table
from showing import arguments as parse

import tabfeed
from tabfeed import Dataset, Workflow, ops
from tabfeed.budget import cpu_count
from tabfeed.loader.torch import Loader
from tabfeed.profile import Profiler, Run, compare

FED, OURS = "fed from Python", "through tabfeed"
CHANGED = {
    FED: "tensors made in the training loop",
    OURS: "ids in files, read ahead of the loop",
}
console = Console()


@dataclass(frozen=True)
class Experiment:
    """What is trained on what."""

    rows: int
    epochs: int
    batch_size: int
    device: str
    sizes: Sizes


ON_GPU = Experiment(200_000, 5, 512, "cuda", Sizes(512, dimension=300, filters=256, window=5))
ON_CPU = Experiment(4_000, 2, 128, "cpu", Sizes(64, dimension=32, filters=32, window=3))


# %%
def make_features(folder: Path, raw: tuple[Dataset, Dataset], longest: int) -> dict[str, int]:
    """Words to ids, all lists of one length, in files made to be read often; the words' ids."""
    texts = tabfeed.ColumnSelector(subgroups=[[USER, ITEM]])  # one vocabulary for both
    vocabulary = ops.Categorify(dtype="int32")
    cut = ops.ListSlice(longest, pad=True)
    workflow = Workflow((texts >> ops.Tokenize() >> vocabulary >> cut) + [RATING]).fit(raw[0])
    for name, dataset in zip(("train", "valid"), raw, strict=True):
        made = workflow.transform(dataset)
        made.to_parquet(folder / name, layout="fast", row_group_size=4_096, overwrite=True)
    words = vocabulary.decode(np.arange(vocabulary.cardinalities_[USER]), USER).to_pylist()
    return {word: i for i, word in enumerate(words) if word is not None}


def fed_batches(raw: Dataset, ids: dict[str, int], experiment: Experiment) -> FedFromPython:
    """Everything in memory as Python objects, before any clock runs."""
    table = raw.to_arrow()
    return FedFromPython(
        {name: table.column(name).to_pylist() for name in (USER, ITEM)},
        table.column(RATING).to_numpy(),
        ids,
        batch_size=experiment.batch_size,
        longest=experiment.sizes.longest,
        device=experiment.device,
    )


def load(folder: Path, experiment: Experiment, *, shuffle: bool) -> Loader:
    """Batches from files, made ahead and delivered on the device."""
    return Loader(
        Dataset(folder),
        experiment.batch_size,
        shuffle=shuffle,
        device=experiment.device,
        targets=[RATING],
        buffer_size="16MB",  # a few batches at a time, so that the first is there soon
    )


# %%
def run(
    name: str, batches: Any, valid: Loader, words: int, experiment: Experiment
) -> tuple[Profiler, dict[str, Any]]:
    """Train a fresh model on some batches and say what came of it."""
    console.print(f"[bold cyan]Train, {name}[/] ...")
    spare = Trainer(words, experiment.sizes, experiment.device)  # trained, then thrown away
    batch = next(iter(batches))
    for _ in range(3):  # libraries choose their kernels before the clock runs
        spare.step(batch)
    spare.wait()
    trainer = Trainer(words, experiment.sizes, experiment.device)
    profiler = Profiler(name)
    seconds = trainer.train(batches, experiment.epochs, profiler)
    profiler.measure_ceiling(spare.step, batch)
    return profiler, figures(profiler.run, seconds) | {
        "root_mean_square_error": trainer.error(valid),
        "what_changed": CHANGED[name],
    }


def figures(run: Run, seconds: float) -> dict[str, Any]:
    """What the table and the JSON hold of a run."""
    return {
        "name": run.name,
        "seconds": seconds,
        "gpu_busy_most": max((busy for _, busy in run.gpu_busy), default=None),
        "gpu_busy_mean": run.gpu_busy_mean,
        "wait_share": run.wait_share,
        "of_ceiling": run.efficiency,
        "startup_seconds": run.times.startup,
        "steps": run.steps.count,
        "rows_per_second": run.rows_per_second,
    }


def processor() -> str:
    """The processor's name, where the system tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def machine() -> dict[str, Any]:
    """Where this ran, and on what versions."""
    packages = (tabfeed, torch, np, pa, pl)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu,
        "cuda": torch.version.cuda if gpu else None,
        "cpu": processor(),
        "cores": cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "versions": {"python": platform.python_version()}
        | {package.__name__: str(package.__version__) for package in packages},
    }


# %%
def show(rows: list[dict[str, Any]], prepared: float) -> None:
    """The two runs, side by side."""
    table = Table(title="One model, fed two ways", title_justify="left", header_style="bold")
    for head in ("", "seconds", "GPU busy\nat most", "\non average", "waiting", "what changed"):
        table.add_column(head, justify="left" if head in ("", "what changed") else "right")
    for row in rows:
        busy = [row["gpu_busy_most"], row["gpu_busy_mean"], row["wait_share"]]
        shares = ["-" if share is None else f"{share:.0%}" for share in busy]
        table.add_row(row["name"], f"{row['seconds']:.1f}", *shares, row["what_changed"])
    console.print(table)
    if torch.cuda.is_available() and rows[0]["gpu_busy_mean"] is None:
        console.print("How busy the GPU was can be read with nvidia-ml-py: pip install it.")
    fed, ours = rows
    console.print(
        f"{fed['seconds'] / ours['seconds']:.1f} times as fast, once the files were made, which "
        f"took {prepared:.1f} s. Root mean square error on other reviews: "
        f"{fed['root_mean_square_error']:.3f} and {ours['root_mean_square_error']:.3f}."
    )


# %%
def arguments() -> tuple[argparse.Namespace, Experiment]:
    """What the user asked for; the rest by what the machine can do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="reviews as JSON lines, such as Amazon's")
    parser.add_argument("--rows", type=int, help="how many to make without --data")
    parser.add_argument("--folder", type=Path, default=Path("demo_data/deepconn"))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parse(parser)
    asked = {name: getattr(args, name) for name in ("rows", "epochs", "batch_size", "device")}
    base = ON_CPU if args.device == "cpu" else ON_GPU
    return args, replace(base, **{k: v for k, v in asked.items() if v is not None})


# %%
def main() -> None:
    """Make the data, train twice, compare."""
    args, experiment = arguments()
    folder = args.folder
    if args.data:
        console.print("[bold cyan]Gather review texts[/] ...")
        raw = gather_texts(args.data, folder)
        experiment = replace(experiment, rows=raw[0].num_rows)
    else:
        console.print("[bold cyan]Make review texts[/] ...")
        raw = make_texts(folder, experiment.rows, experiment.sizes.longest)
    console.print("[bold cyan]Turn words into ids[/] ...")
    start = time.perf_counter()
    ids = make_features(folder, raw, experiment.sizes.longest)
    prepared = time.perf_counter() - start
    words = max(ids.values()) + 1
    valid = load(folder / "valid", experiment, shuffle=False)
    results = [
        run(FED, fed_batches(raw[0], ids, experiment), valid, words, experiment),
        run(OURS, load(folder / "train", experiment, shuffle=True), valid, words, experiment),
    ]
    for (profiler, _), name in zip(results, ("fed", "tabfeed"), strict=True):
        profiler.save(folder / f"{name}.html")
    rows = [told for _, told in results]
    show(rows, prepared)
    report = compare([profiler.run for profiler, _ in results]).save(folder / "comparison.html")
    console.print(f"The comparison, to open in a browser: {report}")
    if args.json:
        told = {"machine": machine(), "experiment": asdict(experiment), "words": words}
        told |= {"preparing_seconds": prepared, "runs": rows}
        args.json.write_text(json.dumps({"example": "deepconn", **told}, indent=2) + "\n")


# %%
if __name__ == "__main__":
    main()
