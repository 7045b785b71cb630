"""The notes in a dataset's folder: which files belong to it, and what a writer is changing.

A note is a file that anybody can edit, and it decides what is read and deleted. So it is checked
against its schema before use, down to each name, which must stay below the folder.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tabfeed.errors import (
    SchemaError,
    TabfeedError,
    UnfinishedDatasetError,
    UnreadableFileError,
)
from tabfeed.io.storage.files import RemotePath
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.schema import Schema

__all__ = [
    "JOURNAL",
    "MANIFEST",
    "STAGING",
    "Entry",
    "Journal",
    "Manifest",
    "check_finished",
    "in_key_folders",
    "is_below",
    "is_data",
    "marked",
    "outermost_key",
    "parse_journal",
    "parse_manifest",
    "read_journal",
    "read_manifest",
    "read_now",
    "saved_workflows",
    "writer_of",
]

STAGING = "_tabfeed_writing"
JOURNAL = "_tabfeed_commit.json"
MANIFEST = "_tabfeed.json"
_FORMAT = 1
_READS = 4
_LARGEST = 2**63 - 1
_LONGEST_NAME = 4096
_DATA = (".parquet", ".pq", ".parq")
_MARK = re.compile(r"-w([0-9a-f]{16})(?:\.[^./]+)?$")
_CRC = re.compile(r"[0-9a-f]{8}")
_WORKFLOW = ("workflow.json", "checksums.json")


@dataclass(frozen=True)
class Entry:
    """A file of a dataset; `crc32` and `etag` are empty where the writer did not know them."""

    name: str
    nbytes: int
    rows: int | None = None
    crc32: str = ""
    etag: str = ""


@dataclass(frozen=True)
class Manifest:
    """A dataset as its writer describes it.

    Attributes
    ----------
    files
        In reading order.
    schema
        Types, tags and properties, if the writer knew them.
    writer
        The writer, in an object store; empty elsewhere.
    folder
        The folder where the ETags hold: a copy elsewhere has others. Empty where there are none.
    text
        The manifest as it was read; two manifests are the same if their texts are.
    """

    files: tuple[Entry, ...] = ()
    schema: Schema | None = field(default=None, compare=False)
    writer: str = ""
    folder: str = ""
    text: str = field(default="", repr=False)

    @property
    def names(self) -> list[str]:
        """The files' names below the folder, in reading order."""
        return [f.name for f in self.files]

    def to_json(self) -> str:
        """The manifest as it is written; `parse_manifest` reads it."""
        files: list[dict[str, Any]] = []
        for f in self.files:
            entry: dict[str, Any] = {"name": f.name, "bytes": f.nbytes, "crc32": f.crc32}
            if f.rows is not None:
                entry["rows"] = f.rows
            if f.etag:
                entry["etag"] = f.etag
            files.append(entry)
        notes = {k: v for k, v in (("writer", self.writer), ("folder", self.folder)) if v}
        schema = None if self.schema is None else json.loads(self.schema.to_json())
        body = {"tabfeed_dataset": _FORMAT, **notes, "files": files, "schema": schema}
        return json.dumps(body, indent=1)


@dataclass(frozen=True)
class Journal:
    """The files that a commit adds and removes."""

    writing: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The journal as it is written; `parse_journal` reads it."""
        return json.dumps({"writing": self.writing, "removing": self.removing}, indent=1)


class _Invalid(ValueError):
    """A note is not valid; the message begins with the place in the JSON."""


# -- reading ----------------------------------------------------------------------------


def check_finished(folder: RemotePath) -> None:
    """Refuse a folder whose files a writer is replacing, or was when it was killed."""
    try:
        unfinished = folder.child(JOURNAL).exists
    except (PermissionError, NotADirectoryError):
        return  # some stores forbid to look for what they do not have
    except TabfeedError:
        raise
    except OSError as e:
        raise UnreadableFileError(
            f"{folder.name} cannot be opened: {reason(e)}. {remedy(e)}"
        ) from e
    if unfinished:
        raise UnfinishedDatasetError(
            f"{folder.name} is half replaced: some of its files are old and some new; if no writer "
            "is running, run the same to_parquet again to complete it"
        )


def read_manifest(folder: RemotePath) -> Manifest | None:
    """What the writer said of a folder, or None if tabfeed did not write it."""
    place = folder.child(MANIFEST)
    text = _read(place, "write the dataset again, or delete that file to read plain Parquet")
    return None if text is None else parse_manifest(text, place.name)


def read_journal(folder: RemotePath) -> Journal | None:
    """What an unfinished commit was changing; None if there is none."""
    place = folder.child(JOURNAL)
    text = _read(place, "run the same to_parquet again with overwrite=True")
    return None if text is None else parse_journal(text, place.name)


def read_now(place: RemotePath) -> str:
    """An object's text; one that is replaced while it is read is read again."""
    for _ in range(_READS):
        with suppress(UnreadableFileError):
            return place.read_text()
    return place.read_text()


