"""What a user may say about loading onto a GPU; knows no framework."""

from __future__ import annotations

from dataclasses import dataclass

from tabfeed.budget import parse_bytes
from tabfeed.errors import ArgumentError

__all__ = ["READERS", "GpuOptions"]

READERS = ("auto", "arrow", "cudf")
_DEFAULT_MEMORY = 10**9


@dataclass(frozen=True)
class GpuOptions:
    """What a user may say about loading onto a GPU.

    Parameters
    ----------
    reader
        "arrow": decoded by threads of the CPU; "cudf": by the GPU itself, faster, but in time that
        the model would have; "auto": begins with Arrow, tries the other if training waits for
        batches, and keeps it if steps come faster. A loader's `reader_choice` says which and why.
    device_memory
        Most memory to hold on the GPU: bytes, "500MB", or a share of the GPU's; by default as much
        as `buffer_size`, and 1 GB where that is not given either.

    Examples
    --------
    >>> GpuOptions().memory(total=80 * 10**9, free=60 * 10**9)
    1000000000
    >>> GpuOptions(device_memory=0.05).memory(total=80 * 10**9, free=60 * 10**9)
    4000000000
    """

    reader: str = "auto"
    device_memory: int | float | str | None = None

    def __post_init__(self) -> None:
        if self.reader not in READERS:
            raise ArgumentError(
                f"reader is {self.reader!r}; it must be one of {', '.join(READERS)}"
            )
        if self.device_memory is not None:
            parse_bytes(self.device_memory, name="device_memory", of=1)

    def memory(self, *, total: int, free: int, buffer_size: int | float | str | None = None) -> int:
        """Bytes that may be held on a GPU: of those that are free never the last quarter.

        Parameters
        ----------
        total
            Bytes the GPU has.
        free
            Those that are free.
        buffer_size
            What the user has given of that name.
        """
        most = min(_DEFAULT_MEMORY, total // 4)
        for name, given in (("device_memory", self.device_memory), ("buffer_size", buffer_size)):
            if given is not None:
                most = parse_bytes(given, name=name, of=total)
                break
        return min(most, free * 3 // 4)
