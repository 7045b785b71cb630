"""Batches made on a GPU; imported only where a GPU is used."""
