"""Which files in a folder are its dataset.

Folders are searched to any depth; names that start with ``_`` or ``.`` are skipped, as in all tools
of this kind. Where tabfeed wrote the folder, its manifest lists the files, and each must be there
with the size it was written with. Files of a writer that has not published them yet, or was killed
before it could, are not part of the dataset; neither is a saved workflow in a subfolder.
"""

from __future__ import annotations

import posixpath
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import pyarrow.fs as pafs

from tabfeed.errors import (
    ArgumentError,
    SourceNotFoundError,
    TabfeedWarning,
    UnfinishedDatasetError,
)
from tabfeed.io.commit.manifest import (
    MANIFEST,
    STAGING,
    Manifest,
    check_finished,
    in_key_folders,
    is_data,
    outermost_key,
    read_manifest,
    saved_workflows,
    writer_of,
)
from tabfeed.io.commit.unlocked import find_writers, staged_files
from tabfeed.io.formats.base import engine_of
from tabfeed.io.storage.files import RemotePath, natural_key
from tabfeed.io.storage.local import walk
from tabfeed.io.storage.remote import Listed, remote_of
from tabfeed.io.storage.retry import retry

__all__ = [
    "HIVE_NULL",
    "holds_workflow",
    "is_hidden",
    "list_files",
    "of_one_engine",
    "published",
    "read_folder",
]

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # the folder of rows whose key is null
_ATTEMPTS = 5  # to read a folder whose files are replaced meanwhile


def read_folder(folder: RemotePath, engine: str | None) -> tuple[list[Listed], Manifest | None]:
    """The data files of a folder in reading order, and its manifest if it has one."""
    for attempt in range(_ATTEMPTS):
        check_finished(folder)
        manifest = read_manifest(folder)
        try:
            return _data_files(folder, manifest, engine), manifest
        except UnfinishedDatasetError:
            if attempt and read_manifest(folder) == manifest:
                raise
    raise UnfinishedDatasetError(
        f"{folder.name} is replaced again and again while it is opened; wait for its writers"
    )


# -- listing ----------------------------------------------------------------------------


def list_files(
    folder: RemotePath, *, deep: bool = True, matches: re.Pattern[str] | None = None
) -> list[Listed]:
    """The files below a folder; with `matches`, also the folders that match."""
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
        return wanted and engine_of(path) is not None and not is_hidden(path, folder.path)

    infos = walk(folder.path, may_be_data, deep=deep)
    return [Listed(i, "") for i in infos if i.type in kinds]


def is_hidden(path: str, root: str) -> bool:
    """Whether a name below `root` starts with ``_`` or ``.``, other than a Hive key."""
    parts = path[len(root) :].strip("/").split("/")
    return any(p.startswith((".", "_")) and "=" not in p for p in parts)


def of_one_engine(
    folder: RemotePath, infos: Sequence[pafs.FileInfo], engine: str | None
) -> list[pafs.FileInfo]:
    """The files of one format, this one if it is given; files of no known format if all are."""
    unknown = [
        i
        for i in infos
        if engine_of(i.path) is None and posixpath.basename(i.path) != "schema.pbtxt"
    ]
    if engine is not None:
        return [i for i in infos if engine_of(i.path) == engine] or unknown
    engines = {e for i in infos if (e := engine_of(i.path)) is not None}
    if len(engines) > 1:
        raise ArgumentError(
            f"{folder.name} holds files of several formats ({', '.join(sorted(engines))}); "
            "say which with engine="
        )
    return [i for i in infos if engine_of(i.path) is not None] or unknown


def holds_workflow(folder: str, infos: Sequence[pafs.FileInfo]) -> bool:
    """Whether a folder is a saved workflow."""
    above = posixpath.dirname(folder) + "/"
    base = posixpath.basename(folder) + "/"
    return base in saved_workflows(i.path.removeprefix(above) for i in infos)


# -- manifests and unfinished writes ------------------------------------------------------


