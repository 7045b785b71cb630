"""Write a folder where no lock keeps others out: heartbeats, and publishing in object stores.

A writer has ``_tabfeed_writing/ID/writer.json`` while it works. This heartbeat says which process
that is and which files it adds and removes, and is renewed every minute. A writer is dead if its
process is gone, which only the same machine can see, or if its heartbeat is a quarter of an hour
old. A writer that was taken for dead, because its machine slept, finds its heartbeat gone and gives
up.

An object store has no renames either. The new files get names with their writer's mark, so that no
two writers ever put the same object, and then the manifest is replaced in one conditional request:
only if it still is the one that this writer found when it began. Readers take the list of files
from the manifest, so that is the moment when the dataset changes. The old files are deleted after
it. Stores without conditional requests are in `tabfeed.io.commit.object_store`.
"""

from __future__ import annotations

import json
import os
import posixpath
import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from tabfeed.errors import TabfeedWarning, UnfinishedDatasetError, UnreadableFileError, WriteError
from tabfeed.execute import LocalExecutor
from tabfeed.io.commit.manifest import (
    JOURNAL,
    MANIFEST,
    STAGING,
    Entry,
    Journal,
    Manifest,
    in_key_folders,
    marked,
    parse_journal,
    read_manifest,
    read_now,
    writer_of,
)
from tabfeed.io.commit.object_store import LOCK, Objects
from tabfeed.io.storage.files import RemotePath
from tabfeed.io.storage.retry import reason
from tabfeed.schema import Schema

__all__ = [
    "Heartbeat",
    "ObjectPublisher",
    "OtherWriter",
    "UnknownOutcome",
    "find_writers",
    "new_writer",
    "staged_files",
]

_NAME = "writer.json"
_RENEWED = 60.0
_LONGEST_SILENCE = 15 * 60.0

_here: set[str] = set()  # the writers of this process that have not ended


def new_writer() -> str:
    """A name that no other writer has."""
    return uuid.uuid4().hex[:16]


class Heartbeat:
    """A file that says that a writer is at work, renewed until it is stopped.

    Attributes
    ----------
    journal
        The files that this writer adds and removes; the next writer reads it if this one dies.
    objects
        The store, if the folder is in one.
    """

    def __init__(self, folder: RemotePath, writer: str) -> None:
        self.journal = Journal()
        self.objects: Objects | None = None
        self.writer = writer
        self._place = folder.child(STAGING, writer, _NAME)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write it, and renew it until it is stopped."""
        _here.add(self.writer)
        self._put()
        self._thread = threading.Thread(target=self._renew, name="tabfeed-writer", daemon=True)
        self._thread.start()

    def announce(self, journal: Journal) -> None:
        """Write down what this writer is about to change."""
        with self._lock:
            self.journal = journal
            self._put()

    def stop(self) -> None:
        """Stop renewing it; the file is deleted with its folder."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        _here.discard(self.writer)

    @property
    def lost(self) -> bool:
        """Whether another writer took this one for dead and deleted it."""
        return not self._place.exists

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED):
            with suppress(OSError), self._lock:
                if not self.lost:
                    self._put()

    def _put(self) -> None:
        said = {
            "machine": _machine(),
            "process": os.getpid(),
            "started": _started(os.getpid()),
            "renewed": time.time(),
            "writing": self.journal.writing,
            "removing": self.journal.removing,
        }
        text = json.dumps(said, indent=1)
        if self.objects is not None:
            self.objects.put(posixpath.join(STAGING, self.writer, _NAME), text)
            return
        Path(f"{self._place.path}.new").write_text(text)
        os.replace(f"{self._place.path}.new", self._place.path)


@dataclass(frozen=True)
class OtherWriter:
    """A writer with staged files: whether it is dead, and what it was changing."""

    writer: str
    dead: bool
    journal: Journal


