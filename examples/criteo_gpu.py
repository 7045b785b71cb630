# %% [markdown]
"""Click logs on a GPU, as fast as it goes: one table, sparse gradients, steps launched at once.

A small model keeps a GPU busy for two or three milliseconds a step, and Python takes about as long
to launch its kernels one by one. So all embeddings are one table, whose gradients are those of the
rows that were looked up, and the step is captured as a CUDA graph. That needs every batch at the
same address, which is what ``static_batch=True`` gives. Without a GPU the same steps are taken one
kernel after the other.

    python examples/criteo_gpu.py
    python examples/criteo_gpu.py --data criteo/raw --batch-size 65536 --folder features
"""

# %%
from __future__ import annotations

import time
from collections.abc import Callable

import torch
from click_model import OneTableModel
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, auc, options, prepare, tell_speed
from showing import arguments, with_bar
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Step = Callable[[Batch], torch.Tensor]


# %%
def make_loader(data: Dataset, batch_size: int, device: str, *, train: bool) -> TorchAsyncItr:
    """Batches on the device; those to train on are full, and come in the same tensors."""
    return TorchAsyncItr(
        data,
        cats=CATEGORICAL,
        conts=CONTINUOUS,
        labels=[LABEL],
        batch_size=batch_size,
        shuffle=train,
        drop_last=train,
        static_batch=train,
        device=device,
    )


# %%
def make_step(model: torch.nn.Module, learning_rate: float) -> Step:
    """One step of training; gives the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)

    def step(batch: Batch) -> torch.Tensor:
        x_cat, x_cont, y = batch
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x_cat, x_cont), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Captured:
    """A step as a CUDA graph; batches must come in the same tensors.

    Parameters
    ----------
    step
        What to capture.
    before
        How many steps to take without a graph: what is only done once is not to be in it.
    """

    def __init__(self, step: Step, before: int = 3) -> None:
        self._step, self._before = step, before
        self._beside = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss = torch.zeros(())

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Take the step; the loss is in the same tensor each time."""
        if self._before:
            self._before -= 1
            return self._take_beside(batch)
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            # The loader works on meanwhile: only what this thread does is captured.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._loss = self._step(batch)
        self._graph.replay()
        return self._loss

    def _take_beside(self, batch: Batch) -> torch.Tensor:
        """On another stream, as torch wants it before a capture."""
        now = torch.cuda.current_stream()
        self._beside.wait_stream(now)
        with torch.cuda.stream(self._beside):
            loss = self._step(batch)
        now.wait_stream(self._beside)
        return loss


# %%
def train(step: Step, loader: TorchAsyncItr) -> float:
    """One pass over the data; the mean loss of its last tenth."""
    losses = [step(batch).clone() for batch in with_bar(loader, "train")]
    return float(torch.stack(losses[-max(1, len(losses) // 10) :]).mean())


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: TorchAsyncItr) -> float:
    """The AUC on rows that the model has not seen."""
    scored = [(model(x_cat, x_cont).cpu(), y.cpu()) for x_cat, x_cont, y in loader]
    return auc(torch.cat([s for s, _ in scored]), torch.cat([y for _, y in scored]))


# %%
def main() -> None:
    """Make features, train, and say what came of it."""
    parser = options(__doc__.splitlines()[0], "criteo_gpu")
    parser.add_argument("--learning-rate", type=float, default=0.5)
    args = arguments(parser)
    clicks = prepare(args)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = OneTableModel([rows for rows, _ in clicks.sizes], len(CONTINUOUS)).to(device)
    step = make_step(model, args.learning_rate)
    if device == "cuda":
        step = Captured(step)
    train_loader = make_loader(clicks.train, args.batch_size, device, train=True)
    valid_loader = make_loader(clicks.valid, 4 * args.batch_size, device, train=False)
    print(f"{len(train_loader)} batches of {args.batch_size} rows an epoch, on {device}")
    seconds = 0.0
    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss = train(step, train_loader)
        seconds += time.perf_counter() - start
        print(f"epoch {epoch}: loss {loss:.4f}, AUC {evaluate(model, valid_loader):.4f}")
    print(f"read by {train_loader.reader_choice}")
    tell_speed(seconds, train_loader.num_rows_processed, args.epochs)


# %%
if __name__ == "__main__":
    main()
