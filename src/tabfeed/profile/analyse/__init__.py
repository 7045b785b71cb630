"""From recordings to a verdict."""
