"""Open whatever a user gives as a dataset: paths, frames, Arrow datasets.

`tabfeed.io.find_files` turns paths into files, and the module of their format opens each:
`tabfeed.io.formats.base` has the table of formats.

An Arrow dataset of whole Parquet files with folder keys is opened as these files, so that its row
groups can be read in any order; any other (with a filter, chosen row groups, another format) can
only be scanned from start to end, and is read as a frame.

What is known of a column comes from three places: the data decides its type, a schema that a
writer left beside the files adds tags and properties, and the user's own schema overrides these.
"""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from tabfeed.errors import ArgumentError, ColumnNotFoundError, SchemaError, UnreadableFileError
from tabfeed.io.align import normalize_type
from tabfeed.io.commit.manifest import MANIFEST, outermost_key, read_manifest
from tabfeed.io.fileset import FileSet, SkipList
from tabfeed.io.filters import parse_filters
from tabfeed.io.find_files import Found, find_files, open_files
from tabfeed.io.formats.base import FORMATS, ReadOptions, engine_of
from tabfeed.io.formats.memory import as_data_file
from tabfeed.io.formats.parquet.file import open_parquet
from tabfeed.io.partition import DEFAULT_PART_SIZE
from tabfeed.io.storage.files import FileRef, RemotePath
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.io.table import PartitionedTable, Partitioning, select_columns
from tabfeed.schema import ColumnSchema, Schema

__all__ = ["common_engine", "infer_engine", "open_table", "with_metadata"]

T = TypeVar("T")
_MERLIN = (".merlin/schema.json", "schema.pbtxt")  # where NVTabular and Merlin put schemas


def open_table(
    source: Any,
    *,
    engine: str | None = None,
    options: ReadOptions | None = None,
    part_size: int = DEFAULT_PART_SIZE,
    npartitions: int | None = None,
    schema: Schema | None = None,
    storage_options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    on_bad_file: str = "raise",
) -> PartitionedTable:
    """Open what `source` means; see `tabfeed.Dataset` for the parameters."""
    options = options or ReadOptions()
    files, beside = _open_source(source, engine, options, storage_options, on_bad_file)
    stated = {c.name: c.dtype for c in schema or () if c.dtype is not None}
    files = files.with_types({**options.dtypes, **stated})
    condition = None if filters is None else parse_filters(filters, files.schema)
    known = with_metadata(Schema.from_arrow(files.schema), beside, schema)
    named = {*(columns or ()), *(c.name for c in schema or ())}
    index = [n for n in files.index_columns if n not in named]
    if columns is not None:
        chosen = select_columns(known, columns)
    elif index:
        chosen = known.select([n for n in known.column_names if n not in index])
    else:
        chosen = known
    partitioning = Partitioning(
        files, condition, tuple(chosen.column_names), part_size, npartitions
    )
    table = PartitionedTable(files, partitioning, chosen, known.select(index))
    for name in table.columns_read():
        if name in files.conflicts:
            raise files.conflicts[name]
    return table


# -- files ------------------------------------------------------------------------------


def _open_source(
    source: Any,
    engine: str | None,
    options: ReadOptions,
    storage_options: Mapping[str, Any] | None,
    on_bad_file: str,
) -> tuple[FileSet, Schema | None]:
    """The files that `source` means, and the schema found beside them, if any."""
    if on_bad_file not in ("raise", "skip"):
        raise ArgumentError(f'on_bad_file is {on_bad_file!r}; it must be "raise" or "skip"')
    if engine is not None and engine not in _BY_ENGINE:
        raise ArgumentError(f"engine is {engine!r}; it must be one of {', '.join(_BY_ENGINE)}")
    skips = SkipList(allowed=on_bad_file == "skip")
    if not _is_path(source):
        return _open_frame(source, skips), None
    chosen = None if engine is None else _BY_ENGINE[engine].name
    found = find_files(source, engine=chosen, storage_options=storage_options)
    chosen = chosen or common_engine(found.files, options)
    files = open_files(found.files, _BY_ENGINE[chosen].open, options, skips)
    beside = _schema_beside(found)
    return (files if beside is None else _with_key_types(files, beside)), beside


