"""Arrow datasets of Parquet files, opened as what they are: files.

Any Arrow dataset can be read through a scanner, but only from start to end, so it would have
to be copied to disk first. One that is nothing but whole Parquet files with folder keys needs
no copy. Anything else (a filter, chosen row groups, another format, a schema of its own) is
left to the scanner.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow.fs as pafs

from tabfeed.io.fileset import FileSet, open_files
from tabfeed.io.parquet import ParquetFile, open_parquet
from tabfeed.io.skipping import SkipList
from tabfeed.io.small_types import small_type
from tabfeed.io.source import Location, ReadOptions

__all__ = ["open_arrow_dataset"]


def open_arrow_dataset(source: Any, skips: SkipList) -> FileSet | None:
    """The files of an Arrow dataset, or None if only a scanner can read it."""
    pads = sys.modules.get("pyarrow.dataset")  # nobody has one of its objects without importing it
    if pads is None or not isinstance(source, pads.FileSystemDataset):
        return None
    filtered = getattr(source, "_scan_options", None) != {}
    if filtered or not isinstance(source.format, pads.ParquetFileFormat) or not source.files:
        return None
    fragments = list(source.get_fragments())
    infos = source.filesystem.get_file_info([f.path for f in fragments])
    keys = [pads.get_partition_keys(f.partition_expression) for f in fragments]
    files = open_files(
        [_location(i, source.filesystem, k) for i, k in zip(infos, keys, strict=True)],
        open_parquet,
        ReadOptions(),
        skips,
    )
    types = {f.name: small_type(f.type) for f in source.schema}
    if set(types) != set(files.schema.names) or not _whole(files, fragments):
        return None
    return files.with_types({n: t for n, t in types.items() if files.schema.field(n).type != t})


def _location(info: pafs.FileInfo, filesystem: pafs.FileSystem, keys: dict[str, Any]) -> Location:
    size = int(info.size or 0)
    return Location(info.path, info.path, filesystem, size, tuple(keys.items()))


def _whole(files: FileSet, fragments: list[Any]) -> bool:
    """Whether every fragment is all row groups of its file."""
    groups = {f.path: f.num_row_groups for f in fragments}
    return all(
        isinstance(f, ParquetFile) and groups[f.location.path] == f.metadata.num_row_groups
        for f in files.files
    )
