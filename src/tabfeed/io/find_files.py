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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
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
from tabfeed.execute import LocalExecutor
from tabfeed.io.commit.manifest import (
    MANIFEST,
    STAGING,
    Manifest,
    check_finished,
    in_plain_reading,
    is_data,
    read_manifest,
    saved_workflows,
    writer_of,
)
from tabfeed.io.commit.other_writers import signs, staged_files
from tabfeed.io.storage.file_ref import FileRef
from tabfeed.io.storage.paths import (
    HIVE_NULL,
    RemotePath,
    local_info,
    natural_key,
    path_of,
    refuse_special,
    walk,
)
from tabfeed.io.storage.remote import Listed, remote_of
from tabfeed.io.storage.retry import FIRST_SHARE, reason, remedy, retry

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
_LOOKS = 5  # at a folder that writers replace meanwhile
_SHARD = re.compile(r"-\d+-of-\d+$")  # train.tfrecord-00001-of-00010


@dataclass(frozen=True)
class Found:
    """The files of a dataset, and what a manifest said of them."""

    files: tuple[FileRef, ...]
    manifest: Manifest | None
    folder: RemotePath | None


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
        return _from_list([path_of(p, storage_options) for p in source], engine)
    unchecked = _Unchecked()
    found = _find(path_of(source, storage_options), engine, unchecked)
    unchecked.check()
    return found


def _from_list(places: Sequence[RemotePath], engine: str | None) -> Found:
    """Files of several paths, those on servers looked at side by side."""
    unchecked = _Unchecked()
    threads = max((p.remote.connections for p in places if p.remote is not None), default=1)
    executor = LocalExecutor(threads=min(threads, len(places)))
    founds = list(executor.map(places, lambda place: _find(place, engine, unchecked)))
    unchecked.check()
    files = [f for found in founds for f in found.files]
    return Found(tuple(_with_keys(files, _common_folder(files))), None, None)


def _find(place: RemotePath, engine: str | None, unchecked: _Unchecked) -> Found:
    try:
        if _GLOB.isdisjoint(place.path) or (place.local and os.path.lexists(place.path)):
            return _from_path(place, engine, unchecked)  # or a name that happens to hold a bracket
        return _from_glob(place, engine, unchecked)
    except PermissionError as e:
        name = e.filename if place.local and isinstance(e.filename, str) else place.name
        raise UnreadableFileError(f"{name} may not be read: {reason(e)}. {remedy(e)}") from e
    except TabfeedError:
        raise
    except OSError as e:
        raise UnreadableFileError(f"{place.name} cannot be opened: {reason(e)}. {remedy(e)}") from e
    except Exception as e:  # a server's; every library behind fsspec has errors of its own
        if place.local:
            raise
        raise UnreadableFileError(f"{place.name} cannot be opened: {type(e).__name__}: {e}") from e


class _Unchecked:
    """Folders of which it is not known yet whether they are being written."""

    def __init__(self) -> None:
        self._folders: dict[str, RemotePath] = {}

    def add(self, place: RemotePath, folder: str) -> None:
        """A folder with files, and the dataset that it is a part of."""
        for path in (folder, outermost_key(folder)):
            above = replace(place, path=path)
            self._folders[above.name] = above

    def check(self) -> None:
        """Refuse a folder in the midst of being written, or one inside a dataset that is."""
        folders = list(self._folders.values())
        threads = max((f.remote.connections for f in folders if f.remote is not None), default=1)
        executor = LocalExecutor(threads=max(1, min(threads, len(folders))))
        list(executor.map(folders, _refuse_unfinished))


def _refuse_unfinished(folder: RemotePath) -> None:
    try:
        check_finished(folder)
    except (PermissionError, NotADirectoryError):
        return  # some stores forbid to look for what they do not have
    except TabfeedError:
        raise
    except OSError as e:
        raise UnreadableFileError(
            f"{folder.name} cannot be opened: {reason(e)}. {remedy(e)}"
        ) from e


