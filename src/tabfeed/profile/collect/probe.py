"""Parts of a loader, timed alone on a sample after the run.

A tf.data pipeline runs in its own threads, a torch DataLoader in other processes, a fitted workflow
as one fused plan: while they run, the profiler can't see into them. But each can be cut: a pipeline
after each of its stages, a graph at each node, and a dataset can be called here. Timing the growing
pieces on a few rows shows the cost of each part.

This reads some of the data again, through the user's code. The state of the global random
generators is restored afterwards. ``Profiler(probe=False)`` turns it off.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from tabfeed.profile.collect.batches import WAIT, state_of
from tabfeed.profile.collect.stacks import StackLog
from tabfeed.profile.run import TimedPart

__all__ = ["probe_tf_data", "probe_torch", "probe_workflow", "random_state_kept"]

_SECONDS = 0.15
_ROWS = 20_000


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the global random generators afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    rng = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(rng)


# -- tf.data -------------------------------------------------------------------------------------

_TF_SOURCES = (
    "Slice",
    "Range",
    "Record",
    "TextLine",
    "Generator",
    "FlatMap",
    "Interleave",
    "Tensor",
)
_TF_TRANSFORMS = ("Map", "Filter", "Batch", "Scan", "Window", "Unique")
_TF_UNSEEN = ("Prefetch", "Options", "Take", "Skip", "Repeat", "Model", "Cache", "Shard", "Assert")


def probe_tf_data(dataset: Any, batch_seconds: float) -> list[TimedPart]:
    """The time each stage of a pipeline adds to a batch.

    Parameters
    ----------
    dataset
        A `tf.data.Dataset`.
    batch_seconds
        The measured time of a batch; what follows a large shuffle buffer is derived from it.
    """
    chain = _tf_chain(dataset)
    parts: list[TimedPart] = []
    before = 0.0
    for number, stage in enumerate(chain):
        name = type(stage).__name__.lstrip("_").removesuffix("V2").removesuffix("Dataset")
        if any(word in name for word in _TF_UNSEEN) or _is_source(chain[number + 1 :]):
            continue
        per_batch = _tf_elements(chain[number + 1 :])
        if "Shuffle" in name and _tf_filling(stage) * before / per_batch > 2 * _SECONDS:
            rest = max(0.0, batch_seconds - before)
            return [*parts, TimedPart("what follows the shuffle buffer", "input", rest)]
        seconds = _tf_element_seconds(stage) * per_batch
        parts.append(TimedPart(_tf_label(stage, name), _tf_kind(name), max(0.0, seconds - before)))
        before = max(before, seconds)
    return parts


def _tf_chain(dataset: Any) -> list[Any]:
    """The stages, the source first."""
    chain = [dataset]
    while len(inputs := chain[-1]._inputs()) == 1:
        chain.append(inputs[0])
    return chain[::-1]


def _is_source(later: Sequence[Any]) -> bool:
    """Whether a source comes later, as after a list of files that is interleaved."""
    names = [type(stage).__name__ for stage in later]
    return any(word in name for name in names for word in _TF_SOURCES)


def _tf_filling(shuffle: Any) -> int:
    """Elements read before a shuffle delivers its first."""
    available = int(shuffle._inputs()[0].cardinality())
    buffer = int(shuffle._buffer_size)
    return min(buffer, available) if available >= 0 else buffer


def _tf_kind(name: str) -> str:
    if any(word in name for word in _TF_SOURCES):
        return "read"
    return "transform" if any(word in name for word in _TF_TRANSFORMS) else "input"


def _tf_label(stage: Any, name: str) -> str:
    function = getattr(getattr(stage, "_map_func", None), "_func", None)
    called = getattr(function, "__qualname__", "").split("<locals>.")[-1]
    plain = name.replace("Parallel", "").replace("Async", "").lower()
    if _tf_kind(name) == "read" and not (called and "nterleave" in name):
        return "the source"
    return f"{plain}({called})" if called and called != "<lambda>" else plain


def _tf_elements(later: Sequence[Any]) -> int:
    """How many elements of a stage make one batch."""
    product = 1
    for stage in later:
        size = getattr(stage, "_batch_size", None)
        product *= int(size) if size is not None else 1
    return product


def _tf_element_seconds(stage: Any) -> float:
    """Seconds per element, drained inside TensorFlow: Python would cost more than many stages."""
    each = stage.map(lambda *_: 0)
    base = _tf_drain(each, 1)[1]  # creating an iterator, and the first element
    count = 1
    while True:
        count *= 4
        got, spent = _tf_drain(each, count + 1)
        if got <= count or spent >= _SECONDS:
            return max(0.0, spent - base) / max(1, got - 1)


def _tf_drain(dataset: Any, count: int) -> tuple[int, float]:
    """Take `count` elements at once; returns how many there were, and the seconds."""
    pieces = iter(dataset.batch(count))
    start = time.perf_counter()
    piece = next(pieces, None)
    spent = time.perf_counter() - start
    return (0 if piece is None else int(piece.shape[0])), spent


# -- torch ---------------------------------------------------------------------------------------


def probe_torch(loader: Any) -> list[TimedPart]:
    """Run what a DataLoader's workers do in this process: reading, transforming, collating."""
    dataset = loader.dataset
    size = loader.batch_size or 1
    taken: list[Any] = []
    items = _torch_items(dataset)
    each, log = _sampled(lambda: taken.append(next(items)))
    if not taken:
        return []
    batch = (taken * (size // len(taken) + 1))[:size]
    start = time.perf_counter()
    loader.collate_fn(batch if loader.batch_size else batch[0])
    collate = time.perf_counter() - start
    parts = _by_kind(log, each * size)
    return [*parts, TimedPart("collating", "transform", collate)]


def _torch_items(dataset: Any) -> Iterator[Any]:
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[i] for i in range(len(dataset)))
    return iter(dataset)


def _sampled(work: Callable[[], None]) -> tuple[float, StackLog]:
    """Repeat some work and sample its stack; returns the seconds per call, and the samples."""
    log, over, me = StackLog(), threading.Event(), threading.get_ident()

    def sample() -> None:
        while not over.wait(0.002):
            log.add(WAIT, sys._current_frames().get(me))

    watcher = threading.Thread(target=sample, name="tabfeed-probe", daemon=True)
    watcher.start()
    start, count = time.perf_counter(), 0
    try:
        while time.perf_counter() - start < 2 * _SECONDS:
            work()
            count += 1
    except StopIteration:
        pass
    finally:
        spent = time.perf_counter() - start
        over.set()
        watcher.join()
    return spent / max(1, count), log


def _by_kind(log: StackLog, seconds: float) -> list[TimedPart]:
    """Divide the time in proportion to the samples."""
    lines = log.lines()
    total = sum(p.count for p in lines) or 1
    kinds = dict.fromkeys(p.kind for p in lines)
    return [
        TimedPart(
            next(p.where for p in lines if p.kind == kind),
            kind if kind in ("read", "transform", "copy") else "input",
            seconds * sum(p.count for p in lines if p.kind == kind) / total,
        )
        for kind in kinds
    ]


# -- tabfeed workflows ---------------------------------------------------------------------------


def probe_workflow(loader: Any) -> list[TimedPart]:
    """The cost of each operator of the loader's workflow, on the first rows of the data."""
    parts = state_of(loader).pipeline.stages.reader.parts
    reader = getattr(parts, "reader", parts)  # the reader inside a cache
    programs = [_program(t) for t in getattr(reader, "transforms", ())]
    if len(programs) != 1 or programs[0] is None:
        return []
    table = reader.dataset.head(_ROWS)
    return _by_node(programs[0], getattr(table, "to_arrow", lambda: table)())


def _program(transform: Any) -> Any:
    """The compiled graph of a transform, if it belongs to a workflow."""
    owner = getattr(transform, "__self__", transform)
    return owner if hasattr(owner, "nodes") else getattr(owner, "program", None)


def _by_node(program: Any, table: Any) -> list[TimedPart]:
    """The time of each node with everything before it, less its most expensive input."""
    seconds: dict[Any, float] = {}
    parts = []
    for node in program.nodes:
        piece = type(program)(program.plan, [node])
        piece.run(table)
        start = time.perf_counter()
        piece.run(table)
        seconds[node] = time.perf_counter() - start
        sources = program.sources.get(node)
        if sources is not None:
            below = max((seconds.get(s, 0.0) for s, _ in sources), default=0.0)
            name = f"{type(node.op).__name__}"
            parts.append(TimedPart(name, "transform", max(0.0, seconds[node] - below)))
    return list(islice(sorted(parts, key=lambda p: -p.seconds), 8))
