"""How fast ``model.fit`` goes when fed by whom: rows a second of the Criteo model. Prints JSON.

The model is that of the Criteo notebook: 26 embeddings of 16, three dense layers of 128, SGD. The
ceiling is the same model fed by one batch that is in memory already, again and again. That flatters
the ceiling: the rows of the tables that one batch needs stay in the processor's cache. So different
batches that are in memory are measured as well. A turn is one call of ``fit``, start-up included.

Turns are short, and before and after each lies one of the ceiling; a contender's share is its rate
over the mean of these two, and of that the median over its turns. That way it means something on a
machine whose cores are now faster and now slower. Slow contenders get one turn and fewer rows.

    python benchmarks/keras_fit.py --json OUT
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy as np
import psutil
import tensorflow as tf

from benchmarks.harness.about import about, code_version
from benchmarks.keras_feeders import (
    by_hand,
    decode_only,
    in_memory,
    make_loader,
    make_model,
    records,
    tensor_slices,
    write_records,
)
from tabfeed import datagen
from tabfeed.budget import cpu_count
from tabfeed.loader.keras.tf_data import as_tensor

CEILING = "one frozen batch"
DIFFERENT = "different batches in memory"
OURS = "KerasSequenceLoader"
BY_HAND = "tf.data over Parquet, by hand"
DECODE = "pyarrow, decode only"


# -- turns ----------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """What one contender did once."""

    name: str
    rows: int
    seconds: float
    processor: float  # seconds of this process, on all cores
    others: float  # cores that other processes took meanwhile
    steps: tuple[float, ...] = ()  # seconds from the end of a step to the next one's

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    @property
    def spent(self) -> float:
        """Processor seconds a million rows."""
        return self.processor / self.rows * 1e6

    @property
    def start_up(self) -> float:
        """Seconds that it took beyond its steps, the first of which is as long as the others."""
        return self.seconds - sum(self.steps) - statistics.median(self.steps or [0])


def take_turn(name: str, work: Callable[[], tuple[int, Iterable[float]]]) -> Turn:
    """Let one contender work; `work` gives rows, and seconds of steps if there are any."""
    start, processor, busy = time.perf_counter(), time.process_time(), _busy()
    rows, steps = work()
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    others = max(0.0, _busy() - busy - processor) / seconds
    return Turn(name, rows, seconds, processor, others, tuple(steps))


def _busy() -> float:
    """Seconds that all cores worked so far, for whomever."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def shares(turns: list[Turn], reference: str) -> dict[str, list[float]]:
    """Each turn's rate over that of the reference's turns next to it, by contender."""
    found: dict[str, list[float]] = {}
    at = [i for i, turn in enumerate(turns) if turn.name == reference]
    for i, turn in enumerate(turns):
        before = [j for j in at if j < i][-1:]
        after = [j for j in at if j > i][:1]
        if turn.name != reference and before + after:
            beside = statistics.fmean(turns[j].rate for j in before + after)
            found.setdefault(turn.name, []).append(round(turn.rate / beside, 3))
    return found


def medians(
    turns: list[Turn], what: Callable[[Turn], float], digits: int | None = 3
) -> dict[str, float]:
    """The median of something, by contender."""
    names = dict.fromkeys(turn.name for turn in turns)
    return {
        name: round(statistics.median(what(turn) for turn in turns if turn.name == name), digits)
        for name in names
    }


def report(turns: list[Turn], reference: str) -> dict[str, Any]:
    """What all turns have in common."""
    found = shares(turns, reference)
    return {
        "rows a second": medians(turns, lambda turn: turn.rate, None),
        f"share of: {reference}": {n: round(statistics.median(s), 3) for n, s in found.items()},
        "shares, turn by turn": found,
        "processor seconds a million rows": medians(turns, lambda turn: turn.spent),
        "cores that other processes took": round(statistics.fmean(t.others for t in turns), 3),
    }


# -- fit ------------------------------------------------------------------------------------------


