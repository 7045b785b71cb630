"""The record of a profiled run: plain values, the same in memory, in JSON and in reports.

Times are in seconds. Values that were not measured are None, never 0.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from tabfeed.errors import ArgumentError, BadFileError, SourceNotFoundError

FORMAT = 1
STAGE_LABELS = {
    "read": "reading and decoding",
    "fetch": "fetching from storage",
    "transform": "transforming",
    "convert": "making arrays",
    "plan": "planning the order",
    "gather": "shuffling and gathering",
    "finish": "making batches",
    "copy": "copying to the device",
    "queue": "queueing work for the device",
    "chunk": "work in between",
    "ahead": "work in between, ahead",
    "share": "waiting for another thread",
    "full": "queue full",
    "wait": "waiting for data",
    "behind": "waiting for the model",
}
WAITING_STAGES = ("share", "full", "wait", "behind")
T = TypeVar("T")


@dataclass(frozen=True)
class Machine:
    """The machine of a run."""

    python: str
    system: str
    cores: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoaderInfo:
    """The loader: its kind ("tabfeed", "torch", "tf.data", "iterable") and name."""

    kind: str
    name: str
    threads: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class LoopTimes:
    """Where the training thread's time went; the parts add up to `wall`.

    Attributes
    ----------
    startup
        Waiting for the first batch.
    wait
        Waiting for all later batches.
    compute
        From receiving a batch to requesting the next, less `copy`.
    copy
        Spans named "copy" in the loop.
    between
        Between epochs; not part of `wall`.
    cpu
        Time of the training thread on a core or waiting for one; None if unknown.
    """

    wall: float
    startup: float
    wait: float
    compute: float
    copy: float = 0.0
    between: float = 0.0
    cpu: float | None = None

    @property
    def steady(self) -> float:
        """Time after the first batch arrived."""
        return self.wall - self.startup

    @property
    def wait_share(self) -> float:
        """Share of the time after start-up spent waiting."""
        return self.wait / self.steady if self.steady > 0 else 0.0


@dataclass(frozen=True)
class Spread:
    """Median, 95th percentile and largest, in seconds."""

    median: float
    p95: float
    most: float


@dataclass(frozen=True)
class StepStats:
    """The number of batches, and their contents; rows and bytes are None if unknown."""

    count: int
    rows: int | None
    bytes: int | None
    wait: Spread
    compute: Spread


@dataclass(frozen=True)
class DeviceTimes:
    """By the GPU's clock: time without a batch, and from each batch to the next request."""

    idle: float
    busy: float
    steps: int


@dataclass(frozen=True)
class Stage:
    """Time of the loader's threads in one stage, all threads together.

    Attributes
    ----------
    name
        The stage.
    seconds
        From start to end, without nested stages.
    cpu
        Seconds of these on a core.
    count
        How often it ran.
    rows
        Rows it handled.
    delay
        Seconds of these waiting for a core, which other work on the machine decides.
    """

    name: str
    seconds: float
    cpu: float
    count: int
    rows: int
    delay: float = 0.0

    @property
    def work(self) -> float:
        """Seconds the stage would take with a core of its own."""
        return self.seconds - self.delay

    @property
    def on_core(self) -> float:
        """How much of its work is computing; the rest is waiting for a disk or a lock."""
        return self.cpu / self.work if self.work > 0 else 1.0


@dataclass(frozen=True)
class ThreadUse:
    """Seconds a thread was on a core, and waiting for one."""

    name: str
    cpu: float
    delay: float


@dataclass(frozen=True)
class Interpreter:
    """How often a sample found the GIL held by another thread, by phase."""

    wait_looks: int = 0
    wait_held: int = 0
    compute_looks: int = 0
    compute_held: int = 0

    @property
    def compute_share(self) -> float:
        """Share of the samples while the loop computed."""
        return self.compute_held / self.compute_looks if self.compute_looks else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the samples while the loop waited."""
        return self.wait_held / self.wait_looks if self.wait_looks else 0.0


@dataclass(frozen=True)
class SampledPlace:
    """A line of code the training thread was at, and in how many samples."""

    phase: str
    kind: str
    where: str
    count: int


@dataclass(frozen=True)
class Series:
    """Sums by name over stretches of equal width."""

    width: float
    sums: dict[str, tuple[float, ...]]


@dataclass(frozen=True)
class Activity:
    """Something a thread did, with its start and end."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Lane:
    """What one thread did in a window; nested activities come after the outer ones."""

    name: str
    blocks: tuple[Activity, ...]


