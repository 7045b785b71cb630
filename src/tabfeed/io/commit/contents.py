"""What a folder holds before it is written: files of the dataset that is there, and other files.

Only files that belong to a dataset are ever replaced or deleted: those that its manifest or journal
names, and the usual companions of Parquet files. Where there is no manifest, those are the Parquet
files on top and in ``key=value`` folders. Anything else a user keeps in the folder stays, and so
does what is in a folder that is a link.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow.fs as pafs

from tabfeed.errors import UnfinishedDatasetError, WriteError
from tabfeed.io.commit.manifest import (
    JOURNAL,
    MANIFEST,
    STAGING,
    Journal,
    Manifest,
    in_key_folders,
    is_data,
    read_journal,
    read_manifest,
    writer_of,
)
from tabfeed.io.storage.paths import RemotePath

__all__ = ["COMPANIONS", "FolderContents", "read_contents"]

COMPANIONS = {
    "_metadata",
    "_common_metadata",
    "_SUCCESS",
    "_file_list.txt",
    "_metadata.json",
    "schema.pbtxt",
    ".merlin/schema.json",
}
"""Files that other tools write beside Parquet files, and that go with them."""


@dataclass(frozen=True)
class FolderContents:
    """The files in a folder, as names below it, without tabfeed's own notes.

    ``at_work`` are the writers that have files in the staging folder.
    """

    folder: RemotePath
    names: list[str]
    at_work: frozenset[str]

    def dataset_files(self, names: Sequence[str] | None = None) -> list[str]:
        """The files, or those of `names`, that belong to the dataset that is there now."""
        names = self.names if names is None else names
        noted = self._noted()
        if noted is not None:
            return [n for n in names if n in COMPANIONS or n in noted]
        others = tuple(n.removesuffix(MANIFEST) for n in names if n.endswith(f"/{MANIFEST}"))
        data = {n for n in names if is_data(n) and writer_of(n) not in self.at_work}
        return [n for n in names if n in COMPANIONS or (n in data and not n.startswith(others))]

    def _noted(self) -> set[str] | None:
        """The files that manifest and journal name; None if neither says all of them."""
        try:
            manifest, journal = read_manifest(self.folder), read_journal(self.folder)
        except UnfinishedDatasetError:  # damaged, and replaced with the rest
            return None
        if manifest is None and journal is None:
            return None
        journal = journal or Journal()
        return {*(manifest or Manifest()).names, *journal.writing, *journal.removing}


def read_contents(folder: RemotePath) -> FolderContents:
    """List a folder."""
    selector = pafs.FileSelector(folder.path, recursive=True, allow_not_found=True)
    root = folder.path.rstrip("/") + "/"
    names = [
        info.path.removeprefix(root)
        for info in folder.filesystem.get_file_info(selector)
        if info.type == pafs.FileType.File
    ]
    staged = [n.split("/") for n in names if n.startswith(STAGING + "/")]
    at_work = frozenset(parts[1] for parts in staged if len(parts) > 2)
    ours = (JOURNAL, MANIFEST)
    names = [n for n in names if n not in ours and not n.startswith(STAGING + "/")]
    return FolderContents(
        folder, _without_linked(folder, names) if folder.local else names, at_work
    )


def _without_linked(folder: RemotePath, names: list[str]) -> list[str]:
    """The names, with a linked folder in place of the files in it, which are elsewhere and stay."""

    @cache
    def topmost_link(name: str) -> str:
        found = topmost_link(posixpath.dirname(name)) if name else ""
        return found or (name if os.path.islink(folder.child(name).path) else "")

    found = dict.fromkeys(topmost_link(posixpath.dirname(n)) or n for n in names)
    for name in found.keys() - set(names):
        if in_key_folders(f"{name}/file"):
            raise WriteError(
                f"{folder.child(name).name} is a link to a folder of data, which would be "
                "part of the new dataset and is not deleted, since it is elsewhere; remove "
                "the link, then run it again. Nothing was changed"
            )
    return list(found)
