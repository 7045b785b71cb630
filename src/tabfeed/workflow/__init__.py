"""Workflows: graphs of operators, fitted, applied, saved and loaded."""

from __future__ import annotations

from tabfeed.workflow.workflow import Workflow

__all__ = ["Workflow"]