@dataclass(frozen=True)
class Window:
    """A close-up of a few steps."""

    start: float
    end: float
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class Ceiling:
    """The step repeated on one batch.

    Attributes
    ----------
    seconds
        Time of a step.
    rows
        Rows of the batch.
    steps
        How many steps were timed.
    half_seconds
        Time of a step with half of the batch, if measured.
    """

    seconds: float
    rows: int | None
    steps: int
    half_seconds: float | None = None


@dataclass(frozen=True)
class TimedPart:
    """A part of a loader timed alone on a sample: its seconds per batch."""

    name: str
    kind: str
    seconds: float


@dataclass(frozen=True)
class Baseline:
    """The speed of a tabfeed loader on a sample of the same rows, on this machine."""

    rows_per_second: float
    rows: int
    columns: int


@dataclass(frozen=True)
class Run:
    """Everything measured in a run."""

    name: str
    made: str
    machine: Machine
    loader: LoaderInfo
    times: LoopTimes
    steps: StepStats
    interpreter: Interpreter = Interpreter()
    model: bool = True
    waits_seen: bool = True
    device: DeviceTimes | None = None
    ceiling: Ceiling | None = None
    through: Baseline | None = None
    stages: tuple[Stage, ...] = ()
    transforms: dict[str, float] = field(default_factory=dict)
    parts: tuple[TimedPart, ...] = ()
    threads: tuple[ThreadUse, ...] = ()
    seen: tuple[SampledPlace, ...] = ()
    timeline: Series | None = None
    stage_series: Series | None = None
    window: Window | None = None
    queue_most: int = 0
    queue: tuple[tuple[float, float], ...] = ()
    cpu: tuple[tuple[float, float], ...] = ()
    gpu_busy: tuple[tuple[float, float], ...] = ()
    gpu_memory: tuple[tuple[float, float], ...] = ()
    elapsed: float = 0.0
    profiler_cpu: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Average time of a step after start-up."""
        return self.times.steady / max(1, self.steps.count)

    @property
    def wait_share(self) -> float:
        """Share of time waiting for data, by the GPU's clock if measured."""
        if self.device is not None and self.device.idle + self.device.busy > 0:
            return self.device.idle / (self.device.idle + self.device.busy)
        return self.times.wait_share

    @property
    def rows_per_second(self) -> float | None:
        """Rows per second after start-up."""
        # A loader alone has no step to hide start-up.
        over = self.times.steady if self.model else self.times.wall
        return None if self.steps.rows is None or over <= 0 else self.steps.rows / over

    @property
    def efficiency(self) -> float:
        """How close the run came to the model's own speed, from 0 to 1.

        Compared to the measured ceiling if there is one, else the share of time not spent waiting.
        """
        if self.ceiling is not None and self.step_seconds > 0:
            return min(1.0, self.ceiling.seconds / self.step_seconds)
        return 1.0 - self.wait_share

    @property
    def gpu_busy_mean(self) -> float | None:
        """The mean of the driver's readings."""
        if not self.gpu_busy:
            return None
        return sum(v for _, v in self.gpu_busy) / len(self.gpu_busy)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Run:
        """Read what `to_dict` returned, in this or an earlier version."""
        if data.get("format") != FORMAT:
            raise ArgumentError(
                f"this is not a saved profile of format {FORMAT}, but {data.get('format')!r}; "
                'give a file that Profiler.save("run.json") wrote'
            )
        return _build(cls, data)


def load_run(path: str | Path) -> Run:
    """Read a run that was saved as JSON."""
    try:
        text = Path(path).read_text("utf-8")
    except FileNotFoundError as e:
        raise SourceNotFoundError(f"there is no saved profile {path}") from e
    try:
        return Run.from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise BadFileError(f"{path} is not a saved profile: {e}", file=str(path)) from e


def _build(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass from plain values, nested ones too; unknown names are left out."""
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in fields(kind) if f.name in data}  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name], data[name]) for name in known})


def _value(hint: Any, value: Any) -> Any:
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        chosen = next(a for a in arguments if a is not type(None))
        return None if value is None else _value(chosen, value)
    if is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value)
    origin = typing.get_origin(hint)
    if origin is tuple:
        inner = arguments if len(arguments) == 2 and arguments[1] is not ... else None
        if inner:
            return tuple(_value(h, v) for h, v in zip(inner, value, strict=True))
        return tuple(_value(arguments[0], v) for v in value)
    if origin is dict:
        return {k: _value(arguments[1], v) for k, v in value.items()}
    return value