def _from_path(place: RemotePath, engine: str | None, unchecked: _Unchecked) -> Found:
    there = _look(place)
    if there.info.type == pafs.FileType.File:
        folder = posixpath.dirname(place.path)
        unchecked.add(place, folder)
        if place.local:
            refuse_special(place.path)
        return Found(tuple(_with_keys([_location(place, there)], folder)), None, None)
    if there.info.type == pafs.FileType.Directory:
        return _from_folder(place, engine, unchecked)
    if place.local and os.path.lexists(place.path):
        refuse_special(place.path)
    raise SourceNotFoundError(_say_missing(place))


def _look(place: RemotePath) -> Listed:
    """What a path is; a name that looks like a file's is looked at as one, ETag and all."""
    if place.remote is None:
        return Listed(local_info(place.path), "")
    if engine_of(place.path) is not None:
        remote = remote_of(place.filesystem)
        try:
            now = retry(
                lambda timeout: remote.version(place.path, timeout),
                place.remote.deadline,
                first=FIRST_SHARE,
                warn=place.name,
            )
        except (FileNotFoundError, IsADirectoryError):
            pass
        else:
            return Listed(pafs.FileInfo(place.path, pafs.FileType.File, size=now.size), now.tag)
    return Listed(place.info(), "")


def _location(place: RemotePath, found: Listed) -> FileRef:
    size = int(found.info.size or 0)
    path = found.info.path if place.local else place.path
    return FileRef(place.name, path, place.filesystem, size, remote=place.remote, tag=found.tag)


def _say_missing(place: RemotePath) -> str:
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


def _from_folder(folder: RemotePath, engine: str | None, unchecked: _Unchecked) -> Found:
    for look in range(_LOOKS):
        _refuse_unfinished(folder)
        if outermost_key(folder.path) != folder.path:
            unchecked.add(folder, folder.path)
        manifest = read_manifest(folder)
        try:
            return _look_into(folder, manifest, engine)
        except UnfinishedDatasetError:
            if look and read_manifest(folder) == manifest:
                raise
    raise UnfinishedDatasetError(
        f"{folder.name} is replaced again and again while it is opened; wait for its writers"
    )


def _look_into(folder: RemotePath, manifest: Manifest | None, engine: str | None) -> Found:
    """The files of a folder, if a writer does not replace them meanwhile."""
    listed = {e.info.path: e for e in _list(folder)}
    infos = [e.info for e in listed.values()]
    chosen = _choose(folder, _part_of(folder, manifest, infos), engine)
    if not any(engine_of(i.path) for i in chosen):
        _refuse_beginnings(folder)
    if not chosen:
        _refuse_empty(folder, infos, engine)
    files = [_location(replace(folder, path=i.path), listed[i.path]) for i in chosen]
    files.sort(key=lambda f: natural_key(f.path))
    if manifest is not None:  # the writer's order, then what was added since
        _check_manifest(folder, manifest, chosen)
        noted = {folder.child(f.name).path: (i, f) for i, f in enumerate(manifest.files)}
        files.sort(key=lambda f: noted[f.path][0] if f.path in noted else len(noted))
        here = manifest.folder == folder.path
        for i, f in enumerate(files):
            if f.path in noted:
                entry = noted[f.path][1]
                files[i] = replace(f, crc32=entry.crc32, etag=entry.etag if here else "")
    return Found(tuple(_with_keys(files, folder.path)), manifest, folder)


