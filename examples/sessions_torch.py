# %% [markdown]
"""Sessions in PyTorch: clicks become sequences, and a GRU says which item comes next.

Clicks lie in a file one by one. `Groupby` brings those of a session together, in order of time,
however large the file is, and makes one row of each session, with a list of items. The loader
gives such lists in the form a model wants: ``lists="padded"`` here, with a mask of what is real;
``"nested"`` and values with offsets are the others. The model is measured by how often the item
that came next is among its first k, on a day it has not seen.

    python examples/sessions_torch.py
    python examples/sessions_torch.py --data yoochoose-clicks.dat --batch-size 128
"""

# %%
from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl
import torch
from sessions_data import open_clicks, write_clicks
from showing import Clock, arguments, draw, fresh, table, with_bar
from torch import nn

from tabfeed import Dataset, Workflow, ops
from tabfeed.loader.torch import Loader

ITEMS = "item_id_list"
LONGEST = 20
FIRST_ITEM = 3  # ids before it: padding, missing, never seen

# %% [markdown]
# Features: ids for the items, then one row a session, its last items only. Sessions of one click
# have nothing to predict and are left out.


# %%
def long_enough(sessions: pl.DataFrame) -> pl.Series:
    """Sessions of two clicks or more."""
    return sessions[ITEMS].list.len() >= 2


def make_workflow() -> Workflow:
    """Clicks to sequences of ids."""
    clicks = (["item_id"] >> ops.Categorify(freq_threshold=2)) + ["session_id", "timestamp"]
    sessions = clicks >> ops.Groupby(
        "session_id", sort_cols="timestamp", aggs={"item_id": "list", "timestamp": "last"}
    )
    kept = sessions >> ops.Filter(long_enough)
    return Workflow(kept[ITEMS] >> ops.ListSlice(-LONGEST))


# %% [markdown]
# The model reads a session from left to right. After each click it scores every item.


# %%
class NextItem(nn.Module):
    """A GRU over the items; an item's score is the product of its vector with the state."""

    def __init__(self, items: int, width: int = 64) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width, padding_idx=0)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(items))
        nn.init.normal_(self.items.weight, std=width**-0.5)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """The scores of all items after each click: (sessions, clicks, items)."""
        states, _ = self.gru(self.items(items))
        return states @ self.items.weight.T + self.bias


def train(model: nn.Module, loader: Loader, epochs: int) -> None:
    """Each click is to be told from those before it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        losses = []
        for x, _ in with_bar(loader, f"epoch {epoch + 1}"):
            items, real = x[ITEMS], x[f"{ITEMS}__mask"][:, 1:]
            scores = model(items[:, :-1])[real]
            loss = nn.functional.cross_entropy(scores, items[:, 1:][real])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}")


# %% [markdown]
# Two guesses to compare with. The most popular items: ids are by frequency, so these are the first
# ones. And what most often followed the last item: a table of pairs.


# %%
def last_clicks(loader: Loader) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The sessions without their last clicks, and these."""
    before, last = [], []
    for x, _ in loader:
        lengths = x[f"{ITEMS}__mask"].sum(1)
        before += [row[: n - 1] for row, n in zip(x[ITEMS], lengths.tolist(), strict=True)]
        last.append(x[ITEMS].gather(1, lengths[:, None] - 1)[:, 0])
    return before, torch.cat(last)


@torch.no_grad()
def by_model(model: nn.Module, before: list[torch.Tensor], k: int) -> torch.Tensor:
    """The model's best k for each session."""
    found = []
    for start in range(0, len(before), 256):
        part = before[start : start + 256]
        padded = nn.utils.rnn.pad_sequence(part, batch_first=True)
        ends = torch.tensor([len(row) - 1 for row in part], device=padded.device)
        scores = model(padded)[torch.arange(len(part), device=padded.device), ends]
        scores[:, :FIRST_ITEM] = -torch.inf
        found.append(scores.topk(k).indices)
    return torch.cat(found)


