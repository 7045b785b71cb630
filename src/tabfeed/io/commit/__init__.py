"""Publish a folder of files so that a reader sees all of them or none."""
