"""Write a folder of files so that a reader sees all of them or none.

Each writer puts the files of a new dataset into a folder of its own inside ``_tabfeed_writing/``.

On a local disk a lock keeps a second writer out. Once all files are whole, a journal
``_tabfeed_commit.json`` is put down, the old files leave, the new ones get their names, the
manifest ``_tabfeed.json`` comes last, and the journal goes. Killed before the journal, the folder
still is what it was. Killed after it, the folder says so, `check_finished` refuses it, and writing
again completes it.

An object store has neither locks nor renames. There the new files get names that bear their
writer's mark, so that no two writers ever put the same object, and then the manifest is replaced in
one conditional request: only if it still is the one that this writer found when it began. Readers
take the list of files from the manifest, so that is the moment when the dataset changes. The old
files are deleted after it. See `tabfeed.io.commit.conditional` for stores without such requests.

Contents are not forced to disk one by one: after a power cut a file may be short, which
the sizes in the manifest and the format's own footer reveal when it is opened. Forcing
each file costs seconds per GB and buys only a later discovery. What changes no size, `validate`
finds: the manifest has a CRC-32 of each file, and the ETag of each object.

Only files that belong to a dataset are ever deleted: those the old manifest or journal names, and
the usual companions of Parquet files. Where there is no manifest, those are the Parquet files on
top and in ``key=value`` folders. Anything else a user keeps in the folder stays, and so does what
lies in a folder that is a link.
"""

from __future__ import annotations

import json
import os
import posixpath
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow.fs as pafs

from tabfeed.errors import (
    ArgumentError,
    DatasetExistsError,
    TabfeedWarning,
    UnfinishedDatasetError,
    WriteError,
)
from tabfeed.execute import LocalExecutor
from tabfeed.io.commit.conditional import LOCK, Objects, objects_of
from tabfeed.io.commit.manifest import (
    JOURNAL,
    MANIFEST,
    STAGING,
    Journal,
    Manifest,
    in_plain_reading,
    is_data,
    marked,
    read_journal,
    read_manifest,
    writer_of,
)
from tabfeed.io.commit.other_writers import Found, Sign, new_writer, signs, staged_files
from tabfeed.io.commit.staged_files import StagedFiles
from tabfeed.io.storage.paths import RemotePath, path_of
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.io.storage.temporary import FolderLock
from tabfeed.schema import Schema

__all__ = ["Commit"]

