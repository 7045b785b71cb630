# %% [markdown]
"""Click logs in fastai: its `TabularModel` and `Learner`, fed by tabfeed.

fastai's own data loaders keep the whole table in memory. Here `TabularDataLoaders` takes two
`DLDataLoader`, which read ahead from files of any size; all else is as fastai's users know it.

    python examples/criteo_fastai.py
    python examples/criteo_fastai.py --data criteo/raw --batch-size 65536 --folder features
"""

# %%
from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, Clicks, options, prepare, tell_speed
from fastai.basics import Learner
from fastai.callback.progress import ProgressCallback
from fastai.metrics import APScoreBinary, RocAucBinary
from fastai.optimizer import OptimWrapper
from fastai.tabular.data import TabularDataLoaders
from fastai.tabular.model import TabularModel
from showing import arguments, on_screen

from tabfeed import Dataset
from tabfeed.loader.torch import DLDataLoader, TorchAsyncItr

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


# %%
def whole_labels(batch: Batch) -> Batch:
    """The loss for two classes wants labels as whole numbers."""
    x_cat, x_cont, y = batch
    return x_cat, x_cont, y.long()


def make_batches(data: Dataset, batch_size: int, *, shuffle: bool) -> TorchAsyncItr:
    """Batches on the GPU where there is one."""
    return TorchAsyncItr(
        data,
        cats=CATEGORICAL,
        conts=CONTINUOUS,
        labels=[LABEL],
        batch_size=batch_size,
        shuffle=shuffle,
        parts_per_chunk=2,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


# %%
def make_learner(clicks: Clicks, train: TorchAsyncItr, valid: TorchAsyncItr) -> Any:
    """A model with a table of embeddings for each category, and what it is judged by.

    On a GPU its optimiser is one kernel for all tables (``fused=True``).
    """
    loaders = [DLDataLoader(batches, collate_fn=whole_labels) for batches in (train, valid)]
    model = TabularModel(clicks.sizes, n_cont=len(CONTINUOUS), out_sz=2, layers=[128, 64])
    return Learner(
        TabularDataLoaders(*loaders),
        model.to(loaders[0].device),
        loss_func=torch.nn.CrossEntropyLoss(),
        opt_func=partial(OptimWrapper, opt=torch.optim.Adam, fused=torch.cuda.is_available()),
        metrics=[RocAucBinary(), APScoreBinary()],
    )


# %%
def main() -> None:
    """Make features, train, and say what came of it."""
    args = arguments(options(__doc__.splitlines()[0], "criteo_fastai"))
    clicks = prepare(args)
    torch.manual_seed(0)
    train = make_batches(clicks.train, args.batch_size, shuffle=True)
    valid = make_batches(clicks.valid, 4 * args.batch_size, shuffle=False)
    learner = make_learner(clicks, train, valid)
    if not on_screen():
        learner.remove_cb(ProgressCallback)
    start = time.perf_counter()
    with learner.no_logging():
        learner.fit(args.epochs, 3e-3)
    seconds = time.perf_counter() - start
    for epoch, (loss, _, area, precision) in enumerate(learner.recorder.values):
        print(f"epoch {epoch}: loss {loss:.4f}, AUC {area:.4f}, average precision {precision:.4f}")
    rows = train.num_rows_processed + valid.num_rows_processed
    tell_speed(seconds, rows, args.epochs)


# %%
if __name__ == "__main__":
    main()
