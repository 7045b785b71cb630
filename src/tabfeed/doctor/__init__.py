"""What in these files slows training, and files without it.

::

    from tabfeed.doctor import diagnose, rewrite

    print(diagnose("train/"))                # findings, each with what it costs here
    print(rewrite("train/", "train_fast/"))  # predicted and measured gain, side by side
"""

from __future__ import annotations

from tabfeed.doctor.examine import diagnose
from tabfeed.doctor.findings import Diagnosis, Finding, Forecast
from tabfeed.doctor.measure import Cost
from tabfeed.doctor.rewriter import RewriteOptions, Rewritten, rewrite

__all__ = [
    "Cost",
    "Diagnosis",
    "Finding",
    "Forecast",
    "RewriteOptions",
    "Rewritten",
    "diagnose",
    "rewrite",
]