def _is_path(source: Any) -> bool:
    if isinstance(source, str | os.PathLike):
        return True
    return isinstance(source, Sequence) and all(isinstance(s, str | os.PathLike) for s in source)


# -- frames -----------------------------------------------------------------------------


def _open_frame(source: Any, skips: SkipList) -> FileSet:
    """A frame of another library, or an Arrow dataset."""
    files = _open_arrow_dataset(source, skips)
    if files is not None:
        return files
    file = as_data_file(source)
    if file is None:
        raise ArgumentError(
            f"a dataset cannot be made from {type(source).__name__}; give a path, a list of paths, "
            "a pandas, Polars, Arrow or Dask frame, or a dict of arrays"
        )
    return FileSet([file], [f"<{type(source).__name__}>"], [{}], skips)


def _open_arrow_dataset(source: Any, skips: SkipList) -> FileSet | None:
    """The files of an Arrow dataset; None for anything else, and where only a scanner can read."""
    pads = sys.modules.get("pyarrow.dataset")  # imported by whoever made such an object
    if pads is None or not isinstance(source, pads.FileSystemDataset):
        return None
    filtered = getattr(source, "_scan_options", None) != {}
    if filtered or not isinstance(source.format, pads.ParquetFileFormat) or not source.files:
        return None
    fragments = list(source.get_fragments())
    refs = []
    for info, fragment in zip(
        source.filesystem.get_file_info([f.path for f in fragments]), fragments, strict=True
    ):
        keys = tuple(pads.get_partition_keys(fragment.partition_expression).items())
        refs.append(FileRef(info.path, info.path, source.filesystem, int(info.size or 0), keys))
    files = open_files(refs, open_parquet, ReadOptions(), skips)
    types = {f.name: normalize_type(f.type) for f in source.schema}
    if set(types) != set(files.schema.names) or not _are_whole(files, fragments):
        return None
    return files.with_types({n: t for n, t in types.items() if files.schema.field(n).type != t})


def _are_whole(files: FileSet, fragments: list[Any]) -> bool:
    """Whether every fragment is all row groups of its file."""
    groups = {f.path: f.num_row_groups for f in fragments}
    return all(f.ref is not None and groups[f.ref.path] == len(f.unit_rows) for f in files.files)


# -- metadata ---------------------------------------------------------------------------


def with_metadata(found: Schema, beside: Schema | None, given: Schema | None) -> Schema:
    """The columns found in the data, with the tags and properties that other schemas have for them.

    The schema beside the files may name columns that are gone; the one that the user gave may not.
    """
    if beside is None and given is None:
        return found
    for column in given or ():
        if column.name not in found:
            raise ColumnNotFoundError(column.name, found.column_names)
    metadata = {c.name: c for schema in (beside, given) for c in schema or ()}
    return Schema(_with_type_of(c, metadata[c.name]) if c.name in metadata else c for c in found)


def _with_type_of(found: ColumnSchema, metadata: ColumnSchema) -> ColumnSchema:
    """A column's metadata, with the type that the data has."""
    if found.dtype is None:
        return metadata
    try:
        return replace(metadata.with_dtype(found.dtype), nullable=found.nullable)
    except SchemaError:  # the column had another type when this was written
        return found


def _schema_beside(found: Found) -> Schema | None:
    """The schema that a writer left: in its manifest, or in a file of NVTabular or Merlin."""
    if found.manifest is not None and found.manifest.schema is not None:
        return found.manifest.schema
    first = found.files[0]
    prefix = first.name.removesuffix(first.path)
    folder = posixpath.dirname(first.path) if found.folder is None else found.folder.path
    folder = outermost_key(folder)
    above = posixpath.dirname(folder)  # empty above a bucket or a host
    for path in (folder, above) if above and not above.endswith(":") else (folder,):
        schema = _schema_in(RemotePath(path, first.filesystem, prefix, first.remote))
        if schema is not None:
            return schema
    return None