def by_last_click(train: Loader, before: list[torch.Tensor], items: int, k: int) -> torch.Tensor:
    """What followed each session's last item most often; popular items where that is unknown."""
    followed = torch.zeros(items, items, device=train.device)
    for x, _ in train:
        pairs = torch.stack([x[ITEMS][:, :-1], x[ITEMS][:, 1:]])[:, x[f"{ITEMS}__mask"][:, 1:]]
        followed.index_put_((pairs[0], pairs[1]), followed.new_ones(()), accumulate=True)
    followed -= torch.arange(items, device=train.device) / items  # the more popular one of two
    followed[:, :FIRST_ITEM] = -torch.inf
    return followed[torch.stack([row[-1] for row in before])].topk(k).indices


def hit_rates(found: torch.Tensor, last: torch.Tensor) -> np.ndarray:
    """How often the item that came is among the first 1, 2, ... guesses."""
    known = (found == last[:, None]) & (last[:, None] >= FIRST_ITEM)
    return known.float().cumsum(1).mean(0).cpu().numpy()


# %%
def main() -> None:
    """Make sequences, train, compare."""
    args = arguments(make_parser())
    fresh(args.folder)
    raw = args.data or write_clicks(args.folder / "clicks.dat", args.sessions)
    clicks, clock, workflow = open_clicks(raw), Clock(), make_workflow()
    rows = clicks[0].num_rows
    clock.time("fit", rows, lambda: workflow.fit(clicks[0]))
    paths = [args.folder / "train", args.folder / "valid"]
    for path, part in zip(paths, clicks, strict=True):
        work = workflow.transform(part)
        clock.time(
            f"sequences to {path.name}", part.num_rows, lambda w=work, p=path: w.to_parquet(p)
        )
    train_loader, valid_loader = (
        Loader(Dataset(path), args.batch_size, shuffle=path.name == "train", lists="padded")
        for path in paths
    )
    items = workflow.output_schema[ITEMS].embedding_size[0]
    print(f"{Dataset(paths[0]).num_rows:,} sessions of {items - FIRST_ITEM:,} items to train on")
    torch.manual_seed(0)
    model = NextItem(items).to(train_loader.device)
    clock.time("train", rows * args.epochs, lambda: train(model, train_loader, args.epochs))
    clock.show("Clicks, and how long they took")
    before, last = last_clicks(valid_loader)
    tell(
        {
            "most popular": hit_rates(popular(last, args.k), last),
            "most often next": hit_rates(by_last_click(train_loader, before, items, args.k), last),
            "GRU": hit_rates(by_model(model, before, args.k), last),
        },
        args.folder / "hit_rate.png",
    )


def make_parser() -> argparse.ArgumentParser:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a file such as yoochoose-clicks.dat")
    parser.add_argument("--sessions", type=int, default=20_000, help="how many to make without")
    parser.add_argument("--folder", type=Path, default=Path("demo_data/sessions_torch"))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--k", type=int, default=20, help="how many guesses count")
    return parser


def popular(last: torch.Tensor, k: int) -> torch.Tensor:
    """The k most frequent items, for every session."""
    return torch.arange(FIRST_ITEM, FIRST_ITEM + k, device=last.device).expand(len(last), k)


def tell(rates: dict[str, np.ndarray], path: Path) -> None:
    """The hit rates, as a table and as curves."""
    ks = [k for k in (1, 5, 10, 20, 50) if k <= len(next(iter(rates.values())))]
    rows = [(name, *(f"{found[k - 1]:.1%}" for k in ks)) for name, found in rates.items()]
    table("The next item was among the first ...", ("guess", *map(str, ks)), rows)

    def paint(panel) -> None:
        for (name, found), colour in zip(
            rates.items(), ("#9aa5b1", "#d08a2e", "#2f6db5"), strict=True
        ):
            panel.plot(range(1, len(found) + 1), 100 * found, "o-", ms=3, color=colour, label=name)
        panel.set_xticks([k for k in range(1, 1 + len(found)) if k == 1 or k % 5 == 0])
        panel.set_xlabel("guesses that count")
        panel.set_ylabel("next item among them, %")
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False)
        panel.set_title("Which item comes next?", loc="left")

    draw(path, (6.4, 3.6), paint)


# %%
if __name__ == "__main__":
    main()
