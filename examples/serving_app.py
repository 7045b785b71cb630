"""A web service that scores raw clicks: a saved workflow, a saved model, FastAPI.

    python examples/serving_app.py demo_data/serving --port 8000
    curl -X POST localhost:8000/score -H 'content-type: application/json' -d '{"I1": 3, ...}'

`serving.py` makes the folder, starts this, and measures it.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import uvicorn
from click_model import ClickModel
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL
from fastapi import FastAPI, HTTPException, Response

from tabfeed import Workflow
from tabfeed.errors import TabfeedError

Row = dict[str, Any]
CATEGORIES = sorted(CATEGORICAL)  # the order in which the model was given them


class Scorer:
    """Raw rows to the probability of a click.

    Parameters
    ----------
    folder
        Holds ``workflow``, ``model.json`` and ``model.pt``.
    """

    def __init__(self, folder: Path) -> None:
        # A row to be scored has no label yet.
        self.workflow = Workflow.load(folder / "workflow").remove_inputs([LABEL])
        self.model = ClickModel(json.loads((folder / "model.json").read_text()), len(CONTINUOUS))
        self.model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
        self.model.eval()
        self.schema = self.workflow.input_schema.to_arrow()

    def features(self, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the model takes. One row goes a shorter way than a table."""
        if len(rows) == 1:
            row = self.workflow.transform(rows[0])
            return (
                torch.tensor([[row[n] for n in CATEGORIES]]),
                torch.tensor([[row[n] for n in CONTINUOUS]], dtype=torch.float32),
            )
        table = self.workflow.transform(pa.Table.from_pylist(rows, self.schema))
        cats, conts = (
            torch.from_numpy(np.stack([table.column(n).to_numpy() for n in names], 1))
            for names in (CATEGORIES, CONTINUOUS)
        )
        return cats, conts

    def score(self, rows: list[Row]) -> tuple[list[float], dict[str, float]]:
        """Probabilities, and how many milliseconds each part took."""
        start = time.perf_counter()
        features = self.features(rows)
        made = time.perf_counter()
        with torch.inference_mode():
            scores = torch.sigmoid(self.model(*features)).tolist()
        done = time.perf_counter()
        return scores, {"workflow": 1e3 * (made - start), "model": 1e3 * (done - made)}


def make_app(folder: Path) -> FastAPI:
    """The service. Scoring takes a millisecond, less than handing it to a thread is worth."""
    app, scorer = FastAPI(title="Clicks"), Scorer(folder)

    def answer(rows: list[Row], response: Response) -> list[float]:
        try:
            scores, took = scorer.score(rows)
        except (TabfeedError, pa.ArrowInvalid, pa.ArrowTypeError) as e:
            raise HTTPException(422, str(e)) from e
        response.headers["Server-Timing"] = ", ".join(f"{n};dur={t:.4f}" for n, t in took.items())
        return scores

    @app.post("/score")
    async def score(row: Row, response: Response) -> dict[str, float]:
        return {"click": answer([row], response)[0]}

    @app.post("/scores")
    async def scores(rows: list[Row], response: Response) -> dict[str, list[float]]:
        return {"clicks": answer(rows, response) if rows else []}

    return app


def main() -> None:
    """Serve until stopped; port 0 takes one that is free."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    torch.set_num_threads(1)  # for one row, more threads only wait for each other
    app = make_app(args.folder)
    with socket.create_server(("127.0.0.1", args.port)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
