# %% [markdown]
"""Click logs in PyTorch: files to features, features to a model, in a training loop of your own.

`TorchAsyncItr` reads the files in the background and gives shuffled batches ``(x_cat, x_cont, y)``;
`DLDataLoader` makes a torch `DataLoader` of it, for code that wants one. The validation data takes
the same way.

    python examples/criteo_torch.py
    python examples/criteo_torch.py --data criteo/raw --batch-size 65536 --folder features
"""

# %%
from __future__ import annotations

import time

import torch
from click_model import ClickModel
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, auc, options, prepare, tell_speed
from showing import arguments, with_bar
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

from tabfeed import Dataset
from tabfeed.loader.torch import DLDataLoader, TorchAsyncItr


# %%
def make_loader(data: Dataset, batch_size: int, device: str, *, shuffle: bool) -> DLDataLoader:
    """Batches on the device where the model is."""
    batches = TorchAsyncItr(
        data,
        cats=CATEGORICAL,
        conts=CONTINUOUS,
        labels=[LABEL],
        batch_size=batch_size,
        shuffle=shuffle,
        device=device,
    )
    return DLDataLoader(batches, batch_size=None, pin_memory=False, num_workers=0)


# %%
def train(model: torch.nn.Module, loader: DLDataLoader, optimizer: torch.optim.Optimizer) -> float:
    """One pass over the data; the mean loss of its last tenth."""
    losses = []
    for x_cat, x_cont, y in with_bar(loader, "train"):
        loss = loss_of(model(x_cat, x_cont), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses[-max(1, len(losses) // 10) :]).mean())


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: DLDataLoader) -> float:
    """The AUC on rows that the model has not seen."""
    scored = [(model(x_cat, x_cont).cpu(), y.cpu()) for x_cat, x_cont, y in loader]
    return auc(torch.cat([s for s, _ in scored]), torch.cat([y for _, y in scored]))


# %%
def main() -> None:
    """Make features, train, and say what came of it."""
    args = arguments(options(__doc__.splitlines()[0], "criteo_torch"))
    clicks = prepare(args)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ClickModel(clicks.sizes, len(CONTINUOUS)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=device == "cuda")
    train_loader = make_loader(clicks.train, args.batch_size, device, shuffle=True)
    valid_loader = make_loader(clicks.valid, 4 * args.batch_size, device, shuffle=False)
    print(f"{len(train_loader)} batches of {args.batch_size} rows an epoch, on {device}")
    seconds = 0.0
    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss = train(model, train_loader, optimizer)
        seconds += time.perf_counter() - start
        print(f"epoch {epoch}: loss {loss:.4f}, AUC {evaluate(model, valid_loader):.4f}")
    batches: TorchAsyncItr = train_loader.dataset  # type: ignore[assignment]
    tell_speed(seconds, batches.num_rows_processed, args.epochs)


# %%
if __name__ == "__main__":
    main()
