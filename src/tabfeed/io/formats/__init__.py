"""File formats: each opens a file as a `DataFile`, which knows its schema and reads its units."""
