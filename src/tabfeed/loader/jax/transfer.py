"""From NumPy arrays to arrays of JAX, on any device, in the background.

In host memory JAX uses an array's own memory if it is aligned. To a GPU each buffer of a chunk is
copied whole: forty small copies a batch would take longer than the model's step. The loader's
thread waits for the copy, without the GIL; only then is the cut into columns queued, since a GPU
runs what it is given in order, and a cut that waits for its data would hold up the model's steps.

A batch is cut by one call, compiled for its number of rows. Where in the chunk it begins is an
argument, and chunks are all sent in one size, the last and shorter one too: so there is one
compilation, and another if the last batch is a short one. What was given up: one call for all
batches of a chunk. XLA makes a kernel for each column of each batch, and for 16 batches of 40
columns that took it a minute.

JAX has numbers of 32 bits, unless ``jax_enable_x64`` is on; files mostly have wider ones. Fractions
are rounded, as JAX itself does it. Integers are checked first, and refused if one of them does not
fit: JAX would truncate it silently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import jax
import numpy as np
import numpy.typing as npt

from tabfeed.budget import cpu_count
from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.loader.assemble.chunk import Chunk, ChunkMaker
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.plan import ChunkPlan
from tabfeed.loader.read.arrow_columns import fits
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.partition_reader import PartReader
from tabfeed.trace import span

__all__ = [
    "JaxTransfer",
    "WholeChunks",
    "as_wide_as_jax",
    "check_32_bits",
    "find_device",
    "has_64_bits",
    "in_whole_chunks",
]


Array = npt.NDArray[Any]
T = TypeVar("T")
_FEW_CORES = 4
_MOST_HELD = 2


def find_device(device: Any) -> Any:
    """The device a user means: one of JAX's, its name, or a GPU's number; None is JAX's default.

    Examples
    --------
    >>> find_device("cpu:0").platform
    'cpu'
    >>> find_device("cpu:99")
    Traceback (most recent call last):
        ...
    tabfeed.errors.LoaderError: device is 'cpu:99', but there are 1 of that kind, from 0 on
    """
    if device is None or isinstance(device, jax.Device):
        return device
    name = f"cuda:{device}" if isinstance(device, int) else str(device)
    kind, _, number = name.partition(":")
    if number and not number.isdecimal():
        raise ArgumentError(f'device is {device!r}; it must be like "cuda", "cuda:0" or "cpu"')
    try:
        there = jax.local_devices(backend=kind)
    except RuntimeError as e:
        has = ", ".join(sorted({d.platform for d in jax.local_devices()}))
        raise LoaderError(
            f"device is {device!r}, but JAX finds none of that kind here, only {has}"
        ) from e
    if int(number or 0) >= len(there):
        raise LoaderError(
            f"device is {device!r}, but there are {len(there)} of that kind, from 0 on"
        )
    return there[int(number or 0)]


class JaxTransfer:
    """Copies arrays to a device; threads may share it.

    Parameters
    ----------
    device
        Where to; None is JAX's default.
    column
        The shape of one row of a column.

    Examples
    --------
    >>> transfer = JaxTransfer()
    >>> buffers = [np.array([[1, 2, 3], [4, 5, 6]], np.int32), np.array([[7, 8, 9]], np.float32)]
    >>> for batch in transfer.columns(buffers, (0, 2, 3)):
    ...     print([column.tolist() for column in batch])
    [[1, 2], [4, 5], [7.0, 8.0]]
    [[3], [6], [9.0]]
    """

    def __init__(self, device: Any = None, column: tuple[int, ...] = ()) -> None:
        self.device, self.column = device, column
        self._rows = {True: 0, False: 0}  # the longest NumPy buffers so far, and those of torch
        self._places: dict[int, Any] = {}
        self._cutting: deque[tuple[Any, Any]] = deque()

    @property
    def remote(self) -> bool:
        """Whether the device has memory of its own."""
        return all(device.platform != "cpu" for device in self(jax.numpy.int32(0)).devices())

    @property
    def there(self) -> Any:
        """The device, where JAX has chosen it too."""
        (device,) = self(jax.numpy.int32(0)).devices()
        return device

    def __call__(self, arrays: T) -> T:
        """Arrays, in any structure, on the device: one call for all of them.

        JAX holds on to an array for as long as it looks at its memory.
        """
        moved: T = jax.device_put(arrays, self.device)
        return moved

    def columns(self, matrices: Sequence[Array], bounds: Sequence[int]) -> list[Sequence[Any]]:
        """For each batch of a chunk the columns of all its ``(columns, rows)`` buffers."""
        wholes = self._to_device(matrices)
        batches = [
            _cut(wholes, self._place(low), high - low, self.column)
            for low, high in pairwise(bounds)
        ]
        if not isinstance(matrices[0], np.ndarray):
            self._hold(wholes)
        return batches

    def forget(self) -> None:
        """Wait until all memory that is not JAX's own has been read, and keep none of it."""
        with suppress(IndexError):  # there is none left
            while True:
                self._cutting.popleft()[1].block_until_ready()

    def _hold(self, wholes: Sequence[Any]) -> None:
        """Keep memory that is not JAX's own until all that is queued on it so far is done."""
        held = self._cutting
        held.append((wholes, _first_value(wholes[0])))
        with suppress(IndexError):  # another thread may forget them meanwhile
            while held[0][1].is_ready() or len(held) > _MOST_HELD:
                held.popleft()[1].block_until_ready()

    def _to_device(self, matrices: Sequence[Any]) -> Sequence[Any]:
        """Buffers on the device, padded to the longest so far; returns once they have arrived.

        Buffers of torch on the device are used in place, without a copy.
        """
        rows = matrices[0].shape[1]
        new = isinstance(matrices[0], np.ndarray)
        self._rows[new] = most = max(1, self._rows[new], rows)
        if rows < most:
            matrices = [_longer(matrix, most) for matrix in matrices]
        if not isinstance(matrices[0], np.ndarray):
            return [jax.dlpack.from_dlpack(matrix) for matrix in matrices]
        with span("copy", rows=rows):
            moved = self(tuple(matrices))
            for whole in moved:
                whole.block_until_ready()
        return moved

    def _place(self, row: int) -> Any:
        """A row's number, on the device: sent with each call it would be a copy of its own."""
        if row not in self._places:
            self._places[row] = self(np.int32(row))
        return self._places[row]

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (_name(self.device), self.column)


