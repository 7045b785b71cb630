"""The file formats: what users call them, how their files are recognised, which module opens them.

A format is added here with a row in each table, and a module in `tabfeed.io.formats` that defines
``open_NAME(file, options)``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence

from tabfeed.errors import ArgumentError, UnreadableFileError
from tabfeed.io.formats.base import OpenFormat, ReadOptions
from tabfeed.io.storage.file_ref import FileRef
from tabfeed.io.storage.retry import reason, remedy

__all__ = ["ENGINES", "common_engine", "engine_of", "infer_engine", "open_format"]

_MODULES = {
    "parquet": "tabfeed.io.formats.parquet.file",
    "csv": "tabfeed.io.formats.text.csv",
    "jsonl": "tabfeed.io.formats.text.jsonl",
    "ipc": "tabfeed.io.formats.ipc",
    "avro": "tabfeed.io.formats.avro.file",
    "tfrecord": "tabfeed.io.formats.tfrecord.file",
}
_SUFFIXES = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "ipc": (".arrow", ".feather", ".ipc", ".arrows"),
    "avro": (".avro",),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrecord.gzip", ".tfrecord.zlib"),
}
_FIRST_BYTES = {b"PAR1": "parquet", b"ARRO": "ipc", b"Obj\x01": "avro"}
_COMPRESSION = (".gz", ".zst", ".bz2", ".lz4")
_SHARD = re.compile(r"-\d+-of-\d+$")  # train.tfrecord-00001-of-00010

ENGINES = {
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
"""The values of ``engine=``, and the format each means."""


def open_format(engine: str) -> OpenFormat:
    """The function that opens files of a format; its module is imported when first needed."""
    opening: OpenFormat = getattr(importlib.import_module(_MODULES[engine]), f"open_{engine}")
    return opening


def engine_of(path: str) -> str | None:
    """The format that a file's name says, or None."""
    name = _SHARD.sub("", path.lower())
    for ending in _COMPRESSION:
        name = name.removesuffix(ending)
    return next((e for e, ends in _SUFFIXES.items() if name.endswith(ends)), None)


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
    if start[:4] in _FIRST_BYTES:
        return _FIRST_BYTES[start[:4]]
    from tabfeed.io.formats.tfrecord.frames import is_header

    if is_header(start):
        return "tfrecord"
    if text_options:
        return "csv"
    raise ArgumentError(
        f"the format of {file.name} cannot be told from its name or its first bytes; say it with "
        f"engine=, one of {', '.join(sorted(_SUFFIXES))}"
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
