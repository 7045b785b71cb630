# %% [markdown]
"""Serving: a saved workflow and a saved model behind a web service, and how fast it answers.

What turned raw rows into features for training must do the same for every request, or the model
sees something it was not trained on. A fitted workflow is saved as JSON and Parquet and loaded by
the server (`serving_app.py`), which needs neither the training data nor the training code. This
example trains a model, starts the server in a process of its own, checks that it answers as the
loader's batches would have it, and measures requests over the loopback interface.

    python examples/serving.py
    python examples/serving.py --data criteo/raw --requests 5000
"""

# %%
from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from click_model import ClickModel
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, Clicks, auc, options, prepare, raw_parts
from showing import arguments, draw, table, with_bar
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

from tabfeed import Dataset
from tabfeed.display import progress
from tabfeed.loader.torch import TorchAsyncItr

APP = Path(sys.modules["click_model"].__file__).with_name("serving_app.py")
START_SECONDS = 120

# %% [markdown]
# Train, and save the model beside its workflow: two files, no pickled code.


# %%
def make_loader(data: Dataset, batch_size: int, *, shuffle: bool) -> TorchAsyncItr:
    """Batches ``(x_cat, x_cont, y)``."""
    columns = {"cats": CATEGORICAL, "conts": CONTINUOUS, "labels": [LABEL]}
    return TorchAsyncItr(data, batch_size=batch_size, shuffle=shuffle, device="cpu", **columns)


