"""Write a folder of files so that a reader sees all of them or none.

Each writer puts the files of a new dataset into a folder of its own inside ``_tabfeed_writing/``.

On a local disk a lock keeps a second writer out. Once all files are complete, a journal
``_tabfeed_commit.json`` is written, the old files are deleted, the new ones get their names, the
manifest ``_tabfeed.json`` comes last, and the journal is deleted. A writer killed before the
journal leaves the folder as it was. One killed after it leaves a folder that `check_finished`
refuses, and that writing again completes. `tabfeed.io.commit.unlocked` does the same in an
object store.

Contents are not forced to disk one by one: after a power cut a file may be short, which the sizes
in the manifest and the format's own footer reveal when it is opened. Forcing each file costs
seconds per GB and buys only an earlier discovery. A change that keeps the size is found by
`validate`: the manifest has a CRC-32 of each file, and the ETag of each object.

`tabfeed.io.commit.staged_files` says which of the files in the folder may be deleted.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow.fs as pafs

from tabfeed.errors import ArgumentError, DatasetExistsError, WriteError
from tabfeed.io.commit.manifest import (
    JOURNAL,
    MANIFEST,
    STAGING,
    Journal,
    Manifest,
    read_journal,
)
from tabfeed.io.commit.object_store import objects_of
from tabfeed.io.commit.staged_files import COMPANIONS, FolderContents, StagedFiles, read_contents
from tabfeed.io.commit.unlocked import (
    Heartbeat,
    ObjectPublisher,
    UnknownOutcome,
    find_writers,
    new_writer,
    staged_files,
)
from tabfeed.io.storage.files import RemotePath, path_of
from tabfeed.io.storage.local import FolderLock
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.schema import Schema

__all__ = ["Commit"]


class Commit(StagedFiles):
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
        folder = path_of(path, storage_options)
        self.writer = new_writer()
        super().__init__(folder, folder.child(STAGING, self.writer))
        self.overwrite = overwrite
        self.schema: Schema | None = None
        self.order: Sequence[str] = ()
        self._adopted: dict[str, RemotePath] = {}
        self._lock = FolderLock(folder.path)
        self._heartbeat = Heartbeat(folder, self.writer)
        self._publisher: ObjectPublisher | None = None  # in an object store
        self._made = self._interrupted = False

    def check(self) -> None:
        """Refuse at once what entering would refuse; changes nothing."""
        self._refuse_a_file()
        self._interrupted = self.folder.child(JOURNAL).exists
        self._refuse_to_overwrite()

    def adopt(self, staged: StagedFiles) -> None:
        """Make files that were written in a folder of their own part of the dataset."""
        for name in sorted(staged.names):
            if name in self._files:
                raise ArgumentError(f"two files of the dataset have the name {name!r}")
            self._files.add(name)
            self._adopted[name] = staged.staging.child(name)
        self.rows.update(staged.rows)
        self.sums.update(staged.sums)

    @property
    def files(self) -> list[str]:
        """Names of the files written so far, in reading order."""
        place = {name: i for i, name in enumerate(self.order)}
        return sorted(self._files, key=lambda n: (place.get(n, len(place)), n))

    # -- beginning and ending ---------------------------------------------------------

    def __enter__(self) -> Commit:
        with self.writing():
            self._refuse_a_file()
            if self.folder.local:
                self._made = not self.folder.exists
                os.makedirs(self.folder.path, exist_ok=True)
                self._lock.take()
            else:
                objects = objects_of(self.folder, self.writer)
                self._publisher = ObjectPublisher(self.folder, objects, self._heartbeat)
            try:
                if self._publisher is not None:
                    self._publisher.begin()
                self._interrupted = self.folder.child(JOURNAL).exists
                self._refuse_to_overwrite()
                self._begin()
            except BaseException:
                self._end()
                raise
        return self

    def _begin(self) -> None:
        """Clear away what dead writers left, and begin a folder of this writer's own."""
        if self._lock.held:
            self._clear_staging()
        if self.folder.filesystem.type_name not in ("s3", "py::s3"):  # which has no folders
            self.folder.filesystem.create_dir(self.staging.path, recursive=True)
        if self._lock.held:
            return
        self._heartbeat.start()
        names = staged_files(self.folder)
        others = [w for w in find_writers(self.folder, names) if w.writer != self.writer]
        if self._publisher is not None:
            self._publisher.clear_after_the_dead(names, others)
            return
        for other in others:
            if other.dead:
                place = self.folder.child(STAGING, other.writer)
                place.filesystem.delete_dir(place.path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self._give_up()
            elif self._publisher is None:
                self._publish()
            else:
                self._publish_objects(self._publisher)
        finally:
            self._end()

    def _end(self) -> None:
        self._heartbeat.stop()
        self._lock.release()

    def _publish_objects(self, publisher: ObjectPublisher) -> None:
        """Publish in an object store; leave nothing there if it fails."""
        staged = [(self._staged_at(name), self.entry(name)) for name in self.files]
        try:
            with self.writing():
                contents = read_contents(self.folder)
                old = contents.dataset_files() + ([JOURNAL] if self._interrupted else [])
                won = publisher.publish(staged, old, self.schema)
        except UnknownOutcome as e:
            raise WriteError(str(e)) from e
        except BaseException:
            self._give_up()
            raise
        if not won:
            self._give_up()
            raise WriteError(
                f"another writer published {self.folder.name} first, while this one was at work; "
                "nothing of the other's was touched and nothing of this one is left. Choose "
                "another folder, or run it again with overwrite=True to replace the other's"
            )
        publisher.clear_after_publishing(old)

    def _staged_at(self, name: str) -> RemotePath:
        return self._adopted.get(name) or self.staging.child(name)

    # -- publishing on a local disk -------------------------------------------------

    def _publish(self) -> None:
        new = self.files
        try:
            with self.writing():
                contents = read_contents(self.folder)
                old = [n for n in contents.dataset_files() if n not in new]
                self._refuse_obstacles(new, old, contents)
                manifest = Manifest(tuple(map(self.entry, new)), self.schema).to_json()
                self._put(JOURNAL, Journal(tuple(new), tuple(old)).to_json())
        except BaseException:
            self._give_up()
            raise
        try:
            self._replace(old, new, manifest)
        except OSError as e:
            raise WriteError(
                f"could not replace {self.folder.name}: {reason(e)}; some of its files are old "
                f"and some new, so it will not open. {remedy(e, writing=True)}, then run it again "
                "to complete it"
            ) from e

    def _replace(self, old: list[str], new: list[str], manifest: str) -> None:
        """Delete the old files, name the new ones; the folder is refused until the journal goes."""
        for name in old:
            with suppress(FileNotFoundError):
                self.folder.filesystem.delete_file(self.folder.child(name).path)
        self._drop_empty_folders(old)
        for name in new:
            target = self.folder.child(name)
            if "/" in name:
                target.filesystem.create_dir(posixpath.dirname(target.path), recursive=True)
            target.filesystem.move(self._staged_at(name).path, target.path)
        self._put(MANIFEST, manifest)
        self.folder.filesystem.delete_file(self.folder.child(JOURNAL).path)
        self._clear_staging()

    def _refuse_obstacles(self, new: list[str], old: list[str], contents: FolderContents) -> None:
        """A file of the user's in the way of a new one: its name, its folder, or a folder."""
        foreign = set(contents.names) - set(old)
        infos = self.folder.filesystem.get_file_info([self.folder.child(n).path for n in new])
        leaving = {str(p) for n in old for p in Path(n).parents}
        staying = {str(p) for n in foreign for p in Path(n).parents}
        replaced = set(contents.dataset_files(sorted(foreign & set(new))))
        for name, info in zip(new, infos, strict=True):
            above = {str(p) for p in Path(name).parents} & foreign
            folder = info.type == pafs.FileType.Directory
            mine = name in foreign and name not in replaced
            if above or mine or (folder and (name in staying or name not in leaving)):
                obstacle = self.folder.child(min(above) if above else name).name
                raise WriteError(
                    f"{obstacle} is in the way of {self.folder.child(name).name} and is not part "
                    "of a dataset; move it away, then run it again. Nothing was changed"
                )

    def _put(self, name: str, text: str) -> None:
        """Write a small file under its final name in one step, and force it to disk."""
        temporary, final = self.staging.child(name), self.folder.child(name)
        with temporary.filesystem.open_output_stream(temporary.path, compression=None) as sink:
            sink.write(text.encode())
        _force_to_disk(temporary.path)
        temporary.filesystem.move(temporary.path, final.path)
        _force_to_disk(self.folder.path)

    # -- refusing and cleaning up -----------------------------------------------------

    def _refuse_a_file(self) -> None:
        if self.folder.info().type == pafs.FileType.File:
            raise DatasetExistsError(
                f"{self.folder.name} is a file; a dataset is written into a folder"
            )

    def _refuse_to_overwrite(self) -> None:
        contents = read_contents(self.folder) if self.folder.local else None
        if self.overwrite or (self._interrupted and read_journal(self.folder)):
            return
        there = (contents or read_contents(self.folder)).dataset_files()
        data = [n for n in there if n not in COMPANIONS]
        if not data and not self.folder.child(MANIFEST).exists:
            return
        those = f"its {len(data)} files, such as {min(data)}" if data else "it"
        raise DatasetExistsError(
            f"{self.folder.name} already holds a dataset; write elsewhere, or pass "
            f"overwrite=True to replace {those}. Other files and subfolders stay"
        )

    def _give_up(self) -> None:
        """Leave the folder as it was found."""
        with suppress(OSError):
            if self._publisher is not None:
                self._publisher.withdraw(self._files)
                return
            if not self._interrupted and self.folder.child(JOURNAL).exists:
                self.folder.filesystem.delete_file(self.folder.child(JOURNAL).path)
            self._clear_staging()
            if self._made:
                os.rmdir(self.folder.path)

    def _clear_staging(self) -> None:
        """Delete the staging folder: all of it if no other writer can be at work, else our part."""
        mine = self.folder.child(STAGING) if self._lock.held else self.staging
        if mine.exists:
            mine.filesystem.delete_dir(mine.path)
        if not self._lock.held:
            with suppress(OSError):  # another writer's files are in it
                os.rmdir(self.folder.child(STAGING).path)

    def _drop_empty_folders(self, removed: list[str]) -> None:
        """Delete the Hive folders that held only old files."""
        for name in removed:
            for parent in Path(name).parents:
                with suppress(OSError):  # not empty, or gone already
                    if str(parent) != ".":
                        os.rmdir(os.path.join(self.folder.path, parent))


def _force_to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
