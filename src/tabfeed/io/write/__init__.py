"""Write a dataset as Parquet."""