def train(clicks: Clicks, batch_size: int, epochs: int) -> ClickModel:
    """A model of clicks."""
    torch.manual_seed(0)
    model = ClickModel(clicks.sizes, len(CONTINUOUS))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        loader = make_loader(clicks.train, batch_size, shuffle=True)
        for x_cat, x_cont, y in with_bar(loader, f"epoch {epoch + 1}"):
            loss = loss_of(model(x_cat, x_cont), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def save(model: ClickModel, clicks: Clicks, folder: Path) -> None:
    """The sizes of the tables, and the weights."""
    (folder / "model.json").write_text(json.dumps(clicks.sizes))
    torch.save(model.state_dict(), folder / "model.pt")


@torch.no_grad()
def batch_scores(model: ClickModel, clicks: Clicks) -> tuple[np.ndarray, np.ndarray]:
    """What the loader's batches give: the probability of a click, and whether there was one."""
    loader = make_loader(clicks.valid, 4_096, shuffle=False)
    found = [(torch.sigmoid(model(x_cat, x_cont)), y) for x_cat, x_cont, y in loader]
    return tuple(torch.cat(part).numpy() for part in zip(*found, strict=True))


# %% [markdown]
# The server, in a process of its own.


# %%
@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Start the server, give its address, and stop it."""
    command = [sys.executable, str(APP), str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    late = threading.Timer(START_SECONDS, server.kill)
    late.start()
    try:
        address = server.stdout.readline().strip()
        late.cancel()
        if not address:
            raise SystemExit(f"the server did not start; it ended with status {server.wait()}")
        yield address
    finally:
        late.cancel()
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


# %% [markdown]
# Requests: each with the raw row as JSON. The server says in a header how long workflow and model
# took; the rest is HTTP, JSON and the network.


# %%
def ask(client: httpx.Client, path: str, body: Any) -> tuple[Any, dict[str, float]]:
    """One request: the answer, and milliseconds by part."""
    start = time.perf_counter()
    response = client.post(path, json=body)
    total = 1e3 * (time.perf_counter() - start)
    response.raise_for_status()
    parts = re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"])
    return response.json(), {name: float(took) for name, took in parts} | {"total": total}


def one_by_one(client: httpx.Client, rows: list[Any], count: int) -> tuple[list[float], list[Any]]:
    """Single rows, one request after the other: scores and times."""
    for row in rows[:50]:
        ask(client, "/score", row)  # the first ones open the connection and fill caches
    scores, times = [], []
    with progress("requests", count, unit="requests") as bar:
        for i in range(count):
            answer, took = ask(client, "/score", rows[i % len(rows)])
            scores.append(answer["click"])
            times.append(took)
            bar.advance()
    return scores, times


def in_parallel(
    client: httpx.Client, rows: list[Any], count: int, clients: int
) -> tuple[Any, float]:
    """The same from several clients at once: times, and requests a second."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        asked = pool.map(lambda i: ask(client, "/score", rows[i % len(rows)])[1], range(count))
        times = list(asked)
    return times, count / (time.perf_counter() - start)


def in_tables(client: httpx.Client, rows: list[Any], size: int, count: int) -> list[Any]:
    """Many rows in each request."""
    many = [rows[i % len(rows)] for i in range(size)]
    ask(client, "/scores", many)
    return [ask(client, "/scores", many)[1] for _ in range(count)]


# %%
def main() -> None:
    """Train, serve, check, measure."""
    parser = options(__doc__.splitlines()[0], "serving")
    parser.add_argument("--requests", type=int, default=1_000)
    args = arguments(parser)
    clicks = prepare(args)
    model = train(clicks, args.batch_size, args.epochs)
    save(model, clicks, args.folder)
    expected, labels = batch_scores(model, clicks)
    print(f"AUC on other clicks: {auc(expected, labels):.4f}")
    rows = raw_rows(args)
    with served(args.folder) as address, httpx.Client(base_url=address, timeout=60) as client:
        scores, single = one_by_one(client, rows, args.requests)
        check(scores, expected)
        refuse_nonsense(client, rows[0])
        several, rate = in_parallel(client, rows, args.requests, clients=4)
        tables = in_tables(client, rows, 256, max(1, args.requests // 20))
    tell({"1 row": single, "1 row, 4 clients": several, "256 rows": tables})
    print(f"4 clients at once: {rate:,.0f} requests a second, from one server process")
    show(single, args.folder / "latency.png")


def raw_rows(args: argparse.Namespace, most: int = 500) -> list[dict[str, Any]]:
    """Raw clicks as a client would send them: without the label."""
    folder = args.folder / "raw" / "valid"
    raw = Dataset(folder) if args.data is None else raw_parts(args)[1]
    return raw.head(most).drop(LABEL).to_dicts()


def check(scores: list[float], expected: np.ndarray) -> None:
    """One row over HTTP and the same row in a batch from files must score alike."""
    count = min(len(scores), 500, len(expected))
    apart = float(np.abs(np.array(scores[:count]) - expected[:count]).max())
    print(f"{count} rows scored by the server and in batches: {apart:.1e} apart at most")
    if apart > 1e-4:
        raise SystemExit("the server scores rows otherwise than the loader's batches")


def refuse_nonsense(client: httpx.Client, row: dict[str, Any]) -> None:
    """A row that lacks a column is an error that says so, and the server lives on."""
    response = client.post("/score", json={n: v for n, v in row.items() if n != "C7"})
    print(f"A row without C7: {response.status_code}, {response.json()['detail']}")


# %%
def tell(found: dict[str, list[dict[str, float]]]) -> None:
    """Milliseconds, by kind of request."""
    rows = []
    for name, times in found.items():
        total = [t["total"] for t in times]
        medians = [np.median([t[part] for t in times]) for part in ("workflow", "model")]
        shown = [np.median(total), np.quantile(total, 0.99), *medians]
        rows.append((name, len(times), *(f"{value:.2f}" for value in shown)))
    heads = ("request", "requests", "p50, ms", "p99, ms", "workflow p50", "model p50")
    table("How long an answer takes", heads, rows)


def show(times: list[dict[str, float]], path: Path) -> None:
    """How the times of single rows spread, and what they are spent on."""
    total = np.array([t["total"] for t in times])
    parts = {n: float(np.median([t[n] for t in times])) for n in ("workflow", "model")}
    parts["HTTP and JSON"] = float(np.median(total)) - sum(parts.values())

    def paint(spread: Any, spent: Any) -> None:
        spread.hist(total, bins=80, range=(0, float(np.quantile(total, 0.995))), color="#2f6db5")
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            at = float(np.quantile(total, share))
            spread.axvline(at, color="#d08a2e")
            label = {"rotation": 90, "va": "top", "ha": "right"}
            label["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
            spread.text(at, spread.get_ylim()[1], f"{name} {at:.1f} ms", **label)
        spread.set_xlabel("milliseconds")
        spread.set_ylabel("requests")
        spread.set_title("One raw row, over HTTP", loc="left")
        bars = spent.barh(list(parts), list(parts.values()), color="#9aa5b1")
        spent.bar_label(bars, fmt=" %.2f ms")
        spent.margins(x=0.2)
        spent.invert_yaxis()
        spent.set_title("Where the median goes", loc="left")

    draw(path, (9.6, 3.4), paint, panels=2)


# %%
if __name__ == "__main__":
    main()
