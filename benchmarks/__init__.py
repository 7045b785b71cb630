"""Scripts that measure; `bench.py` is the one that compares tabfeed with its peers."""