def staged_files(folder: RemotePath) -> list[str]:
    """Everything in the staging folder, as names below it."""
    place = folder.child(STAGING)
    selector = pafs.FileSelector(place.path, recursive=True, allow_not_found=True)
    root = place.path.rstrip("/") + "/"
    infos = folder.filesystem.get_file_info(selector)
    return [i.path.removeprefix(root) for i in infos if i.type == pafs.FileType.File]


def find_writers(folder: RemotePath, names: Iterable[str]) -> list[OtherWriter]:
    """The writers that have staged files; `names` is the result of `staged_files`."""
    writers = sorted({n.partition("/")[0] for n in names if "/" in n})
    return [_read_heartbeat(folder, writer) for writer in writers]


def _read_heartbeat(folder: RemotePath, writer: str) -> OtherWriter:
    place = folder.child(STAGING, writer, _NAME)
    try:
        text = read_now(place)
        said = json.loads(text)
        dead, journal = _is_dead(writer, said), parse_journal(text, place.name)
    except FileNotFoundError:  # every writer begins with its heartbeat
        return OtherWriter(writer, True, Journal())
    except UnreadableFileError:  # renewed as often as it is read
        return OtherWriter(writer, False, Journal())
    except (
        ValueError, TypeError, AttributeError, ArithmeticError, RecursionError,
        UnfinishedDatasetError,
    ):  # fmt: skip
        return OtherWriter(writer, True, Journal())
    return OtherWriter(writer, dead, journal)


def _is_dead(writer: str, said: dict[str, Any]) -> bool:
    machine, process = said.get("machine"), said.get("process")
    if machine and machine == _machine() and isinstance(process, int):
        if process == os.getpid():
            return writer not in _here
        return _started(process) != said.get("started")
    return bool(time.time() - float(said.get("renewed", 0)) > _LONGEST_SILENCE)


@lru_cache(maxsize=1)
def _machine() -> str:
    """Tells this machine, or container, from others; empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> str | None:
    """When a process began, in the system's terms; None if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (OSError, OverflowError):
        return None
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]


# -- publishing in an object store ---------------------------------------------------------

_COPIES = 8  # at a time, within a store


class UnknownOutcome(Exception):
    """The store does not say whether the manifest was replaced."""


