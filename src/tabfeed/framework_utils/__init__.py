"""Layers and small models that a framework's users expect beside the loaders."""

from __future__ import annotations
