"""Parquet: footers, page headers, sizes in memory, and reading row groups."""
