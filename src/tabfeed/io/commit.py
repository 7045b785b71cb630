"""Write a folder of files so that a reader sees all of them or none.

The files of a new dataset are written into ``_tabfeed_writing/`` inside the output folder.
Once all are whole, a journal ``_tabfeed_commit.json`` is put down, the old files
leave, the new ones get their names, the manifest ``_tabfeed.json`` comes last, and the
journal goes. Killed before the journal, the folder still is what it was. Killed after it,
the folder says so, `check_finished` refuses it, and writing again completes it.

Contents are not forced to disk one by one: after a power cut a file may be short, which
the sizes in the manifest and the format's own footer reveal when it is opened. Forcing
each file costs seconds per GB and buys only a later discovery.

Only files that belong to a dataset are ever deleted: those the old manifest names, or,
where there is none, Parquet files and their usual companions. Anything else a user keeps
in the folder stays.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from tabfeed.errors import DatasetExistsError, TabfeedError, UnfinishedDatasetError, WriteError
from tabfeed.io.filesystem import Place, place_of
from tabfeed.schema import Schema

__all__ = ["JOURNAL", "MANIFEST", "STAGING", "Commit", "check_finished", "read_manifest"]

STAGING = "_tabfeed_writing"
JOURNAL = "_tabfeed_commit.json"
MANIFEST = "_tabfeed.json"
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
            f"{folder.name} was being replaced when the writing process ended, so some of its "
            "files are old and some new; run the same to_parquet again to complete it"
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


class Commit:
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
        self.folder = place_of(path, storage_options)
        self.overwrite = overwrite
        self.rows: dict[str, int] = {}
        self.schema: Schema | None = None
        self._files: list[str] = []
        self._lock: int | None = None

    @property
    def staging(self) -> Place:
        """Where files lie until they are whole."""
        return self.folder.child(STAGING)

    # -- the three steps ------------------------------------------------------------

    def __enter__(self) -> Commit:
        with self._as_write_error(self.folder):
            self._refuse_to_overwrite()
            self.folder.filesystem.create_dir(self.folder.path, recursive=True)
            self._take_lock()
            self._clear_staging()
            self.folder.filesystem.create_dir(self.staging.path, recursive=True)
        return self

    @contextmanager
    def create(self, name: str) -> Iterator[pa.NativeFile]:
        """Open a new file of the dataset for writing; a relative name may hold folders."""
        place = self.staging.child(name)
        with self._as_write_error(self.folder.child(name)):
            parent = posixpath.dirname(place.path)
            if "/" in name:
                place.filesystem.create_dir(parent, recursive=True)
            with place.filesystem.open_output_stream(place.path, compression=None) as sink:
                yield sink
        self._files.append(name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                with self._as_write_error(self.folder):
                    self._publish()
            else:
                with suppress(OSError):
                    self._clear_staging()
        finally:
            self._release_lock()

    # -- publishing -----------------------------------------------------------------

    def _publish(self) -> None:
        new = sorted(self._files)
        old = [n for n in self._dataset_files() if n not in new]
        manifest = self._manifest(new)
        self._put(JOURNAL, {"writing": new, "removing": old})
        for name in old:
            self.folder.filesystem.delete_file(self.folder.child(name).path)
        self._drop_empty_folders(old)
        for name in new:
            target = self.folder.child(name)
            if "/" in name:
                target.filesystem.create_dir(posixpath.dirname(target.path), recursive=True)
            target.filesystem.move(self.staging.child(name).path, target.path)
        self._put(MANIFEST, manifest)
        self.folder.filesystem.delete_file(self.folder.child(JOURNAL).path)
        self._clear_staging()

    def _manifest(self, names: list[str]) -> dict[str, Any]:
        infos = self.folder.filesystem.get_file_info([self.staging.child(n).path for n in names])
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

    def _refuse_to_overwrite(self) -> None:
        info = self.folder.info()
        if info.type == pafs.FileType.File:
            raise DatasetExistsError(
                f"{self.folder.name} is a file; a dataset is written into a folder"
            )
        if self.overwrite or self.folder.child(JOURNAL).exists:
            return
        if self._dataset_files():
            raise DatasetExistsError(
                f"{self.folder.name} already holds a dataset; write elsewhere, or pass "
                "overwrite=True to replace it"
            )

    def _dataset_files(self) -> list[str]:
        """Files of the dataset that is there now, as names below the folder."""
        selector = pafs.FileSelector(self.folder.path, recursive=True, allow_not_found=True)
        root = self.folder.path.rstrip("/") + "/"
        names = [
            info.path.removeprefix(root)
            for info in self.folder.filesystem.get_file_info(selector)
            if info.type == pafs.FileType.File
        ]
        manifest = read_manifest(self.folder) or {"files": []}
        listed = {str(f["name"]) for f in manifest["files"]}
        return [
            n
            for n in names
            if not n.startswith(STAGING + "/")
            and n not in (JOURNAL, MANIFEST)
            and (n in listed or n in _COMPANIONS or n.endswith(".parquet"))
        ]

    def _drop_empty_folders(self, removed: list[str]) -> None:
        """Hive folders that held only old files go with them."""
        if not self.folder.local:
            return
        for name in removed:
            for parent in Path(name).parents:
                with suppress(OSError):  # not empty, or gone already
                    if str(parent) != ".":
                        os.rmdir(os.path.join(self.folder.path, parent))

    # -- staging and locking --------------------------------------------------------

    def _clear_staging(self) -> None:
        if self.staging.exists:
            self.staging.filesystem.delete_dir(self.staging.path)

    def _take_lock(self) -> None:
        """Keep a second process from writing here; the lock dies with this one."""
        if not self.folder.local:
            return
        try:
            import fcntl
        except ImportError:  # Windows
            return
        self._lock = os.open(self.folder.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            self._release_lock()
            raise WriteError(f"another process is writing {self.folder.name} now") from e

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def _as_write_error(self, place: Place) -> Iterator[None]:
        """Say which file could not be written and that nothing was lost."""
        try:
            yield
        except TabfeedError:
            raise
        except OSError as e:
            reason = e.strerror or str(e)
            raise WriteError(
                f"could not write {place.name}: {reason}; what was in {self.folder.name} before "
                "is untouched. Free some space or choose another folder, then run it again"
            ) from e


def _force_to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
