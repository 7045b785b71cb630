"""How busy a GPU is, in the words of its driver (NVML)."""

from __future__ import annotations

import statistics
import threading

__all__ = ["Busy"]

_TICK = 0.1


class Busy:
    """Looks at the GPU ten times a second, within a ``with``; without NVML it knows nothing.

    Examples
    --------
    >>> with Busy() as busy:
    ...     pass
    >>> busy.percent is None or 0 <= busy.percent <= 100
    True
    """

    def __init__(self, gpu: int = 0) -> None:
        self._gpu = gpu
        self._seen: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def percent(self) -> float | None:
        """The mean, without the first looks, which speak of the time before; None if unknown."""
        looks = self._seen[2:] or self._seen
        return statistics.fmean(looks) if looks else None

    def _watch(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._gpu)
        except (ImportError, OSError):
            return
        except pynvml.NVMLError:  # no GPU, or no driver
            return
        while not self._stop.wait(_TICK):
            self._seen.append(int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))
