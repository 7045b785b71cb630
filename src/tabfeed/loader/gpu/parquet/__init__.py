"""Parquet decoded by the GPU itself."""
