"""Convert files of another format to Parquet, which a loader reads fastest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tabfeed.errors import ArgumentError
from tabfeed.io.dataset import Dataset

__all__ = ["convert_tfrecords_to_parquet"]

_COMPRESSIONS = (None, "", "GZIP", "ZLIB")


def convert_tfrecords_to_parquet(
    filenames: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output_dir: str | os.PathLike[str],
    compression_type: Literal["", "GZIP", "ZLIB"] | None = None,
    *,
    chunks: int | None = None,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    on_bad_file: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
) -> Dataset:
    """Write TFRecord files of Examples as Parquet, and return what was written.

    Streams the data; the folder appears only once it is complete. TensorFlow is not needed. For
    other formats, and to choose files and a shuffle, use `Dataset.to_parquet`.

    Parameters
    ----------
    filenames
        A path, a list of paths, a glob, a folder or a URL.
    output_dir
        The folder to write.
    compression_type
        Accepted for old code and not needed: the files themselves say.
    chunks
        Rows in a row group; by default what makes about 64 MiB.
    columns
        Only these features, in this order.
    dtypes
        Types by feature; the rest are inferred from the first records of each file.
    on_bad_file
        ``"raise"``, or ``"skip"`` to go on without what cannot be read.
    overwrite
        Replace the dataset that is there.

    Examples
    --------
    >>> convert_tfrecords_to_parquet("train*.tfrecord", "train", "BZIP2")
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: compression_type is 'BZIP2'; it must be "", "GZIP" or "ZLIB"
    """
    if compression_type not in _COMPRESSIONS:
        raise ArgumentError(
            f'compression_type is {compression_type!r}; it must be "", "GZIP" or "ZLIB"'
        )
    records = Dataset(
        filenames, engine="tfrecord", columns=columns, dtypes=dtypes, on_bad_file=on_bad_file
    )
    return records.to_parquet(output_dir, row_group_size=chunks, overwrite=overwrite)
