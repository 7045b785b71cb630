# %% [markdown]
"""Which ad is clicked: target encoding and time features on the Outbrain data.

An ad's past share of clicks says a lot about its next one. `TargetEncoding` gives it, for single
columns and for combinations, drawn towards the mean where an ad was seldom shown. In training,
each row must be encoded without its own label, or the model learns to read the answer off the
feature: ``workflow.fit_transform`` does that, by folds. The example trains the same small network
three times: without target encoding, with it, and with it done wrong.

    python examples/outbrain_torch.py
    python examples/outbrain_torch.py --data outbrain --batch-size 65536
"""

# %%
from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl
import torch
from criteo_data import auc
from outbrain_data import SINCE_LAST, Displays, open_displays, write_files
from showing import Clock, arguments, draw, fresh, table, with_bar
from torch import nn

from tabfeed import Dataset, Workflow, ops
from tabfeed.loader.torch import TorchAsyncItr

LABEL = "clicked"
BEGIN = 1_465_876_799_998  # the data's timestamps count from here, in milliseconds
HOUR = 3_600_000

# %% [markdown]
# Time: hour and weekday of the display, how old the ad's document is, and how long ago the user saw
# a display before (which `outbrain_data.py` computes with `DifferenceLag`, users' rows together).


# %%
def hour(moment: pl.Series) -> pl.Series:
    """Hour of the day, in UTC."""
    return ((moment + BEGIN) // HOUR % 24).cast(pl.Float32)


def weekday(moment: pl.Series) -> pl.Series:
    """0 for Thursday, which 1 January 1970 was."""
    return ((moment + BEGIN) // (24 * HOUR) % 7).cast(pl.Float32)


def age(published: pl.Series, frame: pl.DataFrame) -> pl.Series:
    """Days since the document appeared."""
    days = (frame["timestamp"] + BEGIN - published) / (24 * HOUR)
    return days.clip(0, 3_650).cast(pl.Float32)


# %% [markdown]
# Joins: the ad's document, campaign and advertiser; when that document appeared; the categories of
# the ad's document and of the page.


# %%
def joined_columns(displays: Displays) -> ops.Node:
    """What is known of the ad and the page, beside each display."""
    known = ["ad_id", "document_id", "platform", "timestamp", SINCE_LAST]
    known = known >> ops.JoinExternal(displays.ads, on="ad_id")
    known = known >> ops.JoinExternal(displays.published, on="ad_document_id", on_ext="document_id")
    for document, name in (("ad_document_id", "ad_category"), ("document_id", "page_category")):
        named = displays.categories.rename({"category_id": name})
        known = known >> ops.JoinExternal(named, on=document, on_ext="document_id")
    return known


def time_columns(known: ops.Node) -> ops.Node:
    """Hour, weekday, age of the ad's document, time since the user's last display."""
    hours = known["timestamp"] >> ops.LambdaOp(hour) >> ops.Rename(name="hour")
    days = known["timestamp"] >> ops.LambdaOp(weekday) >> ops.Rename(name="weekday")
    ages = known["publish_time"] >> ops.LambdaOp(age, dependency=known["timestamp"])
    ages = ages >> ops.Rename(name="age") >> ops.FillMedian()
    waits = known[SINCE_LAST] >> ops.FillMedian() >> ops.LogOp() >> ops.Rename(name="since_last")
    return hours + days + ages + waits


def make_workflow(displays: Displays) -> Workflow:
    """Time, how often each ad and page was shown, and past clicks of single and paired columns."""
    known = joined_columns(displays)
    counts = known[["ad_id", "campaign_id", "document_id"]] >> ops.JoinGroupby(stats=["count"])
    past = [
        known["ad_id", "campaign_id", "advertiser_id"],
        [known["campaign_id"], known["platform"]],
        [known["page_category"], known["ad_category"]],
    ] >> ops.TargetEncoding(LABEL, kfold=5, p_smooth=20)
    numbers = time_columns(known) + (counts >> ops.FillMissing() >> ops.LogOp()) + past
    return Workflow((numbers >> ops.Normalize(out_dtype="float32")) + [LABEL])


# %% [markdown]
# A small network, on any of the columns.


# %%
def make_loader(data: Dataset, columns: list[str], batch_size: int, *, shuffle: bool):
    """Batches ``(None, x, y)``: numbers only, no categories."""
    return TorchAsyncItr(
        data, conts=columns, labels=[LABEL], batch_size=batch_size, shuffle=shuffle
    )


def train(loader: TorchAsyncItr, width: int, epochs: int, label: str) -> nn.Module:
    """Train from the same beginning."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1)).to(loader.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for _, x, y in with_bar(loader, f"{label}, epoch {epoch + 1}"):
            loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@torch.no_grad()
def area(model: nn.Module, loader: TorchAsyncItr) -> float:
    """How well clicks are told from the rest."""
    scored = [(model(x)[:, 0].cpu(), y.cpu()) for _, x, y in loader]
    return auc(torch.cat([s for s, _ in scored]), torch.cat([y for _, y in scored]))


# %% [markdown]
# ``fit_transform`` encodes training rows by folds. ``transform`` of the same rows is what new rows
# get, and tells each training row its own label: that is the wrong way.


# %%
def write_features(displays: Displays, folder: Path, clock: Clock) -> None:
    """The training rows in both ways, and the rows to validate with."""
    workflow, rows = make_workflow(displays), displays.train.num_rows
    train = clock.time("fit", rows, lambda: workflow.fit_transform(displays.train))
    parts = {
        "by folds": train,
        "wrong": workflow.transform(displays.train),
        "valid": workflow.transform(displays.valid),
    }
    for name, part in parts.items():
        rows = part.num_rows
        clock.time(f"write {name}", rows, lambda p=part, n=name: p.to_parquet(folder / n))


def compare(folder: Path, batch_size: int, epochs: int) -> dict[str, tuple[float, float]]:
    """The AUC of each way, on rows it was trained on and on later ones."""
    columns = [n for n in Dataset(folder / "valid").column_names if n != LABEL]
    others = [n for n in columns if not n.startswith("TE_")]
    ways = {
        "no target encoding": ("by folds", others),
        "target encoding": ("by folds", columns),
        "without folds": ("wrong", columns),
    }
    found = {}
    for name, (part, chosen) in ways.items():
        rows, later = Dataset(folder / part), Dataset(folder / "valid")
        loader = make_loader(rows, chosen, batch_size, shuffle=True)
        model = train(loader, len(chosen), epochs, name)
        again = [make_loader(d, chosen, 4 * batch_size, shuffle=False) for d in (rows, later)]
        found[name] = (area(model, again[0]), area(model, again[1]))
    return found


def alone(folder: Path) -> dict[str, float]:
    """The AUC of each feature by itself, on later rows; 0.5 says nothing."""
    data = Dataset(folder / "valid").to_polars()
    return {n: auc(data[n], data[LABEL]) for n in data.columns if n != LABEL}


# %%
def main() -> None:
    """Make features, train in three ways, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder with the Outbrain CSV files")
    parser.add_argument("--displays", type=int, default=40_000, help="how many to make without")
    parser.add_argument("--folder", type=Path, default=Path("demo_data/outbrain_torch"))
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2)
    args = arguments(parser)
    fresh(args.folder)
    raw, clock = args.data or write_files(args.folder / "raw", args.displays), Clock()
    rows = Dataset(raw / "clicks_train.csv").num_rows
    displays = clock.time("join", rows, lambda: open_displays(raw, args.folder))
    write_features(displays, args.folder, clock)
    found = compare(args.folder, args.batch_size, args.epochs)
    clock.show("Features")
    told = [(name, f"{seen:.3f}", f"{later:.3f}") for name, (seen, later) in found.items()]
    table("AUC", ("features", "rows trained on", "later rows"), told)
    if args.data is None:
        print("Clicks that are made up know nothing of hours and days; real ones do.")
    show(found, alone(args.folder), args.folder / "target_encoding.png")


def show(found: dict[str, tuple[float, float]], single: dict[str, float], path: Path) -> None:
    """Three models beside each other, and each feature alone."""

    def paint(models, features) -> None:
        places = np.arange(len(found))
        kinds = (("rows trained on", "#c3ccd6"), ("later rows", "#2f6db5"))
        for i, (name, colour) in enumerate(kinds):
            heights = [both[i] for both in found.values()]
            bars = models.bar(places + 0.38 * i, heights, 0.36, color=colour, label=name)
            models.bar_label(bars, fmt="%.3f", fontsize=8)
        models.set_xticks(places + 0.19, [n.replace(" ", "\n", 1) for n in found])
        models.set_ylim(0.5, 1)
        models.set_ylabel("AUC")
        models.legend(frameon=False, loc="upper left")
        models.set_title("Three ways to train", loc="left")
        names = sorted(single, key=lambda n: single[n])
        colours = ["#2f6db5" if n.startswith("TE_") else "#9aa5b1" for n in names]
        features.barh(names, [single[n] - 0.5 for n in names], left=0.5, color=colours)
        features.set_xlabel("AUC on later rows")
        features.set_title("Each feature alone", loc="left")

    draw(path, (10, 4.2), paint, panels=2)


# %%
if __name__ == "__main__":
    main()
