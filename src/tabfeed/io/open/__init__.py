"""Open a dataset: find the files a user means, their format, and the schema beside them."""
