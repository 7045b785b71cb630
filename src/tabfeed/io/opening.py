"""From anything a user hands over to opened files, and the remarks that lie beside them."""

from __future__ import annotations

import importlib
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tabfeed.errors import ArgumentError, SchemaError, UnreadableFileError
from tabfeed.io.arrow_datasets import open_arrow_dataset
from tabfeed.io.files import Found, find_files, infer_engine, outermost_key
from tabfeed.io.fileset import FileSet, open_files
from tabfeed.io.filesystem import Place
from tabfeed.io.frames import as_data_file
from tabfeed.io.manifest import read_manifest
from tabfeed.io.retry import reason, remedy
from tabfeed.io.skipping import SkipList
from tabfeed.io.source import Location, OpenFormat, ReadOptions
from tabfeed.schema import Schema

__all__ = ["open_source"]


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
    module = importlib.import_module(f"tabfeed.io.{engine}")
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


def _one_engine(files: Sequence[Location], options: ReadOptions) -> str:
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
        schema = _schema_in(Place(path, first.filesystem, prefix, first.remote))
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


def _schema_in(folder: Place) -> Schema | None:
    from tabfeed.schema_formats import read_merlin_json, read_pbtxt

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
