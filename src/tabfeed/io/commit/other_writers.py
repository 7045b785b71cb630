"""Find out who else is writing a folder: the heartbeat of each writer, and who is dead.

Where no lock keeps others out, a writer has ``_tabfeed_writing/ID/writer.json`` while it works.
This heartbeat says which process that is and which files it adds and removes, and is renewed every
minute. A writer is dead if its process is gone, which only the same machine can see, or if its
heartbeat is a quarter of an hour old. A writer that was taken for dead, because its machine slept,
finds its heartbeat gone and gives up.
"""

from __future__ import annotations

import json
import os
import posixpath
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from tabfeed.errors import UnfinishedDatasetError, UnreadableFileError
from tabfeed.io.commit.manifest import STAGING, Journal, parse_journal, read_now
from tabfeed.io.commit.object_store import Objects
from tabfeed.io.storage.paths import RemotePath

__all__ = ["Heartbeat", "OtherWriter", "find_writers", "new_writer", "staged_files"]

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
