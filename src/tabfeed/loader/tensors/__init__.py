"""Chunks as torch tensors, on any device."""