def _data_files(folder: RemotePath, manifest: Manifest | None, engine: str | None) -> list[Listed]:
    """The data files of a folder, unless a writer replaces them meanwhile."""
    listed = {e.info.path: e for e in list_files(folder)}
    infos = [e.info for e in listed.values()]
    chosen = of_one_engine(folder, _candidates(folder, manifest, infos), engine)
    if not any(engine_of(i.path) for i in chosen) and folder.child(STAGING).exists:
        raise UnfinishedDatasetError(
            f"{folder.name} contains an unfinished write; if no writer is running, rerun "
            "to_parquet()"
        )
    if not chosen:
        kind = f" {engine}" if engine else ""
        what = f"none of its {len(infos)} files is{kind} data" if infos else "it is empty"
        raise SourceNotFoundError(f"the folder {folder.name} has no{kind} data files: {what}")
    chosen.sort(key=lambda i: natural_key(i.path))
    if manifest is not None:  # the writer's order, then what was added since
        _check_manifest(folder, manifest, chosen)
        order = {folder.child(name).path: i for i, name in enumerate(manifest.names)}
        chosen.sort(key=lambda i: order.get(i.path, len(order)))
    return [listed[i.path] for i in chosen]


def _candidates(
    folder: RemotePath, manifest: Manifest | None, infos: Sequence[pafs.FileInfo]
) -> list[pafs.FileInfo]:
    """The files that may be data: not hidden, not unpublished, not of a workflow."""
    root = folder.path.rstrip("/") + "/"
    names = {i.path.removeprefix(root): i for i in infos}
    staged = [n.split("/") for n in names if n.startswith(f"{STAGING}/")]
    at_work = {parts[1] for parts in staged if len(parts) > 2}
    others = saved_workflows(names)
    visible = {n: i for n, i in names.items() if not is_hidden(i.path, folder.path)}
    if manifest is None:
        visible = {n: i for n, i in visible.items() if writer_of(n) not in at_work}
        visible = {n: i for n, i in visible.items() if not n.startswith(others)}
        _refuse_several_writers(folder, visible)
        return published(folder, list(visible.values()))
    known = set(manifest.names)
    added = {n for n in visible.keys() - known if is_data(n) and writer_of(n) is None}
    above = {str(p) for n in added for p in PurePosixPath(n).parents} - {"."}
    others += tuple(f"{f}/" for f in above if folder.child(f, MANIFEST).exists)
    added = {n for n in added if not n.startswith(others)}
    if added and at_work:  # a writer that was stopped before it deleted what it replaced
        for other in find_writers(folder, [f"{writer}/" for writer in at_work]):
            added -= set(other.journal.removing)
    return [i for n, i in names.items() if n in known or n in added]


def _refuse_several_writers(folder: RemotePath, names: Iterable[str]) -> None:
    """Without a manifest, nothing says which writer's files are the dataset."""
    marked = {w: n for n in names if in_key_folders(n) and (w := writer_of(n)) is not None}
    if len(marked) > 1 and outermost_key(folder.path) == folder.path:
        raise UnfinishedDatasetError(
            f"{folder.name} holds files of {len(marked)} writers, such as "
            f"{' and '.join(sorted(marked.values())[:2])}, and has no {MANIFEST} that says which "
            "are the dataset: write it again with overwrite=True, or move the files of all "
            f"writers but one away. To read them all, name them: {folder.child('*').name}"
        )


def published(path: RemotePath, infos: Sequence[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """The files, without those of writers that have not published them."""
    known: dict[str, Callable[[str], bool]] = {}

    def is_published(file: str) -> bool:
        if writer_of(file) is None:
            return True
        root = outermost_key(posixpath.dirname(file))
        if root not in known:
            known[root] = _published_in(replace(path, path=root))
        return known[root](file)

    return [i for i in infos if is_published(i.path)]


def _published_in(folder: RemotePath) -> Callable[[str], bool]:
    manifest = read_manifest(folder)
    if manifest is not None:
        names = {folder.child(n).path for n in manifest.names}
        return lambda path: path in names
    writers = {n.partition("/")[0] for n in staged_files(folder)}
    return lambda path: writer_of(path) not in writers


def _check_manifest(folder: RemotePath, manifest: Manifest, infos: Iterable[pafs.FileInfo]) -> None:
    """Every file the writer listed must be there with its size; files added since are read too."""
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
        warnings.warn(
            f"{folder.name} holds {len(extra)} files that were added after it was written, such as "
            f"{min(extra)}; they are read too. Move them away if they do not belong to it",
            TabfeedWarning,
            stacklevel=2,
        )
