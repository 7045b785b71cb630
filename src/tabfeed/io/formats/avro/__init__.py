"""Avro object containers."""
