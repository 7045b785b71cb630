"""Read partitions and decode them into shuffle blocks."""