def _part_of(
    folder: RemotePath, manifest: Manifest | None, infos: Sequence[pafs.FileInfo]
) -> list[pafs.FileInfo]:
    """The files that may be data: neither hidden, nor a writer's, nor another thing's."""
    root = folder.path.rstrip("/") + "/"
    names = {i.path.removeprefix(root): i for i in infos}
    staged = [n.split("/") for n in names if n.startswith(f"{STAGING}/")]
    at_work = {parts[1] for parts in staged if len(parts) > 2}
    others = saved_workflows(names)
    visible = {n: i for n, i in names.items() if not _hidden(i.path, folder.path)}
    if manifest is None:
        visible = {n: i for n, i in visible.items() if writer_of(n) not in at_work}
        visible = {n: i for n, i in visible.items() if not n.startswith(others)}
        _refuse_several_writers(folder, visible)
        return _published(folder, list(visible.values()))
    known = set(manifest.names)
    added = {n for n in visible.keys() - known if is_data(n) and writer_of(n) is None}
    above = {str(p) for n in added for p in PurePosixPath(n).parents} - {"."}
    others += tuple(f"{f}/" for f in above if folder.child(f, MANIFEST).exists)
    added = {n for n in added if not n.startswith(others)}
    if added and at_work:  # a writer that did not come to delete what it replaced
        for sign in signs(folder, [f"{writer}/" for writer in at_work]):
            added -= set(sign.journal.removing)
    return [i for n, i in names.items() if n in known or n in added]


def _refuse_several_writers(folder: RemotePath, names: Iterable[str]) -> None:
    """Without a manifest, nothing says which writer's files are the dataset."""
    marked = {w: n for n in names if in_plain_reading(n) and (w := writer_of(n)) is not None}
    if len(marked) > 1 and outermost_key(folder.path) == folder.path:
        raise UnfinishedDatasetError(
            f"{folder.name} holds files of {len(marked)} writers, such as "
            f"{' and '.join(sorted(marked.values())[:2])}, and has no {MANIFEST} that says which "
            "are the dataset: write it again with overwrite=True, or move the files of all "
            f"writers but one away. To read them all, name them: {folder.child('*').name}"
        )


