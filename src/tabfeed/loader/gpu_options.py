"""The old place of `tabfeed.loader.options`; importing from here works until 0.3."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_NAMES = ("GpuOptions",)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"{__name__}.{name} has moved to tabfeed.loader.options.{name}",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(importlib.import_module("tabfeed.loader.options"), name)