class ObjectPublisher:
    """Publishes the files of one writer.

    Parameters
    ----------
    folder
        Where the dataset will be.
    objects
        The objects below the folder.
    heartbeat
        The writer's own.

    Attributes
    ----------
    writer
        Who publishes.
    base
        The manifest found at the beginning, which publishing replaces, and its version; None if
        there was none.
    """

    def __init__(self, folder: RemotePath, objects: Objects, heartbeat: Heartbeat) -> None:
        self._folder, self._objects, self._heartbeat = folder, objects, heartbeat
        self.writer = heartbeat.writer
        self.base: tuple[str, str] | None = None
        self._dead: list[OtherWriter] = []
        heartbeat.objects = objects

    def begin(self) -> None:
        """Remember the manifest that is there now, which publishing replaces."""
        self.base = self._objects.read(MANIFEST)

    def clear_after_the_dead(self, staged: Sequence[str], others: Sequence[OtherWriter]) -> None:
        """End the unfinished uploads of dead writers; their files are deleted once published.

        A request of a dead writer may still be on its way, and one that was taken for dead may
        wake up. Were its files deleted before the manifest has changed, it could yet publish them.
        """
        strays = [n for n in staged if "/" not in n and n != LOCK]  # of an older tabfeed
        self._objects.delete([posixpath.join(STAGING, n) for n in strays])
        self._dead = [other for other in others if other.dead]
        living = {w.writer for w in others if not w.dead} | {self.writer}
        self._objects.end_uploads(
            lambda name: (
                (owner := _upload_of(name)) is not None
                and owner not in living
                and self._ended(owner)
            )
        )

    def publish(
        self, staged: Sequence[tuple[RemotePath, Entry]], old: Sequence[str], schema: Schema | None
    ) -> bool:
        """Copy the staged files to their final names and replace the manifest.

        Parameters
        ----------
        staged
            Where each file is, and what the manifest is to say of it, in reading order.
        old
            The names of the files that go.
        schema
            The dataset's schema.

        Returns
        -------
        bool
            False if another writer published first.
        """
        files = [replace(entry, name=marked(entry.name, self.writer)) for _, entry in staged]
        names = [f.name for f in files]
        self._refuse_if_taken_for_dead()
        removing = tuple(n for n in old if n != JOURNAL)
        self._heartbeat.announce(Journal(tuple(names), removing))
        root = self._folder.path.rstrip("/") + "/"

        def copy(number: int) -> None:
            source = staged[number][0].path.removeprefix(root)
            self._objects.copy(source, files[number].name, files[number].nbytes)

        for _ in LocalExecutor(threads=_COPIES).map(range(len(files)), copy):
            pass
        self._refuse_if_taken_for_dead()
        etags = self._objects.etags(names)
        files = [replace(f, etag=etags.get(f.name, "")) for f in files]
        folder = self._folder.path if etags else ""
        return self._replace_manifest(Manifest(tuple(files), schema, self.writer, folder).to_json())

    def _replace_manifest(self, text: str) -> bool:
        """Replace the manifest if it is the one found at the beginning; find out if that worked."""
        version = None if self.base is None else self.base[1]
        try:
            return self._objects.swap(MANIFEST, text, version, self._ended)
        except OSError as e:
            try:
                now = self._objects.read(MANIFEST)
            except OSError:
                raise UnknownOutcome(
                    f"could not publish {self._folder.name}: {reason(e)}; the store does not say "
                    "whether it has the new manifest. Once it answers, open the folder: it "
                    "is the old dataset or the new one, whole; to be sure, run it again"
                ) from e
            if now is not None and now[0] == text:
                return True
            raise

    def clear_after_publishing(self, old: Sequence[str]) -> None:
        """Delete what was replaced. An error now only costs space in the store."""
        try:
            self._objects.delete(old)
            for other in self._dead:
                self._delete_files_of(other)
            self._objects.clear(posixpath.join(STAGING, self.writer))
        except OSError as e:
            warnings.warn(
                f"{self._folder.name} is written, but not all files that it replaces could be "
                f"deleted: {reason(e)}. Readers pass over them; the next writer removes them",
                TabfeedWarning,
                stacklevel=4,
            )

    def withdraw(self, names: Iterable[str]) -> None:
        """Delete what this writer put: files with their final names, and staged ones."""
        self._objects.delete([marked(n, self.writer) for n in names])
        self._objects.clear(posixpath.join(STAGING, self.writer))

    def _refuse_if_taken_for_dead(self) -> None:
        if self._heartbeat.lost:
            raise WriteError(
                f"another writer of {self._folder.name} took this one for dead, since it had not "
                "been heard of for a quarter of an hour, and removed its files; run it again"
            )

    def _delete_files_of(self, dead: OtherWriter) -> None:
        """Delete what a dead writer wrote and replaced, but for what the manifest names now."""
        with suppress(UnfinishedDatasetError):  # a damaged manifest does not say what to keep
            manifest = read_manifest(self._folder)
            leaving = [n for n in dead.journal.writing if writer_of(n) == dead.writer]
            if manifest is not None:
                leaving += dead.journal.removing
            kept = set(manifest.names) if manifest is not None else set()
            self._objects.delete([n for n in dict.fromkeys(leaving) if n not in kept])
        self._objects.clear(posixpath.join(STAGING, dead.writer))

    def _ended(self, writer: str) -> bool:
        """Whether a writer has ended, as far as can be known."""
        found = find_writers(self._folder, [f"{writer}/"])
        return writer != self.writer and all(w.dead for w in found)


def _upload_of(name: str) -> str | None:
    """The writer who began to upload an object below the folder; None if it is not ours."""
    first, _, rest = name.partition("/")
    if first == STAGING:
        return rest.partition("/")[0]
    return writer_of(name) if in_key_folders(name) else None