def _again(device: str | None, column: tuple[int, ...]) -> JaxTransfer:
    """The same in another process, without the arrays on the device."""
    return JaxTransfer(find_device(device), column)


def _name(device: Any) -> str | None:
    """What `find_device` finds it by."""
    if device is None:
        return None
    return f"{device.platform}:{jax.local_devices(backend=device.platform).index(device)}"


def _longer(matrix: Any, rows: int) -> Any:
    """The same with more rows; what is in them does not matter."""
    shape = (matrix.shape[0], rows)
    is_numpy = isinstance(matrix, np.ndarray)
    out = np.zeros(shape, matrix.dtype) if is_numpy else matrix.new_zeros(shape)
    out[:, : matrix.shape[1]] = matrix
    return out


@jax.jit
def _first_value(whole: Any) -> Any:
    """Something to be computed after all that was queued before."""
    return whole[0, 0]


@partial(jax.jit, static_argnums=(2, 3))
def _cut(wholes: Sequence[Any], start: Any, rows: int, column: tuple[int, ...]) -> list[Any]:
    """The columns of `rows` rows, from `start` on."""
    return [
        jax.lax.dynamic_slice(whole, (np.int32(number), start), (1, rows)).reshape(rows, *column)
        for whole in wholes
        for number in range(whole.shape[0])
    ]


@dataclass(frozen=True)
class WholeChunks:
    """Makes each chunk one buffer of one size, so that cutting is compiled once."""

    maker: ChunkMaker

    def make(self, plan: ChunkPlan, blocks: Mapping[int, Any]) -> list[Chunk]:
        """The rows of `plan`."""
        return [self.maker.make_whole(plan, blocks)]


def in_whole_chunks(pipeline: Pipeline[T]) -> Pipeline[T]:
    """The same batches, from chunks in one piece, made in few steps of Python.

    With many cores, all columns of a partition are read by one call: every call of every thread
    queues for the GIL, which the training loop needs as well.
    """
    maker: Any = pipeline.stages.maker
    reader = pipeline.stages.reader
    many = cpu_count() > _FEW_CORES
    if many and isinstance(reader, BlockReader) and isinstance(reader.parts, PartReader):
        reader = reader.reading(replace(reader.parts, at_once=2**40))
    stages = replace(pipeline.stages, reader=reader, maker=WholeChunks(maker))
    return replace(pipeline, stages=stages)


def has_64_bits() -> bool:
    """Whether JAX has numbers of 64 bits now."""
    config: Any = jax.config
    return bool(config.jax_enable_x64)


def as_wide_as_jax(matrix: Array, names: Sequence[str]) -> Array:
    """Columns, ``(columns, ...)``, in a dtype that JAX has.

    Examples
    --------
    >>> as_wide_as_jax(np.array([[1, 2]]), ["a"])
    array([[1, 2]], dtype=int32)
    >>> as_wide_as_jax(np.array([[1, 2], [3, 2**31]]), ["a", "b"])
    Traceback (most recent call last):
        ...
    tabfeed.errors.LoaderError: column 'b' goes from 3 to 2147483648, beyond the 32 bits JAX uses: \
jax.config.update("jax_enable_x64", True) allows 64
    """
    if has_64_bits() or matrix.dtype.itemsize < 8:
        return matrix
    if not isinstance(matrix, np.ndarray):  # on a GPU, made as wide as JAX had them then
        raise LoaderError(
            "jax_enable_x64 was on when this batch was made, and is off now; switch it between "
            "two epochs"
        )
    if matrix.dtype.kind not in "iuf":
        return matrix
    narrow = np.dtype(f"{matrix.dtype.kind}4")
    if narrow.kind != "f" and not fits(matrix, narrow):
        lows, highs = ([int(f(row)) for row in matrix] for f in (np.min, np.max))
        check_32_bits(names, narrow.kind, lows, highs)
    return matrix.astype(narrow)


def check_32_bits(
    names: Sequence[str], kind: str, lows: Sequence[int], highs: Sequence[int]
) -> None:
    """Refuse columns of integers whose smallest or largest number does not fit into 32 bits.

    Parameters
    ----------
    names
        The columns.
    kind
        ``"i"`` or ``"u"``, as NumPy has it.
    lows, highs
        The smallest and the largest number of each column.

    Examples
    --------
    >>> check_32_bits(["a", "b"], "u", [0, 5], [2**32 - 1, 7])
    """
    limits = np.iinfo(f"{kind}4")
    for name, low, high in zip(names, lows, highs, strict=True):
        if low < limits.min or high > limits.max:
            raise LoaderError(
                f"column {name!r} goes from {low} to {high}, beyond the 32 bits JAX uses: "
                'jax.config.update("jax_enable_x64", True) allows 64'
            )
