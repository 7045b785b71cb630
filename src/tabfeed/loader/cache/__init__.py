"""Decoded partitions kept for later epochs, in memory or on disk."""
