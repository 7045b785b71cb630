"""From what a user writes (a path, a list, a glob, a folder, a URL) to the files meant.

Folders are searched all the way down; names that start with ``_`` or ``.`` are passed
over, as every tool of this kind does. Folders named ``key=value`` become columns, below the
one given and right above it: one day of a dataset still knows its day. Files come in natural
order: ``part_2`` before ``part_10``. A folder that tabfeed wrote is checked against its manifest
before a byte is read.
"""

from __future__ import annotations

import difflib
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from tabfeed.errors import (
    ArgumentError,
    SourceNotFoundError,
    TabfeedError,
    TabfeedWarning,
    UnfinishedDatasetError,
    UnreadableFileError,
)
from tabfeed.io.commit import STAGING, check_finished, read_manifest
from tabfeed.io.filesystem import HIVE_NULL, Place, place_of
from tabfeed.io.source import Location

__all__ = ["Found", "find_files", "infer_engine", "outermost_key"]

_SUFFIXES = {
    "parquet": (".parquet", ".pq", ".parq"),
    "csv": (".csv", ".tsv"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "ipc": (".arrow", ".feather", ".ipc", ".arrows"),
    "avro": (".avro",),
    "tfrecord": (".tfrecord", ".tfrecords", ".tfrecord.gzip", ".tfrecord.zlib"),
}
_COMPRESSION = (".gz", ".zst", ".bz2", ".lz4")
_MAGIC = {b"PAR1": "parquet", b"ARRO": "ipc", b"Obj\x01": "avro"}
_GLOB = frozenset("*?[")
_SHARD = re.compile(r"-\d+-of-\d+$")  # train.tfrecord-00001-of-00010


@dataclass(frozen=True)
class Found:
    """The files of a dataset, and what a manifest said of them."""

    files: tuple[Location, ...]
    manifest: dict[str, Any] | None
    folder: Place | None


def find_files(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    engine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Found:
    """Find every file that `source` means."""
    if not isinstance(source, str | os.PathLike):
        if not source:
            raise SourceNotFoundError("the list of paths is empty; there is nothing to open")
        founds = [find_files(p, engine=engine, storage_options=storage_options) for p in source]
        files = [f for found in founds for f in found.files]
        return Found(tuple(_with_keys(files, _common_folder(files))), None, None)
    place = place_of(source, storage_options)
    try:
        if _GLOB.isdisjoint(place.path) or (place.local and os.path.exists(place.path)):
            return _from_path(place, engine)  # or a real name that happens to hold a bracket
        return _from_glob(place, engine)
    except PermissionError as e:
        raise UnreadableFileError(f"{place.name} may not be read: {e.strerror or e}") from e
    except TabfeedError:
        raise
    except Exception as e:  # a server's; every library behind fsspec has errors of its own
        if place.local:
            raise
        raise UnreadableFileError(f"{place.name} cannot be found: {e or type(e).__name__}") from e


def _from_path(place: Place, engine: str | None) -> Found:
    info = place.info()
    if info.type == pafs.FileType.File:
        folder = posixpath.dirname(place.path)
        _check_above(place, folder)
        return Found(tuple(_with_keys([_location(place, info)], folder)), None, None)
    if info.type == pafs.FileType.Directory:
        return _from_folder(place, engine)
    raise SourceNotFoundError(_say_missing(place))


def _check_above(place: Place, folder: str) -> None:
    """Refuse a folder in the midst of being written, or one inside a dataset that is."""
    for path in dict.fromkeys((folder, outermost_key(folder))):
        check_finished(replace(place, path=path))


def _location(place: Place, info: pafs.FileInfo) -> Location:
    return Location(
        place.name, place.path, place.filesystem, int(info.size or 0), remote=place.remote
    )


def _say_missing(place: Place) -> str:
    parent, name = posixpath.split(place.path.rstrip("/"))
    siblings: list[str] = []
    with suppress(OSError):  # a server may forbid to list what is beside
        selector = pafs.FileSelector(parent, allow_not_found=True)
        infos = place.filesystem.get_file_info(selector) if parent else []
        siblings = [posixpath.basename(i.path) for i in infos]
    near = difflib.get_close_matches(name, siblings, n=1)
    hint = f"; did you mean {posixpath.join(parent, near[0])}?" if near else "; check the path"
    return f"there is no file or folder {place.name}{hint}"


# -- folders ----------------------------------------------------------------------------


def _from_folder(folder: Place, engine: str | None) -> Found:
    _check_above(folder, folder.path)
    manifest = read_manifest(folder)
    infos = _list(folder)
    if folder.local:
        _refuse_dangling(folder.path)
    visible = [i for i in infos if not _hidden(i.path, folder.path)]
    chosen = _choose(folder, visible, engine)
    if not any(engine_of(i.path) for i in chosen):
        _refuse_beginnings(folder)
    if not chosen:
        _refuse_empty(folder, infos, engine)
    if manifest is not None:
        _check_manifest(folder, manifest, chosen)
    files = [_location(replace(folder, path=i.path), i) for i in chosen]
    files.sort(key=lambda f: natural_key(f.path))
    if manifest is not None:  # the writer's order, then what was added since
        order = {folder.child(f["name"]).path: i for i, f in enumerate(manifest["files"])}
        files.sort(key=lambda f: order.get(f.path, len(order)))
    return Found(tuple(_with_keys(files, folder.path)), manifest, folder)


def _list(folder: Place) -> list[pafs.FileInfo]:
    infos = folder.filesystem.get_file_info(pafs.FileSelector(folder.path, recursive=True))
    return [i for i in infos if i.type == pafs.FileType.File]


def _refuse_dangling(folder: str) -> None:
    """A link to nothing is a file that is missing, and listings leave it out in silence."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if not _hidden(path, folder) and engine_of(path) and not os.path.exists(path):
                raise SourceNotFoundError(
                    f"{path} is a link to {os.readlink(path)}, which does not exist; restore that "
                    "file, or remove the link"
                )


def _hidden(path: str, root: str) -> bool:
    parts = path[len(root) :].strip("/").split("/")
    return any(p.startswith((".", "_")) and "=" not in p for p in parts)


def _choose(folder: Place, infos: list[pafs.FileInfo], engine: str | None) -> list[pafs.FileInfo]:
    """The data files of a folder: those of one format."""
    if engine is not None:
        named = [i for i in infos if engine_of(i.path) == engine]
        return named or [i for i in infos if engine_of(i.path) is None and not _is_remark(i.path)]
    engines = {e for i in infos if (e := engine_of(i.path)) is not None}
    if len(engines) > 1:
        raise ArgumentError(
            f"{folder.name} holds files of several formats ({', '.join(sorted(engines))}); "
            "say which with engine="
        )
    known = [i for i in infos if engine_of(i.path) is not None]
    return known or [i for i in infos if not _is_remark(i.path)]


def _is_remark(path: str) -> bool:
    return posixpath.basename(path) == "schema.pbtxt"


def _refuse_beginnings(folder: Place) -> None:
    if folder.child(STAGING).exists:
        raise UnfinishedDatasetError(
            f"{folder.name} holds only the beginnings of a dataset: the process that writes it is "
            "still at it, or ended before it was whole; wait, or run the same to_parquet again"
        )


def _refuse_empty(folder: Place, infos: list[pafs.FileInfo], engine: str | None) -> None:
    kind = f" {engine}" if engine else ""
    what = f"none of its {len(infos)} files is{kind} data" if infos else "it is empty"
    raise SourceNotFoundError(f"the folder {folder.name} has no{kind} data files: {what}")


def _check_manifest(
    folder: Place, manifest: dict[str, Any], infos: Iterable[pafs.FileInfo]
) -> None:
    """Every file the writer listed must be there, whole; files added since are read too."""
    root = folder.path.rstrip("/") + "/"
    sizes = {i.path.removeprefix(root): i.size for i in infos}
    for entry in manifest["files"]:
        name, size = entry["name"], entry["bytes"]
        if name not in sizes:
            raise UnfinishedDatasetError(
                f"{folder.name} should hold {name}, which is missing; write the dataset again, or "
                "delete _tabfeed.json to read what is left"
            )
        if sizes[name] != size:
            raise UnfinishedDatasetError(
                f"{root}{name} has {sizes[name]:,} bytes, and {size:,} when it was written: it was "
                "cut short or changed; write the dataset again, or delete _tabfeed.json to read it "
                "as it is"
            )
    extra = sizes.keys() - {entry["name"] for entry in manifest["files"]}
    if extra:
        import warnings

        warnings.warn(
            f"{folder.name} holds {len(extra)} files that were added after it was written, such as "
            f"{min(extra)}; they are read too. Move them away if they do not belong to it",
            TabfeedWarning,
            stacklevel=2,
        )


# -- globs ------------------------------------------------------------------------------


def _from_glob(place: Place, engine: str | None) -> Found:
    pattern = place.path.rstrip("/")
    root = posixpath.dirname(pattern[: min(pattern.index(c) for c in _GLOB if c in pattern)])
    matching = [i for i in _matching(place, root or "/", pattern) if f"/{STAGING}/" not in i.path]
    infos = _choose(place, matching, engine)
    if not infos:
        raise SourceNotFoundError(
            f"no file matches {place.name}; "
            + ("check the pattern" if _exists(place, root) else f"there is no folder {root}")
        )
    for parent in {posixpath.dirname(i.path) for i in infos}:
        _check_above(place, parent)
    files = [_location(replace(place, path=i.path), i) for i in infos]
    files.sort(key=lambda f: natural_key(f.path))
    return Found(tuple(_with_keys(files, root)), None, None)


def _matching(place: Place, root: str, pattern: str) -> list[pafs.FileInfo]:
    """The files that match, and those in folders that do; hidden ones only if named as such."""
    matches = re.compile(_glob_to_regex(pattern))
    beyond = pattern[len(root) :].strip("/")
    deep = "/" in beyond or "**" in beyond
    hidden_too = any(part.startswith((".", "_")) for part in beyond.split("/"))
    selector = pafs.FileSelector(root, recursive=deep, allow_not_found=True)
    found: dict[str, pafs.FileInfo] = {}
    for info in place.filesystem.get_file_info(selector):
        if not matches.fullmatch(info.path) or (_hidden(info.path, root) and not hidden_too):
            continue
        if info.type == pafs.FileType.File:
            found[info.path] = info
        elif info.type == pafs.FileType.Directory and not beyond.endswith("**"):
            inside = _list(replace(place, path=info.path))
            found.update({i.path: i for i in inside if not _hidden(i.path, info.path)})
    return list(found.values())


def _exists(place: Place, path: str) -> bool:
    return replace(place, path=path).exists


def _glob_to_regex(pattern: str) -> str:
    """``*`` and ``?`` stay within a folder, ``**`` crosses folders, ``[ab]`` is a choice."""
    out, i = "", 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
        elif pattern.startswith("**", i):
            out, i = out + ".*", i + 2
        elif pattern[i] == "*":
            out, i = out + "[^/]*", i + 1
        elif pattern[i] == "?":
            out, i = out + "[^/]", i + 1
        elif pattern[i] == "[" and "]" in pattern[i + 2 :]:
            end = pattern.index("]", i + 2)
            body = pattern[i + 1 : end].replace("\\", "\\\\")
            out, i = out + "[" + ("^" + body[1:] if body[0] == "!" else body) + "]", end + 1
        else:
            out, i = out + re.escape(pattern[i]), i + 1
    return out


# -- Hive keys --------------------------------------------------------------------------


def outermost_key(folder: str) -> str:
    """The folder above all ``key=value`` folders at the end of a path."""
    while "=" in posixpath.basename(folder):
        folder = posixpath.dirname(folder)
    return folder


def _common_folder(files: Sequence[Location]) -> str:
    folders = [posixpath.dirname(f.path) for f in files]
    try:
        return posixpath.commonpath(folders)
    except ValueError:  # on several filesystems
        return ""


def _with_keys(files: Sequence[Location], folder: str) -> list[Location]:
    """Read the ``key=value`` folders; integers where every value is one."""
    root = outermost_key(folder)
    texts = [_key_texts(f.path, root) for f in files]
    names = {name for keys in texts for name in keys}
    whole = {n for n in names if all(_is_int(keys[n]) for keys in texts if n in keys)}
    return [
        replace(f, keys=tuple((n, _key_value(v, n in whole)) for n, v in keys.items()))
        for f, keys in zip(files, texts, strict=True)
    ]


def _key_texts(path: str, root: str) -> dict[str, str]:
    folders = posixpath.dirname(path)[len(root) :].strip("/").split("/")
    pairs = [f.split("=", 1) for f in folders if "=" in f]
    return {unquote(k): v for k, v in pairs if k}


def _is_int(text: str) -> bool:
    return text == HIVE_NULL or bool(re.fullmatch(r"0|-?[1-9]\d{0,17}", text))


def _key_value(text: str, whole: bool) -> Any:
    if text == HIVE_NULL:  # before it is unquoted: text that only looks so is escaped
        return None
    return int(text) if whole else unquote(text)


# -- names and formats ------------------------------------------------------------------


def natural_key(path: str) -> list[tuple[int, str | int]]:
    """Sort numbers in names by value: part_2 before part_10."""
    parts = re.split(r"(\d+)", path)  # text and digits in turn
    return [(1, int(p)) if i % 2 else (0, p) for i, p in enumerate(parts)] + [(0, path)]


def engine_of(path: str) -> str | None:
    """The format that a file's name says, or None."""
    name = _SHARD.sub("", path.lower())
    for ending in _COMPRESSION:
        name = name.removesuffix(ending)
    return next((e for e, ends in _SUFFIXES.items() if name.endswith(ends)), None)


def infer_engine(file: Location, *, text_options: bool) -> str:
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
        raise UnreadableFileError(f"{file.name} cannot be read: {e}") from e
    if start[:4] in _MAGIC:
        return _MAGIC[start[:4]]
    if _is_tfrecord(start):
        return "tfrecord"
    if text_options:
        return "csv"
    raise ArgumentError(
        f"the format of {file.name} cannot be told from its name or its first bytes; say it with "
        f"engine=, one of {', '.join(sorted(_SUFFIXES))}"
    )


def _is_tfrecord(start: bytes) -> bool:
    from tabfeed.io.tfrecord_frames import is_header

    return is_header(start)
