"""The files of a folder that is being written: the new ones, and those that are there already.

Each process that writes some of the new files, on this machine or another, uses a folder of its own
with a random name inside the staging folder. A file that a killed writer left there never becomes
part of the dataset: only those that a returned `StagedFiles` names do.

Of what is there already (`FolderContents`), only files that belong to a dataset are ever replaced
or deleted: those that its manifest or journal names, and the usual companions of Parquet files.
Where there is no manifest, those are the Parquet files on top and in ``key=value`` folders.
Anything else a user keeps in the folder stays, and so does what is in a folder that is a link.
"""

from __future__ import annotations

import os
import posixpath
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError, TabfeedError, UnfinishedDatasetError, WriteError
from tabfeed.io.commit.manifest import (
    JOURNAL,
    MANIFEST,
    STAGING,
    Entry,
    Journal,
    Manifest,
    in_key_folders,
    is_data,
    read_journal,
    read_manifest,
    writer_of,
)
from tabfeed.io.storage.files import RemotePath
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.lazy import cached_property

__all__ = ["COMPANIONS", "FolderContents", "StagedFiles", "read_contents"]


class StagedFiles:
    """Some files of a dataset, written into one folder; can be sent to other processes and back.

    Parameters
    ----------
    folder
        Where the dataset will be; for messages.
    staging
        Where the files are until then.

    Attributes
    ----------
    rows
        Rows of each file, by name; goes into the manifest.
    sums
        Size and CRC-32 of each file, by name, as it was written.
    """

    def __init__(self, folder: RemotePath, staging: RemotePath) -> None:
        self.folder, self.staging = folder, staging
        self.rows: dict[str, int] = {}
        self.sums: dict[str, tuple[int, int]] = {}
        self._files: set[str] = set()

    def fresh(self) -> StagedFiles:
        """New staged files in a folder inside this one, for one writer; this folder must exist."""
        place = self.staging.child(uuid.uuid4().hex)
        with self.writing():
            place.filesystem.create_dir(place.path, recursive=False)
        return StagedFiles(self.folder, place)

    @property
    def names(self) -> set[str]:
        """Names of the files written so far."""
        return set(self._files)

    def entry(self, name: str) -> Entry:
        """A written file as the manifest names it."""
        nbytes, crc32 = self.sums[name]
        return Entry(name, nbytes, self.rows.get(name), f"{crc32:08x}")

    @contextmanager
    def create(self, name: str) -> Iterator[pa.NativeFile]:
        """Open a new file of the dataset for writing; a relative name may hold folders."""
        if name in self._files:
            raise ArgumentError(f"two files of the dataset have the name {name!r}")
        place = self.staging.child(name)
        with self.writing(name):
            parent = posixpath.dirname(place.path)
            if "/" in name:
                place.filesystem.create_dir(parent, recursive=True)
            with place.filesystem.open_output_stream(place.path, compression=None) as file:
                summed = _Summed(file)
                with pa.PythonFile(summed, mode="w") as sink:
                    yield sink
        self.sums[name] = (summed.nbytes, summed.crc32)
        self._files.add(name)

    @contextmanager
    def again(self, name: str) -> Iterator[pa.NativeFile]:
        """Open a written file for reading while it is created again."""
        place, aside = self.staging.child(name), self.staging.child(f"{name}.aside")
        place.filesystem.move(place.path, aside.path)
        self._files.discard(name)
        with aside.filesystem.open_input_file(aside.path) as source:
            yield source
        aside.filesystem.delete_file(aside.path)

    @contextmanager
    def writing(self, name: str = "") -> Iterator[None]:
        """Name the file of the dataset in errors raised while it is written."""
        try:
            yield
        except TabfeedError:
            raise
        except OSError as e:
            place = self.folder.child(name) if name else self.folder
            raise WriteError(
                f"could not write {place.name}: {reason(e)}; what was in {self.folder.name} "
                f"before is untouched. {remedy(e, writing=True)}, then run it again"
            ) from e


class _Summed:
    """A file that is only appended to; keeps its size and CRC-32, which takes up to 0.5 s a GB."""

    closed = False

    def __init__(self, file: pa.NativeFile) -> None:
        self.nbytes = self.crc32 = 0
        self._file = file

    def write(self, data: Any) -> int:
        """Append."""
        self._file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        size = len(memoryview(data))
        self.nbytes += size
        return size

    def tell(self) -> int:
        """Where the next byte goes."""
        return self.nbytes

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """Leaves the file open for the code that opened it."""


# -- what is there already -----------------------------------------------------------------

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
        if self._noted is not None:
            return [n for n in names if n in COMPANIONS or n in self._noted]
        others = tuple(n.removesuffix(MANIFEST) for n in names if n.endswith(f"/{MANIFEST}"))
        data = {n for n in names if is_data(n) and writer_of(n) not in self.at_work}
        return [n for n in names if n in COMPANIONS or (n in data and not n.startswith(others))]

    @cached_property
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
