"""Find and open the files that a user means by a path, a list, a glob, a folder or a URL.

Files come in natural order: ``part_2`` before ``part_10``. Folders named ``key=value`` become
columns, both those below the folder that was given and those directly above it: one day of a
dataset still knows its day. `tabfeed.io.folder` says which files of a folder count. Files are
opened in parallel.
"""

from __future__ import annotations

import difflib
import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from tabfeed.errors import (
    BadFileError,
    SourceNotFoundError,
    TabfeedError,
    UnfinishedDatasetError,
    UnreadableFileError,
)
from tabfeed.execute import LocalExecutor
from tabfeed.io.commit.manifest import STAGING, Manifest, check_finished, outermost_key
from tabfeed.io.fileset import CannotRead, FileSet, SkipList, Skipped
from tabfeed.io.folder import (
    HIVE_NULL,
    holds_workflow,
    is_hidden,
    list_files,
    of_one_engine,
    published,
    read_folder,
)
from tabfeed.io.formats.base import DataFile, OpenFormat, ReadOptions, engine_of
from tabfeed.io.storage.files import FileRef, RemotePath, natural_key, path_of
from tabfeed.io.storage.local import local_info, refuse_special
from tabfeed.io.storage.remote import Listed, remote_of
from tabfeed.io.storage.retry import FIRST_SHARE, reason, remedy, retry

__all__ = ["Found", "find_files", "open_files"]

_GLOB = frozenset("*?[")
_OPEN_THREADS = 16
_OPEN_TASKS = 64


@dataclass(frozen=True)
class Found:
    """The files of a dataset; the manifest and the folder if it is one folder."""

    files: tuple[FileRef, ...]
    manifest: Manifest | None = None
    folder: RemotePath | None = None


