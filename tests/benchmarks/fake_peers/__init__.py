"""Adapters for the tests of the harness."""
