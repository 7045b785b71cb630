"""Samples of the training thread's stack.

A sample stores only code objects and positions; what they mean is worked out once, at the end. The
result names the function and line nearest to the top of the stack that belong to the user, and a
guess at what it does (read, transform, copy), from its name and the libraries around it.
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType

__all__ = ["CodeLine", "StackLog"]

_MAX_DEPTH = 48
_NEAR = 6
_MAX_STACKS = 4096
_PROFILER = os.path.dirname(os.path.dirname(__file__))
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_KIND_WORDS = {
    "read": "read load open fetch download query scan decode parse recv disk file",
    "transform": "transform augment preprocess process tokenize tokenise collate encode normalize "
    "normalise resize map featurize clean pad",
    "copy": "copy transfer upload device h2d cuda",
}
_KIND_OF_WORD = {word: kind for kind, words in _KIND_WORDS.items() for word in words.split()}
_COPY_CALL = re.compile(r"\.(to|cuda|copy_|pin_memory)\(|device_put\(|\.to_device\(")
_COPY_FUNCTIONS = {"move_data_to_device", "batch_to_device", "to_device", "send_to_device"}
_PARTS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_CALLED = re.compile(r"(\w+)\s*\(")
_LIBRARY_KINDS = (
    (os.path.join("torch", "utils", "data", "_utils", "collate.py"), "transform"),
    (os.path.join("torch", "utils", "data", "_utils", "pin_memory.py"), "copy"),
    (os.path.join("pyarrow", "parquet"), "read"),
    (os.path.join("pandas", "io"), "read"),
    (os.path.join("fsspec", ""), "read"),
    (os.path.join("h5py", ""), "read"),
)
_WAITERS = (
    (os.path.join("tabfeed", "loader", "prefetch.py"), "tabfeed"),
    (os.path.join("tensorflow", "python", "data"), "tf.data"),
    (os.path.join("multiprocessing", ""), "workers"),
)

Position = tuple[CodeType, int]  # a code object, and an offset in its bytecode


@dataclass(frozen=True)
class CodeLine:
    """A line of code, and in how many samples the thread was there.

    Attributes
    ----------
    phase
        1 while waiting for data, 2 while computing.
    kind
        "read", "transform" or "copy", by its name; "tabfeed", "tf.data" or "workers" if the thread
        waited for work in other threads or processes; else "python".
    where
        Function, file and line.
    count
        How many samples.
    """

    phase: int
    kind: str
    where: str
    count: int


class StackLog:
    """Samples of one thread's stack."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, tuple[tuple[int, int], ...]]] = Counter()
        self._codes: dict[int, CodeType] = {}

    def add(self, phase: int, frame: FrameType | None) -> None:
        """Add a sample."""
        spots: list[tuple[int, int]] = []
        codes = self._codes
        while frame is not None and len(spots) < _MAX_DEPTH:
            code = frame.f_code
            spots.append((id(code), frame.f_lasti))
            codes[id(code)] = code
            frame = frame.f_back
        key = (phase, tuple(spots))
        if key in self._seen or len(self._seen) < _MAX_STACKS:
            self._seen[key] += 1

    def lines(self) -> list[CodeLine]:
        """The lines of code, the most frequent first."""
        counts: Counter[tuple[int, str, str]] = Counter()
        for (phase, spots), count in self._seen.items():
            stack = [(self._codes[code], last) for code, last in spots]
            counts[(phase, *_meaning(phase, stack))] += count
        return [CodeLine(*key, count) for key, count in counts.most_common()]


def _meaning(phase: int, stack: Sequence[Position]) -> tuple[str, str]:
    """The kind of a stack, and the line that shows it, else the user's innermost line."""
    inside = list(_until_profiler(stack)) if phase == 1 else list(stack)
    if not inside:
        return "python", "?"
    own = [spot for spot in inside if _is_own(spot[0].co_filename)]
    first = own[0] if own else inside[0]
    for code, _ in inside:
        for part, kind in _WAITERS:
            if part in code.co_filename and phase == 1:
                return kind, _describe(first)
    kind, spot = _kind(phase, inside, own)
    return kind, _describe(spot or first)


def _kind(
    phase: int, inside: Sequence[Position], own: Sequence[Position]
) -> tuple[str, Position | None]:
    if any(code.co_name in _COPY_FUNCTIONS for code, _ in inside):
        return "copy", None
    for spot in own[
        : _NEAR if phase == 1 else 1
    ]:  # in the loop itself only the innermost line counts
        kind = _kind_of_names(*_names(spot))
        if kind and (phase == 1 or kind == "copy"):
            return kind, spot
        if _COPY_CALL.search(_expression(spot)):
            return "copy", spot
    for code, _ in inside if phase == 1 else ():
        for part, kind in _LIBRARY_KINDS:
            if part in code.co_filename:
                return kind, None
    return "python", None


def _until_profiler(stack: Sequence[Position]) -> Iterator[Position]:
    """The frames above the profiler's own: the loader's work for a batch."""
    for spot in stack:
        if spot[0].co_filename.startswith(_PROFILER):
            return
        yield spot


def _is_own(filename: str) -> bool:
    return (
        not filename.startswith((*_LIBRARIES, "<frozen", _PROFILER))
        and "tabfeed" + os.sep + "loader" not in filename
    )


def _names(spot: Position) -> list[str]:
    """The function a frame is in, and those its current expression calls."""
    return [spot[0].co_name, *_CALLED.findall(_expression(spot))]


def _kind_of_names(*names: str) -> str | None:
    for name in names:
        for word in _PARTS.findall(name):
            kind = _KIND_OF_WORD.get(word.lower())
            if kind:
                return kind
    return None


def _line(spot: Position) -> int:
    code, last = spot
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= last < end and number is not None:
            line = number
    return line


def _expression(spot: Position) -> str:
    """The source of the current expression; before Python 3.11, of its line."""
    code, last = spot
    text = linecache.getline(code.co_filename, _line(spot))
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return text
    for index, (first, final, low, high) in enumerate(positions()):
        if index == last // 2 and first == final and low is not None and high is not None:
            return text.encode()[low:high].decode(errors="replace")
    return text


def _describe(spot: Position) -> str:
    code = spot[0]
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    return f"{name} ({os.path.basename(code.co_filename)}:{_line(spot)})"