def find_files(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    engine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Found:
    """Find every file that `source` means."""
    unchecked = _UncheckedFolders()
    if isinstance(source, str | os.PathLike):
        found = _find(path_of(source, storage_options), engine, unchecked)
        unchecked.check()
        return found
    if not source:
        raise SourceNotFoundError("the list of paths is empty; there is nothing to open")
    paths = [path_of(p, storage_options) for p in source]
    executor = _executor(paths)  # files on servers are looked up in parallel
    founds = list(executor.map(paths, lambda path: _find(path, engine, unchecked)))
    unchecked.check()
    files = [f for found in founds for f in found.files]
    return Found(_with_keys(files, _common_folder(files)))


def _executor(paths: Sequence[RemotePath]) -> LocalExecutor:
    threads = max((p.remote.connections for p in paths if p.remote is not None), default=1)
    return LocalExecutor(threads=min(threads, len(paths)))


class _UncheckedFolders:
    """Folders with found files, each checked once for a writer at work."""

    def __init__(self) -> None:
        self._folders: dict[str, RemotePath] = {}

    def add(self, path: RemotePath, folder: str) -> None:
        """A folder with files, and the dataset that it is a part of."""
        for above in dict.fromkeys((folder, outermost_key(folder))):
            self._folders[path.prefix + above] = replace(path, path=above)

    def check(self) -> None:
        """Refuse a folder whose files are being replaced, or one inside such a dataset."""
        folders = list(self._folders.values())
        if any(f.remote is not None for f in folders):
            list(_executor(folders).map(folders, check_finished))
        else:
            for folder in folders:
                check_finished(folder)


def _find(path: RemotePath, engine: str | None, unchecked: _UncheckedFolders) -> Found:
    """The files of one path or pattern."""
    try:
        if _GLOB.isdisjoint(path.path) or (path.local and os.path.lexists(path.path)):
            return _from_path(path, engine, unchecked)  # or a name that happens to hold a bracket
        return _from_glob(path, engine, unchecked)
    except PermissionError as e:
        name = e.filename if path.local and isinstance(e.filename, str) else path.name
        raise UnreadableFileError(f"{name} may not be read: {reason(e)}. {remedy(e)}") from e
    except TabfeedError:
        raise
    except OSError as e:
        raise UnreadableFileError(f"{path.name} cannot be opened: {reason(e)}. {remedy(e)}") from e
    except Exception as e:  # a server's; every library behind fsspec has errors of its own
        if path.local:
            raise
        raise UnreadableFileError(f"{path.name} cannot be opened: {type(e).__name__}: {e}") from e


# -- a file or a folder -----------------------------------------------------------------


def _from_path(path: RemotePath, engine: str | None, unchecked: _UncheckedFolders) -> Found:
    found = _info(path)
    if found.info.type == pafs.FileType.File:
        folder = posixpath.dirname(path.path)
        unchecked.add(path, folder)
        file = _file_ref(path, found)
        if not path.local:
            file = replace(file, name=path.name, path=path.path)  # as it was asked for
        return Found(_with_keys([file], folder))
    if found.info.type == pafs.FileType.Directory:
        if outermost_key(path.path) != path.path:
            unchecked.add(path, path.path)
        return _from_folder(path, engine)
    if path.local and os.path.lexists(path.path):
        refuse_special(path.path)
    raise SourceNotFoundError(_missing(path))


def _from_folder(folder: RemotePath, engine: str | None) -> Found:
    listed, manifest = read_folder(folder, engine)
    files = [_file_ref(folder, entry) for entry in listed]
    if manifest is not None:
        noted = {folder.child(f.name).path: f for f in manifest.files}
        here = manifest.folder == folder.path  # ETags hold only where the objects were written
        for i, file in enumerate(files):
            if (entry := noted.get(file.path)) is not None:
                files[i] = replace(file, crc32=entry.crc32, etag=entry.etag if here else "")
    return Found(_with_keys(files, folder.path), manifest, folder)


def _info(path: RemotePath) -> Listed:
    """The file or folder at a path; a remote name like a file's is looked up with its ETag."""
    if path.remote is None:
        return Listed(local_info(path.path), "")
    if engine_of(path.path) is not None:
        remote = remote_of(path.filesystem)
        try:
            now = retry(
                lambda timeout: remote.version(path.path, timeout),
                path.remote.deadline,
                first=FIRST_SHARE,
                warn=path.name,
            )
        except (FileNotFoundError, IsADirectoryError):
            pass
        else:
            return Listed(pafs.FileInfo(path.path, pafs.FileType.File, size=now.size), now.tag)
    return Listed(path.info(), "")


def _file_ref(near: RemotePath, found: Listed) -> FileRef:
    """A listed file, on the filesystem of `near`."""
    path, size = found.info.path, int(found.info.size or 0)
    name = near.prefix + path
    return FileRef(name, path, near.filesystem, size, remote=near.remote, tag=found.tag)


def _missing(path: RemotePath) -> str:
    """The message for a path that is not there, with the nearest name that is."""
    parent, name = posixpath.split(path.path.rstrip("/"))
    siblings: list[str] = []
    with suppress(OSError):  # a server may forbid to list what is beside
        selector = pafs.FileSelector(parent, allow_not_found=True)
        infos = path.filesystem.get_file_info(selector) if parent else []
        siblings = [posixpath.basename(i.path) for i in infos]
    near = difflib.get_close_matches(name, siblings, n=1)
    hint = f"; did you mean {posixpath.join(parent, near[0])}?" if near else "; check the path"
    return f"there is no file or folder {path.name}{hint}"


# -- globs ------------------------------------------------------------------------------


def _from_glob(path: RemotePath, engine: str | None, unchecked: _UncheckedFolders) -> Found:
    pattern = path.path.rstrip("/")
    root = posixpath.dirname(pattern[: min(pattern.index(c) for c in _GLOB if c in pattern)])
    listed = {e.info.path: e for e in _matching(path, root or "/", pattern)}
    matching = [e.info for p, e in listed.items() if f"/{STAGING}/" not in p]
    infos = of_one_engine(path, published(path, matching), engine)
    if not infos:
        there = replace(path, path=root).exists
        raise SourceNotFoundError(
            f"no file matches {path.name}; "
            + ("check the pattern" if there else f"there is no folder {root}")
        )
    for parent in {posixpath.dirname(i.path) for i in infos}:
        unchecked.add(path, parent)
    files = [_file_ref(path, listed[i.path]) for i in infos]
    files.sort(key=lambda f: natural_key(f.path))
    return Found(_with_keys(files, root))


def _matching(path: RemotePath, root: str, pattern: str) -> list[Listed]:
    """The files that match, and those in folders that do; hidden ones only if named as such."""
    matches = re.compile(_glob_to_regex(pattern))
    beyond = pattern[len(root) :].strip("/")
    deep = "/" in beyond or "**" in beyond
    hidden_too = any(part.startswith((".", "_")) for part in beyond.split("/"))
    if path.local and not os.path.isdir(root):
        return []
    found: dict[str, Listed] = {}
    for entry in list_files(replace(path, path=root), deep=deep, matches=matches):
        name = entry.info.path
        if not matches.fullmatch(name) or (is_hidden(name, root) and not hidden_too):
            continue
        if entry.info.type == pafs.FileType.File:
            found[name] = entry
        elif not beyond.endswith("**"):
            inside = list_files(replace(path, path=name))
            if not holds_workflow(name, [e.info for e in inside]):
                found.update({e.info.path: e for e in inside if not is_hidden(e.info.path, name)})
    return list(found.values())


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


def _common_folder(files: Sequence[FileRef]) -> str:
    folders = [posixpath.dirname(f.path) for f in files]
    try:
        return posixpath.commonpath(folders)
    except ValueError:  # on several filesystems
        return ""


def _with_keys(files: Sequence[FileRef], folder: str) -> tuple[FileRef, ...]:
    """Read the ``key=value`` folders; integers where every value is one."""
    root = outermost_key(folder)
    texts = [_key_texts(f.path, root) for f in files]
    if not any(texts):
        return tuple(files)
    names = {name for keys in texts for name in keys}
    whole = {n for n in names if all(_is_int(keys[n]) for keys in texts if n in keys)}
    return tuple(
        replace(f, keys=tuple((n, _key_value(v, n in whole)) for n, v in keys.items()))
        for f, keys in zip(files, texts, strict=True)
    )


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


# -- opening ----------------------------------------------------------------------------


def open_files(
    refs: Sequence[FileRef], open_format: OpenFormat, options: ReadOptions, skips: SkipList
) -> FileSet:
    """Open every file, in parallel."""

    def try_open(ref: FileRef) -> DataFile | CannotRead:
        try:
            file = open_format(_as_written(ref.pinned()), options)
            if skips.allowed:
                file.check()
            return file
        except (BadFileError, UnreadableFileError) as e:
            if not skips.allowed:
                raise
            return e

    if len(refs) == 1:
        opened = iter([try_open(refs[0])])
    else:  # several files a task: handing one to a thread takes longer than opening it
        some = max(1, len(refs) // _OPEN_TASKS)
        groups = [refs[i : i + some] for i in range(0, len(refs), some)]
        executor = LocalExecutor(threads=min(_OPEN_THREADS, len(groups)))
        opened = chain.from_iterable(executor.map(groups, lambda g: [try_open(r) for r in g]))
    good: list[tuple[FileRef, DataFile]] = []
    bad: list[tuple[Skipped, CannotRead]] = []
    for ref, result in zip(refs, opened, strict=True):
        if isinstance(result, BadFileError | UnreadableFileError):
            bad.append((Skipped(ref.name, None, None, str(result)), result))
        else:
            good.append((ref, result))
    if not good:
        raise SourceNotFoundError(
            f"none of the {len(refs)} files can be read; the first: {bad[0][1]}"
        )
    if bad:
        skips.add(bad)
    return FileSet(
        [f for _, f in good],
        [loc.name for loc, _ in good],
        [dict(loc.keys) for loc, _ in good],
        skips,
    )


def _as_written(ref: FileRef) -> FileRef:
    """Refuse an object that is another than the one the manifest names."""
    found = re.search(r'ETag="?([^" ]+)', ref.tag, re.IGNORECASE)
    if ref.etag and found and found[1] != ref.etag:
        raise UnfinishedDatasetError(
            f"{ref.name} is another object than the one that was written: its ETag is "
            f"{found[1]}, and {ref.etag} in the manifest; write the dataset again, or delete "
            "_tabfeed.json to read it as it is"
        )
    return ref
