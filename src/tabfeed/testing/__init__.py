"""Conformance suites for code that plugs into tabfeed.

Import the check you need from its own module: `tabfeed.testing.loader.check_loader`.
"""

from __future__ import annotations