_COMPANIONS = {
    "_metadata",
    "_common_metadata",
    "_SUCCESS",
    "_file_list.txt",
    "_metadata.json",
    "schema.pbtxt",
    ".merlin/schema.json",
}
_COPIES = 8  # at a time, within a store


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
        self._sign = Sign(folder, self.writer)
        self._objects: Objects | None = None
        self._base: tuple[str, str] | None = None
        self._made = self._interrupted = False
        self._dead: list[Found] = []
        self._at_work: set[str] = set()

    def check(self) -> None:
        """Refuse at once what entering would refuse; changes nothing."""
        self._refuse_a_file()
        self._interrupted = self.folder.child(JOURNAL).exists
        self._refuse_to_overwrite()

    # -- the three steps ------------------------------------------------------------

    def __enter__(self) -> Commit:
        with self.writing():
            self._refuse_a_file()
            if self.folder.local:
                self._made = not self.folder.exists
                os.makedirs(self.folder.path, exist_ok=True)
                self._lock.take()
            else:
                self._sign.objects = self._objects = objects_of(self.folder, self.writer)
            try:
                if self._objects is not None:
                    self._base = self._objects.read(MANIFEST)
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
        if not self._lock.held:
            self._sign.put_up()
            self._clear_after_the_dead()

    def _end(self) -> None:
        self._sign.take_down()
        self._lock.release()

    def adopt(self, staged: StagedFiles) -> None:
        """Make files that were written in a folder of their own part of the dataset."""
        for name in sorted(staged.names):
            if name in self._files:
                raise ArgumentError(f"two files of the dataset have the name {name!r}")
            self._files.add(name)
            self._adopted[name] = staged.staging.child(name)
        self.rows.update(staged.rows)
        self.sums.update(staged.sums)

    def _lies_at(self, name: str) -> RemotePath:
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
            if error is not None:
                self._give_up()
            elif self._objects is None:
                self._publish()
            else:
                self._publish_objects(self._objects)
        finally:
            self._end()

    # -- publishing on a local disk -------------------------------------------------

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
                f"and some new, so it will not open. {remedy(e, writing=True)}, then run it again "
                "to complete it"
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

    def _refuse_obstacles(self, new: list[str], old: list[str], foreign: set[str]) -> None:
        """A file of the user's in the way of a new one: its name, its folder, or a folder."""
        infos = self.folder.filesystem.get_file_info([self.folder.child(n).path for n in new])
        leaving = {str(p) for n in old for p in Path(n).parents}
        staying = {str(p) for n in foreign for p in Path(n).parents}
        replaced = set(self._dataset_files(sorted(foreign & set(new))))
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

    def _put(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a small file under its final name in one step, and force it to disk."""
        temporary, final = self.staging.child(name), self.folder.child(name)
        with temporary.filesystem.open_output_stream(temporary.path, compression=None) as sink:
            sink.write(_as_text(content).encode())
        _force_to_disk(temporary.path)
        temporary.filesystem.move(temporary.path, final.path)
        _force_to_disk(self.folder.path)

    # -- publishing in an object store ----------------------------------------------

    def _publish_objects(self, objects: Objects) -> None:
        names = {n: marked(n, self.writer) for n in self.files}
        text = ""
        try:
            with self.writing():
                old = self._dataset_files(self._files_there())
                if self._interrupted:
                    old.append(JOURNAL)
                self._refuse_if_taken_for_dead()
                removing = tuple(n for n in old if n != JOURNAL)
                self._sign.say(Journal(tuple(names.values()), removing))
                self._copy(objects, names)
                self._refuse_if_taken_for_dead()
                etags = objects.etags(list(names.values()))
                text = _as_text(self._manifest(list(names), names, etags))
                won = self._swap(objects, text)
        except _Unknown as e:
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
        self._clear_after_publishing(objects, old)

    def _copy(self, objects: Objects, names: Mapping[str, str]) -> None:
        """Give the files their names, a few at a time."""
        root = self.folder.path.rstrip("/") + "/"

        def copy(name: str) -> None:
            source = self._lies_at(name).path.removeprefix(root)
            objects.copy(source, names[name], self.sums[name][0])

        for _ in LocalExecutor(threads=_COPIES).map(list(names), copy):
            pass

    def _swap(self, objects: Objects, text: str) -> bool:
        """Replace the manifest if it is the one found at the beginning; find out if that worked."""
        try:
            return objects.swap(
                MANIFEST, text, None if self._base is None else self._base[1], self._ended
            )
        except OSError as e:
            try:
                now = objects.read(MANIFEST)
            except OSError:
                raise _Unknown(
                    f"could not publish {self.folder.name}: {reason(e)}; the store does not say "
                    "whether it has the new manifest. Once it answers, open the folder: it "
                    "is the old dataset or the new one, whole; to be sure, run it again"
                ) from e
            if now is not None and now[0] == text:
                return True
            raise

    def _refuse_if_taken_for_dead(self) -> None:
        if self._sign.gone:
            raise WriteError(
                f"another writer of {self.folder.name} took this one for dead, since it had not "
                "been heard of for a quarter of an hour, and removed its files; run it again"
            )

    def _clear_after_publishing(self, objects: Objects, old: list[str]) -> None:
        """The dataset is published: an error now costs room in the store, and nothing else."""
        try:
            objects.delete(old)
            for sign in self._dead:
                self._bury(objects, sign)
            objects.clear(posixpath.join(STAGING, self.writer))
        except OSError as e:
            warnings.warn(
                f"{self.folder.name} is written, but not all files that it replaces could be "
                f"deleted: {reason(e)}. Readers pass over them; the next writer removes them",
                TabfeedWarning,
                stacklevel=4,
            )

    # -- cleaning up ----------------------------------------------------------------

    def _give_up(self) -> None:
        """Leave the folder as it was found."""
        with suppress(OSError):
            if self._objects is not None:
                self._objects.delete([marked(n, self.writer) for n in self._files])
                self._objects.clear(posixpath.join(STAGING, self.writer))
                return
            if not self._interrupted and self.folder.child(JOURNAL).exists:
                self.folder.filesystem.delete_file(self.folder.child(JOURNAL).path)
            self._clear_staging()
            if self._made:
                os.rmdir(self.folder.path)

    def _clear_staging(self) -> None:
        """Remove the staging folder: all of it if nobody else can be at work, else our own part."""
        mine = self.folder.child(STAGING) if self._lock.held else self.staging
        if mine.exists:
            mine.filesystem.delete_dir(mine.path)
        if not self._lock.held:
            with suppress(OSError):  # somebody else's files are in it
                os.rmdir(self.folder.child(STAGING).path)

    def _clear_after_the_dead(self) -> None:
        """Remove what dead writers left: their unfinished uploads now, their files once published.

        A request of a dead writer may still be on its way, and one that was taken for dead may
        wake up. Were its files deleted before the manifest has changed, it could yet publish them.
        """
        names = staged_files(self.folder)
        found = [s for s in signs(self.folder, names) if s.writer != self.writer]
        if self._objects is None:
            for sign in found:
                if sign.dead:
                    place = self.folder.child(STAGING, sign.writer)
                    place.filesystem.delete_dir(place.path)
            return
        strays = [n for n in names if "/" not in n and n != LOCK]  # of an older tabfeed
        self._objects.delete([posixpath.join(STAGING, n) for n in strays])
        self._dead = [sign for sign in found if sign.dead]
        living = {s.writer for s in found if not s.dead} | {self.writer}
        self._objects.end_uploads(
            lambda name: (
                (owner := _upload_of(name)) is not None
                and owner not in living
                and self._ended(owner)
            )
        )

    def _bury(self, objects: Objects, sign: Found) -> None:
        """Delete what a dead writer wrote and replaced, but for what the manifest names now."""
        with suppress(UnfinishedDatasetError):  # a damaged manifest does not say what to keep
            manifest = read_manifest(self.folder)
            leaving = [n for n in sign.journal.writing if writer_of(n) == sign.writer]
            if manifest is not None:
                leaving += sign.journal.removing
            kept = set(manifest.names) if manifest is not None else set()
            objects.delete([n for n in dict.fromkeys(leaving) if n not in kept])
        objects.clear(posixpath.join(STAGING, sign.writer))

    def _ended(self, writer: str) -> bool:
        """Whether a writer has ended, as far as anybody can tell."""
        found = signs(self.folder, [f"{writer}/"])
        return writer != self.writer and all(s.dead for s in found)

    # -- what is there already ------------------------------------------------------

    def _manifest(
        self,
        names: list[str],
        final: Mapping[str, str] | None = None,
        etags: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        final, etags = final or {n: n for n in names}, etags or {}
        files: list[dict[str, Any]] = []
        for name in names:
            nbytes, crc32 = self.sums[name]
            entry = {"name": final[name], "bytes": nbytes, "crc32": f"{crc32:08x}"}
            if name in self.rows:
                entry["rows"] = self.rows[name]
            if final[name] in etags:
                entry["etag"] = etags[final[name]]
            files.append(entry)
        schema = None if self.schema is None else json.loads(self.schema.to_json())
        notes = {} if self._objects is None else {"writer": self.writer}
        if etags:
            notes["folder"] = self.folder.path
        return {"tabfeed_dataset": 1, **notes, "files": files, "schema": schema}

    def _refuse_a_file(self) -> None:
        if self.folder.info().type == pafs.FileType.File:
            raise DatasetExistsError(
                f"{self.folder.name} is a file; a dataset is written into a folder"
            )

    def _refuse_to_overwrite(self) -> None:
        names = self._files_there() if self.folder.local else None
        if self.overwrite or (self._interrupted and read_journal(self.folder)):
            return
        there = self._dataset_files(self._files_there() if names is None else names)
        data = [n for n in there if n not in _COMPANIONS]
        if not data and not self.folder.child(MANIFEST).exists:
            return
        those = f"its {len(data)} files, such as {min(data)}" if data else "it"
        raise DatasetExistsError(
            f"{self.folder.name} already holds a dataset; write elsewhere, or pass "
            f"overwrite=True to replace {those}. Other files and subfolders stay"
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
        staged = [n.split("/") for n in names if n.startswith(STAGING + "/")]
        self._at_work = {parts[1] for parts in staged if len(parts) > 2}
        names = [n for n in names if n not in ours and not n.startswith(STAGING + "/")]
        return self._without_linked(names) if self.folder.local else names

    def _without_linked(self, names: list[str]) -> list[str]:
        """The names, with a linked folder in place of all in it, which lies elsewhere and stays."""

        @cache
        def topmost_link(folder: str) -> str:
            found = topmost_link(posixpath.dirname(folder)) if folder else ""
            return found or (folder if os.path.islink(self.folder.child(folder).path) else "")

        found = dict.fromkeys(topmost_link(posixpath.dirname(n)) or n for n in names)
        for name in found.keys() - set(names):
            if in_plain_reading(f"{name}/file"):
                raise WriteError(
                    f"{self.folder.child(name).name} is a link to a folder of data, which would be "
                    "part of the new dataset and is not deleted, since it lies elsewhere; remove "
                    "the link, then run it again. Nothing was changed"
                )
        return list(found)

    def _dataset_files(self, names: list[str]) -> list[str]:
        """Those of `names` that belong to the dataset that is there now."""
        noted = self._noted()
        listed = _COMPANIONS if noted is None else _COMPANIONS | noted
        if noted is None:
            others = tuple(n.removesuffix(MANIFEST) for n in names if n.endswith(f"/{MANIFEST}"))
            data = {n for n in names if is_data(n) and writer_of(n) not in self._at_work}
            return [n for n in names if n in listed or (n in data and not n.startswith(others))]
        return [n for n in names if n in listed]

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

    def _drop_empty_folders(self, removed: list[str]) -> None:
        """Hive folders that held only old files go with them."""
        for name in removed:
            for parent in Path(name).parents:
                with suppress(OSError):  # not empty, or gone already
                    if str(parent) != ".":
                        os.rmdir(os.path.join(self.folder.path, parent))


class _Unknown(Exception):
    """The store does not say whether the manifest was replaced."""


def _upload_of(name: str) -> str | None:
    """The writer who began to upload an object below the folder; None if it is not ours."""
    first, _, rest = name.partition("/")
    if first == STAGING:
        return rest.partition("/")[0]
    return writer_of(name) if in_plain_reading(name) else None


def _as_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1)


def _force_to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