def _published(place: RemotePath, infos: Sequence[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """The files but those that a writer has not published, or a killed one never will."""
    known: dict[str, Callable[[str], bool]] = {}

    def is_out(path: str) -> bool:
        writer = writer_of(path)
        if writer is None:
            return True
        root = outermost_key(posixpath.dirname(path))
        if root not in known:
            known[root] = _published_in(replace(place, path=root))
        return known[root](path)

    return [i for i in infos if is_out(i.path)]


def _published_in(folder: RemotePath) -> Callable[[str], bool]:
    manifest = read_manifest(folder)
    if manifest is not None:
        names = {folder.child(n).path for n in manifest.names}
        return lambda path: path in names
    writers = {n.partition("/")[0] for n in staged_files(folder)}
    return lambda path: writer_of(path) not in writers


def _list(
    folder: RemotePath, *, deep: bool = True, matches: re.Pattern[str] | None = None
) -> list[Listed]:
    """The files below a folder; where only some match, the folders, too."""
    kinds = {pafs.FileType.File}
    if matches is not None:
        kinds.add(pafs.FileType.Directory)
    if folder.remote is not None:
        remote = remote_of(folder.filesystem)
        listed = retry(
            lambda timeout: remote.listing(folder.path, timeout, deep=deep),
            folder.remote.deadline,
            warn=folder.name,
        )
        return [e for e in listed if e.info.type in kinds]

    def may_be_data(path: str) -> bool:
        wanted = matches is None or matches.fullmatch(path) is not None
        return wanted and engine_of(path) is not None and not _hidden(path, folder.path)

    infos = walk(folder.path, may_be_data, deep=deep)
    return [Listed(i, "") for i in infos if i.type in kinds]


def _hidden(path: str, root: str) -> bool:
    parts = path[len(root) :].strip("/").split("/")
    return any(p.startswith((".", "_")) and "=" not in p for p in parts)


def _choose(
    folder: RemotePath, infos: list[pafs.FileInfo], engine: str | None
) -> list[pafs.FileInfo]:
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


def _refuse_beginnings(folder: RemotePath) -> None:
    if folder.child(STAGING).exists:
        raise UnfinishedDatasetError(
            f"{folder.name} holds only the beginnings of a dataset: the process that writes it is "
            "still at it, or ended before it was whole; wait, or run the same to_parquet again"
        )


def _refuse_empty(folder: RemotePath, infos: list[pafs.FileInfo], engine: str | None) -> None:
    kind = f" {engine}" if engine else ""
    what = f"none of its {len(infos)} files is{kind} data" if infos else "it is empty"
    raise SourceNotFoundError(f"the folder {folder.name} has no{kind} data files: {what}")


def _check_manifest(folder: RemotePath, manifest: Manifest, infos: Iterable[pafs.FileInfo]) -> None:
    """Every file the writer listed must be there, whole; files added since are read too."""
    root = folder.path.rstrip("/") + "/"
    sizes = {i.path.removeprefix(root): i.size for i in infos}
    for entry in manifest.files:
        name, size = entry.name, entry.nbytes
        if name not in sizes:
            raise UnfinishedDatasetError(
                f"{folder.name} should hold {name}, which is missing; write the dataset again, or "
                "delete _tabfeed.json to read what is left"
            )
        if sizes[name] != size:
            raise UnfinishedDatasetError(
                f"{folder.child(name).name} has {sizes[name]:,} bytes, and {size:,} when it was "
                "written: it was cut short or changed; write the dataset again, or delete "
                "_tabfeed.json to read it as it is"
            )
    extra = sizes.keys() - set(manifest.names)
    if extra:
        import warnings

        warnings.warn(
            f"{folder.name} holds {len(extra)} files that were added after it was written, such as "
            f"{min(extra)}; they are read too. Move them away if they do not belong to it",
            TabfeedWarning,
            stacklevel=2,
        )


# -- globs ------------------------------------------------------------------------------


def _from_glob(place: RemotePath, engine: str | None, unchecked: _Unchecked) -> Found:
    pattern = place.path.rstrip("/")
    root = posixpath.dirname(pattern[: min(pattern.index(c) for c in _GLOB if c in pattern)])
    listed = {e.info.path: e for e in _matching(place, root or "/", pattern)}
    matching = [e.info for p, e in listed.items() if f"/{STAGING}/" not in p]
    infos = _choose(place, _published(place, matching), engine)
    if not infos:
        raise SourceNotFoundError(
            f"no file matches {place.name}; "
            + ("check the pattern" if _exists(place, root) else f"there is no folder {root}")
        )
    for parent in {posixpath.dirname(i.path) for i in infos}:
        unchecked.add(place, parent)
    files = [_location(replace(place, path=i.path), listed[i.path]) for i in infos]
    files.sort(key=lambda f: natural_key(f.path))
    return Found(tuple(_with_keys(files, root)), None, None)


def _matching(place: RemotePath, root: str, pattern: str) -> list[Listed]:
    """The files that match, and those in folders that do; hidden ones only if named as such."""
    matches = re.compile(_glob_to_regex(pattern))
    beyond = pattern[len(root) :].strip("/")
    deep = "/" in beyond or "**" in beyond
    hidden_too = any(part.startswith((".", "_")) for part in beyond.split("/"))
    if place.local and not os.path.isdir(root):
        return []
    found: dict[str, Listed] = {}
    for entry in _list(replace(place, path=root), deep=deep, matches=matches):
        path = entry.info.path
        if not matches.fullmatch(path) or (_hidden(path, root) and not hidden_too):
            continue
        if entry.info.type == pafs.FileType.File:
            found[path] = entry
        elif not beyond.endswith("**"):
            inside = _list(replace(place, path=path))
            if not _holds_workflow(path, [e.info for e in inside]):
                found.update({e.info.path: e for e in inside if not _hidden(e.info.path, path)})
    return list(found.values())


def _holds_workflow(folder: str, infos: Sequence[pafs.FileInfo]) -> bool:
    above = posixpath.dirname(folder) + "/"
    base = posixpath.basename(folder) + "/"
    return base in saved_workflows(i.path.removeprefix(above) for i in infos)


def _exists(place: RemotePath, path: str) -> bool:
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


def _common_folder(files: Sequence[FileRef]) -> str:
    folders = [posixpath.dirname(f.path) for f in files]
    try:
        return posixpath.commonpath(folders)
    except ValueError:  # on several filesystems
        return ""


def _with_keys(files: Sequence[FileRef], folder: str) -> list[FileRef]:
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
    from tabfeed.io.formats.tfrecord.frames import is_header

    return is_header(start)
