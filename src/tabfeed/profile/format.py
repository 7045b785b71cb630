"""Numbers and stage names as readable text."""

from __future__ import annotations

__all__ = [
    "STAGE_LABELS",
    "WAITING_STAGES",
    "count",
    "megabytes",
    "percent",
    "rate",
    "seconds",
    "times",
]

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


def seconds(value: float) -> str:
    """A duration.

    Examples
    --------
    >>> seconds(93.2), seconds(1.234), seconds(0.9999), seconds(0.0213), seconds(0.00004)
    ('93 s', '1.23 s', '1 s', '21.3 ms', '40 µs')
    """
    if value >= 60:
        return f"{value:,.0f} s"
    if value >= 0.9995:
        return f"{value:.3g} s"
    if value >= 0.9995e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs"


def percent(share: float) -> str:
    """A fraction as a percentage.

    Examples
    --------
    >>> percent(0.623), percent(0.0123), percent(0.0), percent(1.0)
    ('62 %', '1.2 %', '0 %', '100 %')
    """
    value = 100 * share
    return f"{value:.1f} %" if 0.05 <= value < 9.95 else f"{value:.0f} %"


def count(value: float) -> str:
    """A count.

    Examples
    --------
    >>> count(1234), count(2_500_000), count(16.25)
    ('1,234', '2.5 M', '16.2')
    """
    if value >= 0.9995e9:
        return f"{value / 1e9:.3g} G"
    if value >= 0.9995e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def rate(rows: float) -> str:
    """Rows per second.

    Examples
    --------
    >>> rate(1_940_000)
    '1.94 M rows/s'
    """
    return f"{count(rows)} rows/s"


def megabytes(value: float) -> str:
    """A size in bytes.

    Examples
    --------
    >>> megabytes(1.5e9), megabytes(2.5e6), megabytes(1200)
    ('1.5 GB', '2.5 MB', '1.2 kB')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def times(gain: float) -> str:
    """A speedup.

    Examples
    --------
    >>> times(3.42), times(120.0)
    ('3.4 times as fast', 'over 100 times as fast')
    """
    return "over 100 times as fast" if gain > 100 else f"{gain:.1f} times as fast"