class StepTimes(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """When each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


def fit(model: keras.Model, data: Any, rows: int) -> tuple[int, Iterable[float]]:
    """One epoch: rows, and seconds a step without the first."""
    times = StepTimes()
    model.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[times])
    return rows, [end - begin for begin, end in pairwise(times.ends)]


def fits(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rates of `fit` by what feeds it."""
    batch, few = options.batch, min(options.small, options.rows)
    model, steps = make_model(), -(-options.rows // batch)
    path = folder.parent / "rows.tfrecord"
    write_records(folder, path, few)
    fast: dict[str, tuple[Any, int]] = {
        CEILING: (in_memory(folder, batch, steps, 1), steps * batch),
        OURS: (make_loader(folder, batch), options.rows),
        DIFFERENT: (in_memory(folder, batch, steps, 8), steps * batch),
        BY_HAND: (by_hand(folder, batch), options.rows),
    }
    slow: dict[str, tuple[Any, int]] = {
        "tf.data from_tensor_slices": (tensor_slices(folder, batch, few), few),
        "tf.data over TFRecord": (records(path, batch, few), few),
    }
    data = fast | slow
    for name in (CEILING, BY_HAND):  # tracing, for batches of one size and of any
        fit(model, fast[name][0].take(2), 0)
    order = fit_order(options.rounds, list(fast)[2:], list(slow))
    turns = [take_turn(name, partial(fit, model, *data[name])) for name in order]
    return {
        "batch": batch,
        "rows a turn": {name: rows for name, (_, rows) in data.items()},
        **report(turns, CEILING),
        "seconds a step, start-up apart": medians(
            turns, lambda turn: statistics.median(turn.steps or [0])
        ),
        "seconds of start-up": medians(turns, lambda turn: turn.start_up),
    }


def fit_order(rounds: int, others: list[str], slow: list[str]) -> list[str]:
    """The ceiling, ours and one of the others, again and again; the ceiling last, and the slow."""
    order: list[str] = []
    for number in range(rounds):
        order += [CEILING, OURS, others[number % len(others)]]
    return [*order, CEILING, *slow]


# -- the loader without a model -------------------------------------------------------------------


def drain(batches: Any) -> tuple[int, Iterable[float]]:
    """Take every batch."""
    return sum(int(batch[1].shape[0]) for batch in batches), ()


def alone(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The loader without a model."""
    batch = options.batch
    shuffled, ordered = make_loader(folder, batch), make_loader(folder, batch, False)
    as_data = make_loader(folder, batch).as_tf_dataset()
    work: dict[str, Callable[[], tuple[int, Iterable[float]]]] = {
        DECODE: lambda: (decode_only(folder), ()),
        f"{OURS}, shuffled": partial(drain, shuffled),
        f"{OURS}, in order": partial(drain, ordered),
        "as_tf_dataset, shuffled": partial(drain, as_data),
    }
    order = [x for name in list(work)[1:] for x in (DECODE, name)]
    order = order * (options.alone_rounds + 1) + [DECODE]  # once to warm up
    turns = [take_turn(name, work[name]) for name in order]
    return report(turns[2 * len(work) - 2 :], DECODE)


def conversion(batch: int) -> dict[str, float]:
    """Microseconds to make tensors of a batch of 40 columns: sharing memory, and copying."""
    flat = np.zeros(40 * batch + 16, np.int32)
    start = (-flat.ctypes.data % 64) // 4
    columns = flat[start : start + 40 * batch].reshape(40, batch, 1)
    out: dict[str, float] = {}
    for name, convert in (("shared", as_tensor), ("copied", tf.convert_to_tensor)):
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            kept = [convert(column) for column in columns]
            times.append(time.perf_counter() - begin)
            del kept
        out[name] = round(statistics.median(times) * 1e6)
    return out


# -- all of it ------------------------------------------------------------------------------------


def held(result: dict[str, Any]) -> dict[str, Any]:
    """What is promised, and whether it was so."""
    found: dict[str, Any] = {}
    if "fit" in result:
        share = result["fit"][f"share of: {CEILING}"][OURS]
        found["fit, at least 0.95 of the ceiling"] = {"found": share, "holds": share >= 0.95}
    if "loader alone" in result:
        share = result["loader alone"][f"share of: {DECODE}"][f"{OURS}, shuffled"]
        found["loader, at least 0.6 of decoding"] = {"found": share, "holds": share >= 0.6}
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=int, default=2**21, help="in one call of fit")
    parser.add_argument("--alone-rows", type=int, default=4_000_000)
    parser.add_argument("--small", type=int, default=2**17, help="rows for slow contenders")
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=6, help="of fit")
    parser.add_argument(
        "--alone-rounds", type=int, default=12, help="of the loader without a model"
    )
    parser.add_argument("--only", choices=["fit", "alone", "conversion"])
    parser.add_argument("--json", type=Path, help="a file to write to as well")
    options = parser.parse_args()
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    result: dict[str, Any] = {"benchmark": "keras_fit", "about": about() | {"code": code_version()}}
    result["about"]["versions"] |= versions
    result |= {"threads": cpu_count(), "rounds": options.rounds}
    result["rounds alone"] = options.alone_rounds
    with tempfile.TemporaryDirectory() as temporary:
        if options.only in (None, "alone"):
            datagen.criteo(Path(temporary) / "many", options.alone_rows)
            result["loader alone"] = alone(Path(temporary) / "many", options)
        if options.only in (None, "conversion"):
            result["conversion, microseconds a batch"] = conversion(options.batch)
        if options.only in (None, "fit"):
            datagen.criteo(Path(temporary) / "rows", options.rows)
            result["fit"] = fits(Path(temporary) / "rows", options)
    result["promised"] = held(result)
    text = json.dumps(result, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
