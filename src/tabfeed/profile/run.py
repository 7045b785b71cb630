"""A run as it is kept: plain values, the same in memory, in JSON and in every report.

Times are seconds. What was not measured is None, never 0.
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

__all__ = [
    "Block",
    "Ceiling",
    "Device",
    "Interpreter",
    "Lane",
    "Loader",
    "Machine",
    "Part",
    "Run",
    "Seen",
    "Series",
    "Spread",
    "Stage",
    "Steps",
    "ThreadUse",
    "Through",
    "Times",
    "Window",
    "load_run",
]

FORMAT = 1
T = TypeVar("T")


@dataclass(frozen=True)
class Machine:
    """Where it ran."""

    python: str
    system: str
    cores: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loader:
    """What was iterated: its kind ("tabfeed", "torch", "tf.data", "iterable") and name."""

    kind: str
    name: str
    threads: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class Times:
    """Where the training thread's time went; the parts add up to `wall`.

    Attributes
    ----------
    startup
        Until the first batch was there.
    wait
        For all later batches.
    compute
        Between having a batch and asking for the next, less `copy`.
    copy
        Marked as copying to the device, in the loop.
    between
        Outside of any pass, from the first to the last; not part of `wall`.
    cpu
        Of the training thread, on a core or waiting for one; None if not known.
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
        """After the first batch was there."""
        return self.wall - self.startup

    @property
    def wait_share(self) -> float:
        """Waiting, of the time after start-up."""
        return self.wait / self.steady if self.steady > 0 else 0.0


@dataclass(frozen=True)
class Spread:
    """Median, 95th percentile and largest, in seconds."""

    median: float
    p95: float
    most: float


@dataclass(frozen=True)
class Steps:
    """Batches, and what was in them; rows and bytes are None where they could not be seen."""

    count: int
    rows: int | None
    bytes: int | None
    wait: Spread
    compute: Spread


@dataclass(frozen=True)
class Device:
    """By the GPU's own clock: idle for want of a batch, and between having and asking."""

    idle: float
    busy: float
    steps: int


@dataclass(frozen=True)
class Stage:
    """What the loader's threads spent on one thing, all threads together."""

    name: str
    seconds: float
    cpu: float
    count: int
    rows: int


@dataclass(frozen=True)
class ThreadUse:
    """Seconds a thread was on a core, and waiting for one."""

    name: str
    cpu: float
    delay: float


@dataclass(frozen=True)
class Interpreter:
    """How often the interpreter was found taken by another thread, by phase."""

    wait_looks: int = 0
    wait_held: int = 0
    compute_looks: int = 0
    compute_held: int = 0

    @property
    def compute_share(self) -> float:
        """Of the looks while the loop computed."""
        return self.compute_held / self.compute_looks if self.compute_looks else 0.0

    @property
    def wait_share(self) -> float:
        """Of the looks while the loop waited."""
        return self.wait_held / self.wait_looks if self.wait_looks else 0.0


@dataclass(frozen=True)
class Seen:
    """A place in the code where the training thread was found, and how often."""

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
class Block:
    """Something a thread did, from when to when."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Lane:
    """What one thread did in a window; inner blocks come after the ones around them."""

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Window:
    """A few steps looked at closely."""

    start: float
    end: float
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class Ceiling:
    """The step with one frozen batch.

    Attributes
    ----------
    seconds
        A step.
    rows
        In the batch.
    steps
        How many were timed.
    half_seconds
        A step with half of the batch, if that could be measured.
    """

    seconds: float
    rows: int | None
    steps: int
    half_seconds: float | None = None


@dataclass(frozen=True)
class Part:
    """A part of a loader timed on its own, on a sample: seconds for what makes one batch."""

    name: str
    kind: str
    seconds: float


@dataclass(frozen=True)
class Through:
    """What a sample of the same rows gave through a tabfeed loader on this machine."""

    rows_per_second: float
    rows: int
    columns: int


@dataclass(frozen=True)
class Run:
    """All that is known of a run."""

    name: str
    made: str
    machine: Machine
    loader: Loader
    times: Times
    steps: Steps
    interpreter: Interpreter = Interpreter()
    model: bool = True
    waits_seen: bool = True
    device: Device | None = None
    ceiling: Ceiling | None = None
    through: Through | None = None
    stages: tuple[Stage, ...] = ()
    transforms: dict[str, float] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    threads: tuple[ThreadUse, ...] = ()
    seen: tuple[Seen, ...] = ()
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
        """A step, on average, after start-up."""
        return self.times.steady / max(1, self.steps.count)

    @property
    def wait_share(self) -> float:
        """Waiting for data: what the GPU saw of it, if that was measured."""
        if self.device is not None and self.device.idle + self.device.busy > 0:
            return self.device.idle / (self.device.idle + self.device.busy)
        return self.times.wait_share

    @property
    def rows_per_second(self) -> float | None:
        """Rows the loop was given a second, after start-up."""
        over = self.times.steady if self.model else self.times.wall  # a feed alone starts up too
        return None if self.steps.rows is None or over <= 0 else self.steps.rows / over

    @property
    def efficiency(self) -> float:
        """What the run got of what the model could do, from 0 to 1.

        Against the measured ceiling where there is one, else the share of time not spent waiting.
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
        """From what `to_dict` gave, here or in an earlier version."""
        if data.get("format") != FORMAT:
            raise ArgumentError(
                f"this is no saved profile of format {FORMAT}: 'format' is {data.get('format')!r}; "
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
        raise BadFileError(f"{path} is no saved profile: {e}", file=str(path)) from e


def _build(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass from plain values, nested ones too; names it does not know are left out."""
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
