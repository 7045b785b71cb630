"""Find what slows the reading of Parquet files, and rewrite them.

::

    from tabfeed.doctor import diagnose, rewrite

    print(diagnose("train/"))                # findings and their cost on this machine
    print(rewrite("train/", "train_fast/"))  # predicted and measured gain
"""

from __future__ import annotations

from tabfeed.doctor.examine import diagnose
from tabfeed.doctor.report import Cost, Diagnosis, Finding, Forecast
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
