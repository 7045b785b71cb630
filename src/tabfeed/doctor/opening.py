"""From what a user writes to Parquet files that can be looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError, BadFileError, UnreadableFileError
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.io.unreadable import unannounced

__all__ = ["Source", "is_local", "name_of", "open_parquet_files"]

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Dataset


def open_parquet_files(
    data: Source, storage_options: Mapping[str, Any] | None = None
) -> tuple[Dataset, list[str]]:
    """The dataset of those Parquet files that can be opened, and what is wrong with the others."""
    if isinstance(data, Dataset):
        return _only_parquet(data), []
    try:
        return _only_parquet(Dataset(data, storage_options=storage_options)), []
    except (BadFileError, UnreadableFileError):
        with unannounced():
            rest = Dataset(data, storage_options=storage_options, on_bad_file="skip")
        bad = [s.reason for s in rest.skipped]
        return _only_parquet(Dataset(rest.files, storage_options=storage_options)), bad


def _only_parquet(dataset: Dataset) -> Dataset:
    if dataset.condition is not None or dataset.mapped:
        raise ArgumentError("this dataset has a filter or a map; give the files as they are")
    for name, file in zip(dataset.files, dataset.fileset.files, strict=True):
        if not isinstance(file, ParquetFile):
            raise ArgumentError(
                f"{name} is not Parquet, and only Parquet has the row groups and pages that are "
                "looked at here; write it as Parquet first: tabfeed convert IN OUT"
            )
    return dataset


def is_local(dataset: Dataset) -> bool:
    """Whether every file is on this machine."""
    places = [getattr(f, "location", None) for f in dataset.fileset.files]
    return all(p is not None and isinstance(p.filesystem, pafs.LocalFileSystem) for p in places)


def name_of(data: Source) -> str:
    """What to call the data in a report."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    names = data.files if isinstance(data, Dataset) else [os.fspath(p) for p in data]
    return names[0] if len(names) == 1 else f"{len(names)} files"
