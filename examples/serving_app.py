"""A web service that scores raw clicks: a saved workflow, a saved model, FastAPI.

    python examples/serving_app.py demo_data/serving --port 8000
    curl -X POST localhost:8000/score -H 'content-type: application/json' -d '{"I1": 3, ...}'
    curl localhost:8000/ready

A row that the workflow cannot take is answered with status 422 and the column's name, whether it
comes alone or among others. The tables of the workflow are read before the first request is taken.
`serving.py` makes the folder, starts this, and measures it.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import time
from pathlib import Path
from typing import Any

import torch
import uvicorn
from click_model import ClickModel
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL
from fastapi import FastAPI, HTTPException, Request, Response

from tabfeed import Workflow
from tabfeed.errors import TabfeedError

Row = dict[str, Any]
CATEGORIES = sorted(CATEGORICAL)  # the order in which the model was given them
MOST_BYTES = 1 << 20  # of a request's body


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
        # The first row reads the workflow's tables, which may take seconds.
        self.score([dict.fromkeys(self.workflow.input_schema.column_names)])

    def features(self, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the model takes. One row goes a shorter way than a table."""
        one = len(rows) == 1 and not any(isinstance(v, list) for v in rows[0].values())
        found = [self.workflow.transform(rows[0])] if one else self.workflow.transform(rows)
        return (
            torch.tensor([[row[n] for n in CATEGORIES] for row in found]),
            torch.tensor([[row[n] for n in CONTINUOUS] for row in found], dtype=torch.float32),
        )

    def score(self, rows: list[Row]) -> tuple[list[float], dict[str, float]]:
        """Probabilities, and how many milliseconds each part took."""
        start = time.perf_counter()
        features = self.features(rows)
        made = time.perf_counter()
        with torch.inference_mode():
            scores = torch.sigmoid(self.model(*features)).tolist()
        done = time.perf_counter()
        return scores, {"workflow": 1e3 * (made - start), "model": 1e3 * (done - made)}


async def read_json(request: Request) -> Any:
    """A request's body, refused while it arrives if it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"a request may have {MOST_BYTES} bytes; send fewer rows")
    try:
        return json.loads(body, parse_constant=refuse_constant, parse_float=finite)
    except (ValueError, RecursionError) as e:
        raise HTTPException(422, f"this is not JSON: {e}") from e


def refuse_constant(name: str) -> float:
    """JSON has no NaN and no Infinity, though Python reads them; a missing value is null."""
    raise ValueError(f"{name} is not JSON; send null for a missing value")


def finite(text: str) -> float:
    """1e400 would be read as infinite."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value


def make_app(folder: Path) -> FastAPI:
    """The service. Scoring takes a millisecond, less than handing it to a thread is worth."""
    app, scorer = FastAPI(title="Clicks"), Scorer(folder)

    def answer(rows: Any, response: Response) -> list[float]:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise HTTPException(422, "a row is a JSON object, {column: value}")
        if not rows:
            return []
        try:
            scores, took = scorer.score(rows)
        except TabfeedError as e:
            raise HTTPException(422, str(e)) from e
        if not all(map(math.isfinite, scores)):
            raise HTTPException(422, "a score is not finite: one of the row's values is too large")
        response.headers["Server-Timing"] = ", ".join(f"{n};dur={t:.4f}" for n, t in took.items())
        return scores

    @app.post("/score")
    async def score(request: Request, response: Response) -> dict[str, float]:
        return {"click": answer([await read_json(request)], response)[0]}

    @app.post("/scores")
    async def scores(request: Request, response: Response) -> dict[str, list[float]]:
        return {"clicks": answer(await read_json(request), response)}

    @app.get("/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

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
