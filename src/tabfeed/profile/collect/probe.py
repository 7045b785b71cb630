"""What is timed after a run: how fast the loop could be, and parts of a loader on a sample.

The *ceiling* is the training step repeated on one batch in memory: no input can make training
faster. The step really trains, so measure it on a model that may be changed.

The *baseline* is what tabfeed would deliver. One batch of the other loader is written as Parquet,
repeated until there are enough rows to time, and read back shuffled in batches of the same size.
Repeated rows compress better than real ones, so the file is written without compression.

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
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError
from tabfeed.io import Dataset
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.build import Steps, build_pipeline, dict_layout
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.state import LoaderState
from tabfeed.profile.collect.batches import WAIT, arrays_of, batch_rows, state_of
from tabfeed.profile.collect.processors import cuda_in_use
from tabfeed.profile.collect.sampler import StackLog
from tabfeed.profile.run import Baseline, Ceiling, TimedPart
from tabfeed.schema import Schema

Array = npt.NDArray[Any]
_BASELINE_ROWS = 200_000
_BASELINE_BYTES = 64 * 2**20
_BASELINE_COLUMNS = 1024
_BASELINE_SECONDS = 0.5
_WARM_UP = 3
_MIN_STEPS = 5


def array_pipeline(
    dataset: Dataset,
    options: LoaderOptions,
    columns: list[str],
    transforms: Any = (),
    *,
    schema: Schema | None = None,
) -> Pipeline[dict[str, Array]]:
    """A loader without a framework: batches are dicts of NumPy arrays.

    ``schema`` is the schema after the transforms; by default that of the dataset.
    """
    layout = dict_layout(schema or dataset.schema, columns)
    return build_pipeline(dataset, layout, options, _cut, Steps(tuple(transforms)))


def _cut(chunk: Chunk) -> list[dict[str, Array]]:
    return [
        {name: array[low:high] for name, array in chunk.columns.items()}
        for low, high in pairwise(chunk.bounds.tolist())
    ]


def measure_baseline(batch: Any) -> Baseline | None:
    """Rows per second through tabfeed; None if the batch has no arrays of numbers."""
    rows = batch_rows(batch)
    table = _table(batch, rows) if rows else None
    if table is None or rows is None:
        return None
    with tempfile.TemporaryDirectory(prefix="tabfeed-profile-") as folder:
        repeats = max(1, min(_BASELINE_ROWS // rows, _BASELINE_BYTES // max(1, table.nbytes)))
        whole = pa.concat_tables([table] * repeats).combine_chunks()
        pq.write_table(whole, Path(folder) / "sample.parquet", compression="none")
        dataset = Dataset(folder)
        options = LoaderOptions(batch_size=min(rows, whole.num_rows), shuffle=True)
        state = array_pipeline(dataset, options, dataset.column_names).start()
        return Baseline(_rows_per_second(state), whole.num_rows, table.num_columns)


def _rows_per_second(state: LoaderState[Any]) -> float:
    for _ in state:  # warm up
        break
    before, start, spent = state.rows_given, time.perf_counter(), 0.0
    while spent < _BASELINE_SECONDS:
        for _ in state:
            spent = time.perf_counter() - start
            if spent >= _BASELINE_SECONDS:
                break
    state.close()
    return (state.rows_given - before) / spent


def _table(batch: Any, rows: int) -> pa.Table | None:
    columns: dict[str, Array] = {}
    for path, leaf in arrays_of(batch):
        array = _numpy(leaf)
        if array is None or array.ndim == 0 or len(array) != rows or array.dtype.kind not in "iufb":
            continue
        name = "_".join(str(key) for key in path) or "column"
        flat = array.reshape(rows, -1)
        for i in range(min(flat.shape[1], _BASELINE_COLUMNS - len(columns))):
            columns[f"{name}_{i}"] = np.ascontiguousarray(flat[:, i])
    return pa.table(columns) if columns else None


def _numpy(leaf: Any) -> Array | None:
    for convert in ("detach", "cpu", "numpy"):
        method = getattr(leaf, convert, None)
        if method is not None:
            leaf = method()
    try:
        return np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError):
        return None


# -- the ceiling -----------------------------------------------------------------------------------


def measure_ceiling(
    step: Callable[[Any], Any], batch: Any, *, seconds: float = 1.0, halves: bool = False
) -> Ceiling:
    """Time `step` on `batch` for about `seconds`; with `halves` on half of its rows too."""
    if not callable(step):
        raise ArgumentError(f"step must be a function of a batch, not {type(step).__name__}")
    if seconds <= 0:
        raise ArgumentError(f"seconds is {seconds!r}; it must be above 0")
    mean, steps = _time(step, batch, seconds)
    half = _time(step, halve(batch), seconds)[0] if halves else None
    return Ceiling(mean, batch_rows(batch), steps, half)


def _time(step: Callable[[Any], Any], batch: Any, limit: float) -> tuple[float, int]:
    for _ in range(_WARM_UP):
        _synchronize(step(batch))
    start, steps, spent = time.perf_counter(), 0, 0.0
    result = None
    while steps < _MIN_STEPS or spent < limit:
        result = step(batch)
        steps += 1
        spent = time.perf_counter() - start
    _synchronize(result)
    return (time.perf_counter() - start) / steps, steps


def _synchronize(result: Any) -> None:
    """Wait until asynchronous work is done."""
    cuda = cuda_in_use()
    if cuda is not None:
        cuda.synchronize()
    for _, array in arrays_of(result):
        wait = getattr(array, "block_until_ready", None)
        if wait is not None:
            wait()


def halve(batch: Any) -> Any:
    """The first half of a batch's rows.

    Examples
    --------
    >>> import numpy as np
    >>> halve({"x": np.arange(4), "y": [np.arange(4)]})
    {'x': array([0, 1]), 'y': [array([0, 1])]}
    """
    rows = batch_rows(batch)
    if rows is None or rows < 2:
        raise ArgumentError(f"a batch of {rows} rows cannot be halved; leave halves=False")
    return _first(batch, rows, rows // 2)


def _first(part: Any, rows: int, kept: int) -> Any:
    if hasattr(part, "shape") and hasattr(part, "dtype"):
        return part[:kept] if len(part.shape) and int(part.shape[0]) == rows else part
    if isinstance(part, Mapping):
        return {key: _first(value, rows, kept) for key, value in part.items()}
    if isinstance(part, list | tuple):
        values = [_first(value, rows, kept) for value in part]
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
    return part


_PART_SECONDS = 0.15
_PART_ROWS = 20_000


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
    *("Slice", "Range", "Record", "TextLine", "Generator"),
    *("FlatMap", "Interleave", "Tensor"),
)
_TF_TRANSFORMS = ("Map", "Filter", "Batch", "Scan", "Window", "Unique")
_TF_UNSEEN = ("Prefetch", "Options", "Take", "Skip", "Repeat", "Model", "Cache", "Shard", "Assert")


def probe_tf_data(dataset: Any, batch_seconds: float) -> list[TimedPart]:
    """The time each stage of a `tf.data.Dataset` adds to a batch.

    What follows a large shuffle buffer is derived from `batch_seconds`, the measured time of one.
    """
    chain = [dataset]  # the source last
    while len(inputs := chain[-1]._inputs()) == 1:
        chain.append(inputs[0])
    chain.reverse()
    parts: list[TimedPart] = []
    before = 0.0
    for number, stage in enumerate(chain):
        name = type(stage).__name__.lstrip("_").removesuffix("V2").removesuffix("Dataset")
        if any(word in name for word in _TF_UNSEEN) or _is_source(chain[number + 1 :]):
            continue
        per_batch = prod(int(getattr(s, "_batch_size", 1)) for s in chain[number + 1 :])
        if "Shuffle" in name and _tf_filling(stage) * before / per_batch > 2 * _PART_SECONDS:
            rest = max(0.0, batch_seconds - before)
            return [*parts, TimedPart("what follows the shuffle buffer", "input", rest)]
        seconds = _tf_element_seconds(stage) * per_batch
        parts.append(TimedPart(_tf_label(stage, name), _tf_kind(name), max(0.0, seconds - before)))
        before = max(before, seconds)
    return parts


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


def _tf_element_seconds(stage: Any) -> float:
    """Seconds per element, drained inside TensorFlow: Python would cost more than many stages."""
    each = stage.map(lambda *_: 0)
    base = _tf_drain(each, 1)[1]  # creating an iterator, and the first element
    count = 1
    while True:
        count *= 4
        got, spent = _tf_drain(each, count + 1)
        if got <= count or spent >= _PART_SECONDS:
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
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    items = (dataset[i] for i in range(len(dataset))) if indexed else iter(dataset)
    each, log = _sampled(lambda: taken.append(next(items)))
    if not taken:
        return []
    batch = (taken * (size // len(taken) + 1))[:size]
    start = time.perf_counter()
    loader.collate_fn(batch if loader.batch_size else batch[0])
    collate = time.perf_counter() - start
    parts = _by_kind(log, each * size)
    return [*parts, TimedPart("collating", "transform", collate)]


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
        while time.perf_counter() - start < 2 * _PART_SECONDS:
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
    transforms = getattr(reader, "transforms", ())
    owners = [getattr(t, "__self__", t) for t in transforms]
    programs = [o if hasattr(o, "nodes") else getattr(o, "program", None) for o in owners]
    if len(programs) != 1 or programs[0] is None:
        return []
    table = reader.dataset.head(_PART_ROWS)
    return _by_node(programs[0], getattr(table, "to_arrow", lambda: table)())


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
            name, alone = type(node.op).__name__, max(0.0, seconds[node] - below)
            parts.append(TimedPart(name, "transform", alone))
    return sorted(parts, key=lambda p: -p.seconds)[:8]