def _read(place: RemotePath, advice: str) -> str | None:
    try:
        return place.read_text() if place.local else read_now(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as e:
        raise UnfinishedDatasetError(f"{place.name} is damaged (it is not text); {advice}") from e
    except PermissionError:
        raise
    except OSError as e:
        if place.local:
            raise UnreadableFileError(f"{place.name} cannot be read: {e}") from e
        raise


def parse_manifest(text: str, where: str) -> Manifest:
    """Check a manifest and take it apart; `where` is its path, for the error.

    Examples
    --------
    >>> parse_manifest('{"files": [{"name": "../a", "bytes": 1}]}', "out/_tabfeed.json")
    Traceback (most recent call last):
    ...
    tabfeed.errors.UnfinishedDatasetError: out/_tabfeed.json is damaged: files[0].name is '../a', \
which is not a name below the folder; write the dataset again, or delete that file to read the \
folder as plain Parquet
    """
    try:
        body = _object(_parse(text), "the manifest")
        _whole(body.get("tabfeed_dataset", _FORMAT), "tabfeed_dataset", least=1)
        if body.get("tabfeed_dataset", _FORMAT) > _FORMAT:
            raise UnfinishedDatasetError(
                f"{where} has format {body['tabfeed_dataset']}, and this tabfeed reads "
                f"{_FORMAT}: upgrade tabfeed"
            )
        files = tuple(_entry(f, f"files[{i}]") for i, f in enumerate(_list(body, "files")))
        _refuse_twice([f.name for f in files], "files")
        writer = _text(body.get("writer", ""), "writer")
        folder = _text(body.get("folder", ""), "folder")
        _refuse_other_writers([f.name for f in files], writer)
        return Manifest(files, _schema(body.get("schema")), writer, folder, text)
    except _Invalid as e:
        raise UnfinishedDatasetError(
            f"{where} is damaged: {e}; write the dataset again, or delete that file to read the "
            "folder as plain Parquet"
        ) from e


def parse_journal(text: str, where: str) -> Journal:
    """Check the journal of a commit and take it apart."""
    try:
        body = _object(_parse(text), "the journal")
        return Journal(*(_names(body, key) for key in ("writing", "removing")))
    except _Invalid as e:
        raise UnfinishedDatasetError(
            f"{where} is damaged: {e}; run the same to_parquet again with overwrite=True"
        ) from e


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise _Invalid(f"it is not JSON ({e})") from e


def _entry(value: Any, where: str) -> Entry:
    body = _object(value, where)
    rows = body.get("rows")
    crc32 = _text(body.get("crc32", ""), f"{where}.crc32")
    if crc32 and not _CRC.fullmatch(crc32):
        raise _Invalid(f"{where}.crc32 is {_shown(crc32)}; it must be 8 hexadecimal digits")
    return Entry(
        _name(body.get("name"), f"{where}.name"),
        _whole(body.get("bytes"), f"{where}.bytes"),
        None if rows is None else _whole(rows, f"{where}.rows"),
        crc32,
        _text(body.get("etag", ""), f"{where}.etag"),
    )


def _schema(value: Any) -> Schema | None:
    if value is None or value == {}:
        return None
    body = _object(value, "schema")
    try:
        return Schema.from_json(json.dumps(body))
    except (
        SchemaError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError,
        RecursionError, NotImplementedError, pa.ArrowException,
    ) as e:  # fmt: skip
        raise _Invalid(f"schema cannot be understood ({e})") from e


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Invalid(f"{where} is {_shown(value)}; it must be an object")
    return value


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    if not isinstance(value, list):
        raise _Invalid(f"{key} is {_shown(value)}; it must be a list")
    return value


def _names(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(_name(n, f"{key}[{i}]") for i, n in enumerate(_list(body, key)))


def _whole(value: Any, where: str, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
        raise _Invalid(f"{where} is {_shown(value)}; it must be a whole number from {least}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _Invalid(f"{where} is {_shown(value)}; it must be text")
    return value


def _name(value: Any, where: str) -> str:
    """A relative name that stays below the folder on every system, and is not one of the notes."""
    name = _text(value, where)
    if not is_below(name):
        raise _Invalid(f"{where} is {_shown(name)}, which is not a name below the folder")
    if name.split("/")[0] in (STAGING, JOURNAL, MANIFEST):
        raise _Invalid(f"{where} is {_shown(name)}, which no file of a dataset is called")
    return name


def _refuse_twice(names: list[str], where: str) -> None:
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            raise _Invalid(f"{where}[{i}].name is {_shown(name)}, which came before")
        seen.add(name)


def _refuse_other_writers(names: list[str], writer: str) -> None:
    """In an object store, all files of a dataset have the mark of the writer of its manifest."""
    for i, name in enumerate(names):
        if writer and writer_of(name) != writer:
            raise _Invalid(
                f"files[{i}].name is {_shown(name)}, which writer {writer} did not write"
            )


def _shown(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


# -- names ------------------------------------------------------------------------------


def is_below(name: str) -> bool:
    r"""Whether a relative name stays below its folder on every system, and can be written there.

    Examples
    --------
    >>> [is_below(n) for n in ("k=1/a", "../a", "/a", "a//b", "a\\b", "a\0")]
    [True, False, False, False, False, False]
    """
    odd = any(c in "\\\x7f" or c < " " or "\ud800" <= c <= "\udfff" for c in name)
    away = any(p in ("", ".", "..") for p in name.split("/")) or (os.name == "nt" and ":" in name)
    return not odd and not away and len(name) <= _LONGEST_NAME


def marked(name: str, writer: str) -> str:
    """The name with a mark of its writer, which no other writer gives to a file.

    Examples
    --------
    >>> marked("k=1/part_0.parquet", "0123456789abcdef")
    'k=1/part_0-w0123456789abcdef.parquet'
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, ending = base.rpartition(".")
    return f"{folder}{slash}{stem or ending}-w{writer}" + (f"{dot}{ending}" if stem else "")


def writer_of(name: str) -> str | None:
    """The writer whose mark a name has; None if it has none.

    Examples
    --------
    >>> writer_of("k=1/part_0-w0123456789abcdef.parquet"), writer_of("part_0.parquet")
    ('0123456789abcdef', None)
    """
    found = _MARK.search(name)
    return found and found[1]


def in_key_folders(name: str) -> bool:
    """Whether a file is on top of a dataset's folder or in ``key=value`` folders, and not hidden.

    Examples
    --------
    >>> [in_key_folders(n) for n in ("a.parquet", "k=1/a.parquet", "valid/a.parquet", "_a")]
    [True, True, False, False]
    """
    *folders, base = name.split("/")
    return all("=" in f for f in folders) and not base.startswith((".", "_"))


def outermost_key(folder: str) -> str:
    """The folder above all ``key=value`` folders at the end of a path."""
    while "=" in posixpath.basename(folder):
        folder = posixpath.dirname(folder)
    return folder


def is_data(name: str) -> bool:
    """Whether a file is part of the Parquet dataset of a folder that has no manifest."""
    return name.endswith(_DATA) and in_key_folders(name)


def saved_workflows(names: Iterable[str]) -> tuple[str, ...]:
    """The subfolders that hold a saved workflow, each with a slash at its end."""
    known = set(names)
    folders = {n.removesuffix(_WORKFLOW[0]) for n in known if n.endswith("/" + _WORKFLOW[0])}
    return tuple(sorted(f for f in folders if f + _WORKFLOW[1] in known))
