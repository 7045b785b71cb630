"""The old place of `tabfeed.schema.merlin`; importing from here works until 0.3."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_NAMES = ("read_merlin_json", "read_pbtxt", "write_merlin_json", "write_pbtxt")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"{__name__}.{name} has moved to tabfeed.schema.merlin.{name}",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(importlib.import_module("tabfeed.schema.merlin"), name)
