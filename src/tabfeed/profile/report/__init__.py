"""A run as text, as a page, and beside another run."""
