"""What a table's columns are: names, types, roles, ranges."""

from __future__ import annotations

from tabfeed.schema.column import ColumnSchema, Domain, Tags
from tabfeed.schema.schema import Schema

__all__ = ["ColumnSchema", "Domain", "Schema", "Tags"]
