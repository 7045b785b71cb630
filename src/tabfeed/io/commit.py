"""Write a folder of files so that a reader sees all of them or none.

The files of a new dataset are written into ``_tabfeed_writing/`` inside the output folder.
Once all are whole, a journal ``_tabfeed_commit.json`` is put down, the old files
leave, the new ones get their names, the manifest ``_tabfeed.json`` comes last, and the
journal goes. Killed before the journal, the folder still is what it was. Killed after it,
the folder says so, `check_finished` refuses it, and writing again completes it.

Contents are not forced to disk one by one: after a power cut a file may be short, which
the sizes in the manifest and the format's own footer reveal when it is opened. Forcing
each file costs seconds per GB and buys only a later discovery.

Only files that belong to a dataset are ever deleted: those the old manifest or journal names, the
Parquet files that opening the folder would read, and their usual companions. Anything else
a user keeps in the folder stays.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow.fs as pafs

from tabfeed.errors import (
    ArgumentError,
    DatasetExistsError,
    UnfinishedDatasetError,
    WriteError,
)
from tabfeed.io.filesystem import Place, place_of
from tabfeed.io.folder_lock import FolderLock
from tabfeed.io.staged import Staged, reason
from tabfeed.schema import Schema

__all__ = ["JOURNAL", "MANIFEST", "STAGING", "Commit", "check_finished", "read_manifest"]

STAGING = "_tabfeed_writing"
JOURNAL = "_tabfeed_commit.json"
MANIFEST = "_tabfeed.json"
_DATA = (".parquet", ".pq", ".parq")
_COMPANIONS = {
    "_metadata",
    "_common_metadata",
    "_SUCCESS",
    "_file_list.txt",
    "_metadata.json",
    "schema.pbtxt",
    ".merlin/schema.json",
}


def check_finished(folder: Place) -> None:
    """Refuse a folder whose last writing was interrupted."""
    if folder.child(JOURNAL).exists:
        raise UnfinishedDatasetError(
            f"{folder.name} is half replaced, some of its files old and some new: the process that "
            "writes it is still at it, or ended too soon; wait, or run the same to_parquet again "
            "to complete it"
        )


def read_manifest(folder: Place) -> dict[str, Any] | None:
    """What the writer said of a folder, or None if tabfeed did not write it."""
    try:
        manifest = json.loads(folder.child(MANIFEST).read_text())
        if not isinstance(manifest["files"], list):
            raise TypeError("files is not a list")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as e:
        raise UnfinishedDatasetError(
            f"{folder.child(MANIFEST).name} is damaged ({e}); write the dataset again, or delete "
            "that file to read the folder as plain Parquet"
        ) from e
    return dict(manifest)


class Commit(Staged):
    """A folder being written.

    Parameters
    ----------
    path
        The folder; made if it is not there.
    overwrite
        Whether a dataset that is there already may be replaced.
    storage_options
        For a URL, passed to its filesystem.

    Attributes
    ----------
    rows
        Rows of each file, by name; goes into the manifest.
    schema
        The dataset's schema; goes into the manifest, tags and all.
    order
        Names of files in the order in which they are to be read; the rest follow by name.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Commit(folder) as commit:
    ...     with commit.create("a.bin") as sink:
    ...         _ = sink.write(b"abc")
    >>> sorted(os.listdir(folder))
    ['_tabfeed.json', 'a.bin']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        folder = place_of(path, storage_options)
        super().__init__(folder, folder.child(STAGING))
        self.overwrite = overwrite
        self.schema: Schema | None = None
        self.order: Sequence[str] = ()
        self._adopted: dict[str, Place] = {}
        self._lock = FolderLock(self.folder.path)
        self._made = self._interrupted = False

    def check(self) -> None:
        """Refuse at once what entering would refuse; changes nothing."""
        self._refuse_a_file()
        self._interrupted = self.folder.child(JOURNAL).exists
        self._refuse_to_overwrite()

    # -- the three steps ------------------------------------------------------------

    def __enter__(self) -> Commit:
        with self.writing():
            self._refuse_a_file()
            self._made = not self.folder.exists
            self.folder.filesystem.create_dir(self.folder.path, recursive=True)
            if self.folder.local:
                self._lock.take()
            try:
                self._interrupted = self.folder.child(JOURNAL).exists
                self._refuse_to_overwrite()
                self._clear_staging()
                self.folder.filesystem.create_dir(self.staging.path, recursive=True)
            except BaseException:
                self._lock.release()
                raise
        return self

    def adopt(self, staged: Staged) -> None:
        """Make files that were written in a folder of their own part of the dataset."""
        for name in sorted(staged.names):
            if name in self._files:
                raise ArgumentError(f"two files of the dataset have the name {name!r}")
            self._files.add(name)
            self._adopted[name] = staged.staging.child(name)
        self.rows.update(staged.rows)

    def _lies_at(self, name: str) -> Place:
        return self._adopted.get(name) or self.staging.child(name)

    @property
    def files(self) -> list[str]:
        """Names of the files written so far, in reading order."""
        place = {name: i for i, name in enumerate(self.order)}
        return sorted(self._files, key=lambda n: (place.get(n, len(place)), n))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._publish()
            else:
                self._give_up()
        finally:
            self._lock.release()

    # -- publishing -----------------------------------------------------------------

    def _publish(self) -> None:
        new = self.files
        try:
            with self.writing():
                there = self._files_there()
                old = [n for n in self._dataset_files(there) if n not in new]
                self._refuse_obstacles(new, old, set(there) - set(old))
                manifest = self._manifest(new)
                self._put(JOURNAL, {"writing": new, "removing": old})
        except BaseException:
            self._give_up()
            raise
        try:
            self._replace(old, new, manifest)
        except OSError as e:
            raise WriteError(
                f"could not replace {self.folder.name}: {reason(e)}; some of its files are old "
                "and some new, so it will not open. Mend the cause and run it again to complete it"
            ) from e

    def _replace(self, old: list[str], new: list[str], manifest: dict[str, Any]) -> None:
        """Old files go, new ones come; until the journal goes the folder is refused."""
        for name in old:
            with suppress(FileNotFoundError):
                self.folder.filesystem.delete_file(self.folder.child(name).path)
        self._drop_empty_folders(old)
        for name in new:
            target = self.folder.child(name)
            if "/" in name:
                target.filesystem.create_dir(posixpath.dirname(target.path), recursive=True)
            target.filesystem.move(self._lies_at(name).path, target.path)
        self._put(MANIFEST, manifest)
        self.folder.filesystem.delete_file(self.folder.child(JOURNAL).path)
        self._clear_staging()

    def _give_up(self) -> None:
        """Leave the folder as it was found."""
        with suppress(OSError):
            if not self._interrupted and self.folder.child(JOURNAL).exists:
                self.folder.filesystem.delete_file(self.folder.child(JOURNAL).path)
            self._clear_staging()
            if self._made and self.folder.local:
                os.rmdir(self.folder.path)

    def _refuse_obstacles(self, new: list[str], old: list[str], foreign: set[str]) -> None:
        """A file of the user's in the way of a folder, or a folder in the way of a file."""
        infos = self.folder.filesystem.get_file_info([self.folder.child(n).path for n in new])
        leaving = {str(p) for n in old for p in Path(n).parents}
        staying = {str(p) for n in foreign for p in Path(n).parents}
        for name, info in zip(new, infos, strict=True):
            above = {str(p) for p in Path(name).parents} & foreign
            folder = info.type == pafs.FileType.Directory
            if above or (folder and (name in staying or name not in leaving)):
                obstacle = self.folder.child(min(above) if above else name).name
                raise WriteError(
                    f"{obstacle} is in the way of {self.folder.child(name).name} and is not part "
                    "of a dataset; move it away, then run it again. Nothing was changed"
                )

    def _manifest(self, names: list[str]) -> dict[str, Any]:
        infos = self.folder.filesystem.get_file_info([self._lies_at(n).path for n in names])
        files = [
            {"name": n, "bytes": info.size, **({"rows": self.rows[n]} if n in self.rows else {})}
            for n, info in zip(names, infos, strict=True)
        ]
        schema = None if self.schema is None else json.loads(self.schema.to_json())
        return {"tabfeed_dataset": 1, "files": files, "schema": schema}

    def _put(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a small file under its final name in one step, and force it to disk if local."""
        temporary, final = self.staging.child(name), self.folder.child(name)
        with temporary.filesystem.open_output_stream(temporary.path, compression=None) as sink:
            sink.write(json.dumps(content, indent=1).encode())
        if self.folder.local:
            _force_to_disk(temporary.path)
        temporary.filesystem.move(temporary.path, final.path)
        if self.folder.local:
            _force_to_disk(self.folder.path)

    # -- what is there already ------------------------------------------------------

    def _refuse_a_file(self) -> None:
        if self.folder.info().type == pafs.FileType.File:
            raise DatasetExistsError(
                f"{self.folder.name} is a file; a dataset is written into a folder"
            )

    def _refuse_to_overwrite(self) -> None:
        if self.overwrite or self._interrupted:
            return
        if self.folder.child(MANIFEST).exists or self._dataset_files(self._files_there()):
            raise DatasetExistsError(
                f"{self.folder.name} already holds a dataset; write elsewhere, or pass "
                "overwrite=True to replace it"
            )

    def _files_there(self) -> list[str]:
        """Every file in the folder now, but for our own notes, as names below it."""
        selector = pafs.FileSelector(self.folder.path, recursive=True, allow_not_found=True)
        root = self.folder.path.rstrip("/") + "/"
        names = [
            info.path.removeprefix(root)
            for info in self.folder.filesystem.get_file_info(selector)
            if info.type == pafs.FileType.File
        ]
        ours = (JOURNAL, MANIFEST)
        return [n for n in names if n not in ours and not n.startswith(STAGING + "/")]

    def _dataset_files(self, names: list[str]) -> list[str]:
        """Those of `names` that belong to the dataset that is there now."""
        listed = _COMPANIONS | self._noted()
        return [n for n in names if n in listed or (n.endswith(_DATA) and not _hidden(n))]

    def _noted(self) -> set[str]:
        """The files that the manifest names, and the journal of a writing that was cut short."""
        names: set[str] = set()
        with suppress(UnfinishedDatasetError):  # a damaged manifest is replaced with the rest
            manifest = read_manifest(self.folder) or {"files": []}
            names.update(str(f["name"]) for f in manifest["files"])
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            journal = json.loads(self.folder.child(JOURNAL).read_text())
            names.update(map(str, (*journal["writing"], *journal["removing"])))
        return names

    def _drop_empty_folders(self, removed: list[str]) -> None:
        """Hive folders that held only old files go with them."""
        if not self.folder.local:
            return
        for name in removed:
            for parent in Path(name).parents:
                with suppress(OSError):  # not empty, or gone already
                    if str(parent) != ".":
                        os.rmdir(os.path.join(self.folder.path, parent))

    def _clear_staging(self) -> None:
        if self.staging.exists:
            self.staging.filesystem.delete_dir(self.staging.path)


def _hidden(name: str) -> bool:
    """Whether reading the folder passes over this file."""
    return any(p.startswith((".", "_")) and "=" not in p for p in name.split("/"))


def _force_to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
