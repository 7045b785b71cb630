"""Formats whose rows are lines of text: CSV and JSON lines."""
