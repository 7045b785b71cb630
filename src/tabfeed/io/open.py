"""From anything a user hands over to opened files, and the remarks that lie beside them.

Arrow datasets of Parquet files, opened as what they are: files.

Any Arrow dataset can be read through a scanner, but only from start to end, so it would have
to be copied to disk first. One that is nothing but whole Parquet files with folder keys needs
no copy. Anything else (a filter, chosen row groups, another format, a schema of its own) is
left to the scanner.

What is said about columns, brought together with the columns there are.

Tags, ranges and sizes come from three places: the data itself, a file that a writer left
beside it, and the user. The data decides the types, the user has the last word on the rest.
"""

from __future__ import annotations

import importlib
import os
import posixpath
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError, ColumnNotFoundError, SchemaError, UnreadableFileError
from tabfeed.io.align import normalize_type
from tabfeed.io.commit.manifest import read_manifest
from tabfeed.io.fileset import FileSet, open_files
from tabfeed.io.find_files import Found, find_files, infer_engine, outermost_key
from tabfeed.io.formats.base import OpenFormat, ReadOptions
from tabfeed.io.formats.memory import as_data_file
from tabfeed.io.formats.parquet.file import open_parquet
from tabfeed.io.storage.file_ref import FileRef
from tabfeed.io.storage.paths import RemotePath
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.io.unreadable import SkipList
from tabfeed.schema import ColumnSchema, Schema

__all__ = [
    "noted",
    "open_arrow_dataset",
    "open_source",
    "select_columns",
    "types_of",
    "with_remarks",
]
# Formats by name: the module of each defines `open_file`, and is imported when first used.
_MODULES = {
    "avro": "tabfeed.io.formats.avro.file",
    "csv": "tabfeed.io.formats.text.csv",
    "ipc": "tabfeed.io.formats.ipc",
    "jsonl": "tabfeed.io.formats.text.jsonl",
    "parquet": "tabfeed.io.formats.parquet.file",
    "tfrecord": "tabfeed.io.formats.tfrecord.file",
}


def types_of(schema: Schema | None) -> dict[str, pa.DataType]:
    """The types a schema states."""
    return {c.name: c.dtype for c in schema or () if c.dtype is not None}


def select_columns(schema: Schema, columns: Sequence[str]) -> Schema:
    """The named columns, or a complaint that helps."""
    if isinstance(columns, str):
        raise ArgumentError(f"columns is {columns!r}; give a list of names: [{columns!r}]")
    for name in columns:
        if name not in schema:
            raise ColumnNotFoundError(name, schema.column_names)
    return schema.select(columns)


def with_remarks(found: Schema, beside: Schema | None, given: Schema | None) -> Schema:
    """The columns found in the data, with the tags and notes that others have for them.

    What lies beside the files may speak of columns that are gone; what the user gave may not.
    """
    for column in given or ():
        if column.name not in found:
            raise ColumnNotFoundError(column.name, found.column_names)
    notes = {c.name: c for schema in (beside, given) for c in schema or ()}
    return Schema(noted(c, notes[c.name]) if c.name in notes else c for c in found)


def noted(found: ColumnSchema, remarks: ColumnSchema) -> ColumnSchema:
    """The notes on a column, on what it really is."""
    if found.dtype is None:
        return remarks
    try:
        return replace(remarks.with_dtype(found.dtype), nullable=found.nullable)
    except SchemaError:  # notes about a column that has become another type
        return found


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
    types = {f.name: normalize_type(f.type) for f in source.schema}
    if set(types) != set(files.schema.names) or not _whole(files, fragments):
        return None
    return files.with_types({n: t for n, t in types.items() if files.schema.field(n).type != t})


def _location(info: pafs.FileInfo, filesystem: pafs.FileSystem, keys: dict[str, Any]) -> FileRef:
    size = int(info.size or 0)
    return FileRef(info.path, info.path, filesystem, size, tuple(keys.items()))


def _whole(files: FileSet, fragments: list[Any]) -> bool:
    """Whether every fragment is all row groups of its file."""
    groups = {f.path: f.num_row_groups for f in fragments}
    return all(f.ref is not None and groups[f.ref.path] == len(f.unit_rows) for f in files.files)


_FORMATS = {
    "parquet": "parquet",
    "csv": "csv",
    "jsonl": "jsonl",
    "json": "jsonl",
    "ipc": "ipc",
    "feather": "ipc",
    "arrow": "ipc",
    "avro": "avro",
    "tfrecord": "tfrecord",
}


def _format(engine: str) -> OpenFormat:
    """The opening function of a format, imported when it is first needed."""
    module = importlib.import_module(_MODULES[engine])
    opening: OpenFormat = getattr(module, f"open_{engine}")
    return opening