def _schema_in(folder: RemotePath) -> Schema | None:
    names = (MANIFEST, *_MERLIN)
    if folder.local and not any(os.path.lexists(posixpath.join(folder.path, n)) for n in names):
        return None
    from tabfeed.schema.merlin import read_merlin_json, read_pbtxt

    manifest = _if_there(folder.child(MANIFEST), lambda _: read_manifest(folder))
    if manifest is not None and manifest.schema is not None:
        return manifest.schema
    for name, read in zip(_MERLIN, (read_merlin_json, read_pbtxt), strict=True):
        path = folder.child(name)
        try:
            text = _if_there(path, RemotePath.read_text)
        except UnicodeDecodeError as e:
            raise SchemaError(f"{path.name} cannot be understood: it is not text") from e
        if text is None:
            continue
        try:
            return read(text)
        except SchemaError as e:
            raise SchemaError(f"{path.name} cannot be understood: {e}") from e
    return None


def _if_there(path: RemotePath, read: Callable[[RemotePath], T | None]) -> T | None:
    """What a file beside the data says; None if there is none."""
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnreadableFileError:
        raise
    except OSError as e:
        if isinstance(e, PermissionError) and not path.local:
            return None  # some object stores answer that what they do not have is forbidden
        raise UnreadableFileError(f"{path.name} cannot be read: {reason(e)}. {remedy(e)}") from e


def _with_key_types(files: FileSet, beside: Schema) -> FileSet:
    """Folder keys with the types they were written with; a folder's name only tells integers."""
    names = {n for keys in files.keys for n in keys}
    own = {n for file in files.files for n in file.schema.names} if names else set()
    noted = {c.name: c.dtype for c in beside if c.dtype is not None and c.name in names - own}
    types = {n: t for n, t in noted.items() if all(_is_value(keys, n, t) for keys in files.keys)}
    if not types:
        return files
    keys = [
        {n: str(v) if n in types and v is not None else v for n, v in old.items()}
        for old in files.keys
    ]
    new = FileSet(files.files, files.names, keys, files.skips, types)
    if set(beside.column_names) == set(new.schema.names):
        new.schema = pa.schema([new.schema.field(n) for n in beside.column_names])
    return new


def _is_value(keys: Mapping[str, Any], name: str, dtype: pa.DataType) -> bool:
    """Whether a folder's name is a value of that type, or says null."""
    value = keys.get(name)
    try:
        pa.scalar(None if value is None else str(value), pa.string()).cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


# -- formats -------------------------------------------------------------------------------

_BY_ENGINE = {name: form for form in FORMATS for name in form.names}


def infer_engine(file: FileRef, *, text_options: bool) -> str:
    """The format of a file, by its name, else by its first bytes.

    Parameters
    ----------
    file
        The file.
    text_options
        Whether options were given that only CSV has, such as `sep`: then an unnamed format
        that is nothing else is CSV.
    """
    if known := engine_of(file.path):
        return known
    try:
        with file.open() as f:
            start = bytes(f.read(12))
    except OSError as e:
        raise UnreadableFileError(f"{file.name} cannot be read: {reason(e)}. {remedy(e)}") from e
    for form in FORMATS:
        if form.first_bytes and start.startswith(form.first_bytes):
            return form.name
    from tabfeed.io.formats.tfrecord.records import is_header

    if is_header(start):
        return "tfrecord"
    if text_options:
        return "csv"
    raise ArgumentError(
        f"the format of {file.name} cannot be told from its name or its first bytes; say it with "
        f"engine=, one of {', '.join(sorted(f.name for f in FORMATS))}"
    )


def common_engine(files: Sequence[FileRef], options: ReadOptions) -> str:
    """The format of all files; an error if they have several."""
    text = options.sep is not None or options.names is not None or options.header != "infer"
    engines = {infer_engine(f, text_options=text): f.name for f in files}
    if len(engines) > 1:
        (a, first), (b, second) = list(engines.items())[:2]
        raise ArgumentError(
            f"the files are of several formats: {first} is {a}, {second} is {b}; open them one by "
            "one, or say engine="
        )
    return next(iter(engines))
