# %% [markdown]
"""Film ratings in PyTorch: ids, and a list of genres for each film ("multi-hot").

A film has any number of genres. The loader gives such a column as two tensors, all values of the
batch one after the other (``genres__values``) and where each row begins (``genres__offsets``),
which is what `torch.nn.EmbeddingBag` takes: nothing is padded. The same model is trained with the
genres and without; the figure shows what they add for rare films and for frequent ones.

    python examples/movielens_torch.py
    python examples/movielens_torch.py --data ml-25m --batch-size 16384
"""

# %%
from __future__ import annotations

import numpy as np
import torch
from movielens_data import IDS, LABEL, LISTS, open_films, options, prepare
from showing import Clock, arguments, draw, fresh, table, with_bar
from torch import nn

from tabfeed import Dataset, Workflow, ops
from tabfeed.loader.torch import Loader

WIDTH = 16

# %% [markdown]
# The model: a vector and a bias for each user and film. A film's vector is its own, plus the mean
# of the vectors of its genres; so a film hardly ever rated is still known by its genres.


# %%
class Ratings(nn.Module):
    """The mean rating, what user and film add to it, and how well they go together."""

    def __init__(self, workflow: Workflow, mean: float, *, genres: bool) -> None:
        super().__init__()
        single, several = ops.get_embedding_sizes(workflow)
        self.vectors = nn.ModuleDict({n: nn.Embedding(single[n][0], WIDTH) for n in IDS})
        self.biases = nn.ModuleDict({n: nn.Embedding(single[n][0], 1) for n in IDS})
        self.genres = (
            nn.EmbeddingBag(several["genres"][0], WIDTH, mode="mean", include_last_offset=True)
            if genres
            else None
        )
        self.mean = mean
        for part in [*self.vectors.values(), *([self.genres] if self.genres else [])]:
            nn.init.normal_(part.weight, std=0.05)
        for part in self.biases.values():
            nn.init.zeros_(part.weight)

    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        """The rating expected of each row."""
        user, film = (self.vectors[n](x[n]) for n in IDS)
        if self.genres is not None:
            film = film + self.genres(x["genres__values"], x["genres__offsets"])
        own = self.biases["userId"](x["userId"]) + self.biases["movieId"](x["movieId"])
        return self.mean + own.squeeze(1) + (user * film).sum(1)


# %% [markdown]
# The loader finds by itself that ``genres`` holds lists.


# %%
def make_loader(data: Dataset, batch_size: int, *, shuffle: bool) -> Loader:
    """Batches ``({userId, movieId, genres__values, genres__offsets}, rating)``."""
    return Loader(data, batch_size, shuffle=shuffle, columns=[*IDS, *LISTS], targets=[LABEL])


def train(model: nn.Module, loader: Loader, epochs: int, label: str) -> None:
    """Some epochs of least squares. Few ratings for many numbers: weights are kept small."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.05)
    for epoch in range(epochs):
        for x, rating in with_bar(loader, f"{label}, epoch {epoch + 1}"):
            loss = nn.functional.mse_loss(model(x), rating)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def errors(model: nn.Module, loader: Loader) -> tuple[np.ndarray, np.ndarray]:
    """Of each row not trained on: the square of the error, and the film."""
    found = [((model(x) - y).square().cpu(), x["movieId"].cpu()) for x, y in loader]
    return tuple(torch.cat(part).numpy() for part in zip(*found, strict=True))


# %% [markdown]
# `Categorify` gives ids by frequency, the film rated most often first. So sorting by id sorts by
# how often a film was rated.


# %%
def by_frequency(square: np.ndarray, film: np.ndarray, groups: int = 5) -> list[float]:
    """The root mean square error in groups of equally many ratings, rare films first."""
    order = np.argsort(-film, kind="stable")
    return [float(np.sqrt(part.mean())) for part in np.array_split(square[order], groups)]


# %%
def main() -> None:
    """Make features, train with and without genres, compare."""
    parser = options(__doc__.splitlines()[0], "movielens_torch", rows=200_000)
    parser.set_defaults(epochs=3)
    args = arguments(parser)
    fresh(args.folder)
    films, clock = open_films(args), Clock()
    rows = films.train.num_rows
    workflow = clock.time("features", rows, lambda: prepare(films, args.folder))
    loader = make_loader(Dataset(args.folder / "train"), args.batch_size, shuffle=True)
    valid = make_loader(Dataset(args.folder / "valid"), 4 * args.batch_size, shuffle=False)
    x, _ = loader.peek()
    print("A batch:", {name: tuple(tensor.shape) for name, tensor in x.items()})
    ratings = Dataset(args.folder / "train").select([LABEL]).to_arrow().column(LABEL).to_numpy()
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # the first one imports much: not timed
    found = {}
    for name, genres in (("without genres", False), ("with genres", True)):
        torch.manual_seed(0)
        model = Ratings(workflow, float(ratings.mean()), genres=genres).to(loader.device)
        seen = rows * args.epochs
        clock.time(name, seen, lambda m=model, n=name: train(m, loader, args.epochs, n))
        found[name] = errors(model, valid)
    clock.show(f"{args.epochs} epochs of {len(loader)} batches")
    tell(found, float(np.std(ratings)))
    draw_groups({n: by_frequency(*told) for n, told in found.items()}, args.folder / "genres.png")


def tell(found: dict[str, tuple[np.ndarray, np.ndarray]], mean: float) -> None:
    """The error of both models, beside that of always saying the mean."""
    rows = [(name, f"{np.sqrt(square.mean()):.4f}") for name, (square, _) in found.items()]
    table("Stars off, on other ratings (RMSE)", ("model", "RMSE"), [("mean", f"{mean:.4f}"), *rows])


def draw_groups(found: dict[str, list[float]], path) -> None:
    """The error for rare films and for frequent ones."""

    def paint(panel) -> None:
        for name, colour in zip(found, ("#9aa5b1", "#2f6db5"), strict=True):
            panel.plot(range(1, len(found[name]) + 1), found[name], "o-", color=colour, label=name)
        panel.set_xticks([1, 3, 5], ["rarest fifth", "middle", "most frequent fifth"])
        panel.set_xlabel("ratings, by how often their film was rated")
        panel.set_ylabel("root mean square error")
        panel.legend(frameon=False)
        panel.set_title("Stars off, with and without genres", loc="left")

    draw(path, (6.4, 3.6), paint)


# %%
if __name__ == "__main__":
    main()