def open_source(
    source: Any,
    *,
    engine: str | None,
    options: ReadOptions,
    storage_options: Mapping[str, Any] | None,
    on_bad_file: str,
) -> tuple[FileSet, Schema | None]:
    """Open what `source` means; returns the files and the schema found beside them, if any."""
    if on_bad_file not in ("raise", "skip"):
        raise ArgumentError(f'on_bad_file is {on_bad_file!r}; it must be "raise" or "skip"')
    if engine is not None and engine not in _FORMATS:
        raise ArgumentError(f"engine is {engine!r}; it must be one of {', '.join(_FORMATS)}")
    skips = SkipList(allowed=on_bad_file == "skip")
    if not _is_path(source):
        return _open_frame(source, skips), None
    family = None if engine is None else _FORMATS[engine]
    found = find_files(source, engine=family, storage_options=storage_options)
    chosen = family or _one_engine(found.files, options)
    files = open_files(found.files, _format(chosen), options, skips)
    remarks = _remarks(found)
    return _with_key_types(files, remarks), remarks


def _open_frame(source: Any, skips: SkipList) -> FileSet:
    files = open_arrow_dataset(source, skips)
    if files is not None:
        return files
    file = as_data_file(source)
    if file is None:
        raise ArgumentError(
            f"a dataset cannot be made from {type(source).__name__}; give a path, a list of paths, "
            "a pandas, Polars, Arrow or Dask frame, or a dict of arrays"
        )
    return FileSet([file], [f"<{type(source).__name__}>"], [{}], skips)


def _is_path(source: Any) -> bool:
    if isinstance(source, str | os.PathLike):
        return True
    return isinstance(source, Sequence) and all(isinstance(s, str | os.PathLike) for s in source)


def _one_engine(files: Sequence[FileRef], options: ReadOptions) -> str:
    text = options.sep is not None or options.names is not None or options.header != "infer"
    engines = {infer_engine(f, text_options=text): f.name for f in files}
    if len(engines) > 1:
        (a, first), (b, second) = list(engines.items())[:2]
        raise ArgumentError(
            f"the files are of several formats: {first} is {a}, {second} is {b}; open them one by "
            "one, or say engine="
        )
    return next(iter(engines))


def _remarks(found: Found) -> Schema | None:
    """The schema that a writer left: in its manifest, or in one of the older tools' files."""
    if found.manifest is not None and found.manifest.schema is not None:
        return found.manifest.schema
    first = found.files[0]
    prefix = first.name.removesuffix(first.path)
    folder = posixpath.dirname(first.path) if found.folder is None else found.folder.path
    folder = outermost_key(folder)
    above = posixpath.dirname(folder)  # which above a bucket or a host is nothing
    for path in (folder, above) if above and not above.endswith(":") else (folder,):
        schema = _schema_in(RemotePath(path, first.filesystem, prefix, first.remote))
        if schema is not None:
            return schema
    return None


def _with_key_types(files: FileSet, remarks: Schema | None) -> FileSet:
    """Folder keys as they were written: a folder's name alone tells only whole numbers apart."""
    names = {n for keys in files.keys for n in keys}
    own = {n for file in files.files for n in file.schema.names} if names else set()
    noted = {
        c.name: c.dtype for c in remarks or () if c.dtype is not None and c.name in names - own
    }
    types = {n: t for n, t in noted.items() if all(_is_value(keys, n, t) for keys in files.keys)}
    if remarks is None or not types:
        return files
    keys = [
        {n: str(v) if n in types and v is not None else v for n, v in old.items()}
        for old in files.keys
    ]
    new = FileSet(files.files, files.names, keys, files.skips, types)
    if set(remarks.column_names) == set(new.schema.names):
        new.schema = pa.schema([new.schema.field(n) for n in remarks.column_names])
    return new


def _is_value(keys: Mapping[str, Any], name: str, dtype: pa.DataType) -> bool:
    """Whether a folder's name is a value of that type, or says null."""
    value = keys.get(name)
    try:
        pa.scalar(None if value is None else str(value), pa.string()).cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _schema_in(folder: RemotePath) -> Schema | None:
    from tabfeed.schema.merlin import read_merlin_json, read_pbtxt

    manifest = read_manifest(folder)
    if manifest is not None and manifest.schema is not None:
        return manifest.schema
    for name, read in ((".merlin/schema.json", read_merlin_json), ("schema.pbtxt", read_pbtxt)):
        place = replace(folder, path=posixpath.join(folder.path, name))
        try:
            text = place.read_text()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # some object stores forbid what they do not have
        except UnreadableFileError:
            raise
        except OSError as e:
            raise UnreadableFileError(
                f"{place.name} cannot be read: {reason(e)}. {remedy(e)}"
            ) from e
        except UnicodeDecodeError as e:
            raise SchemaError(f"{place.name} cannot be understood: it is not text") from e
        try:
            return read(text)
        except SchemaError as e:
            raise SchemaError(f"{place.name} cannot be understood: {e}") from e
    return None
