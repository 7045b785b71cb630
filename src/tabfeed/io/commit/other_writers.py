"""Who else is writing a folder: the sign that each writer puts up, and what the dead ones left.

Where no lock keeps others out, a writer has ``_tabfeed_writing/ID/writer.json`` while it works. It
says which process that is and which files it adds and removes, and is renewed every minute. A
writer is dead if its process is gone, which only the same machine can see, or if its sign is a
quarter of an hour old. A writer that was taken for dead, because its machine slept, finds its sign
gone and gives up.
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
from tabfeed.io.commit.conditional import Objects
from tabfeed.io.commit.manifest import STAGING, Journal, parse_journal, read_now
from tabfeed.io.storage.paths import RemotePath

__all__ = ["Found", "Sign", "new_writer", "signs", "staged_files"]

SIGN = "writer.json"
_RENEWED = 60.0
_LONGEST_SILENCE = 15 * 60.0

_here: set[str] = set()  # the writers of this process that have not ended


def new_writer() -> str:
    """A name nobody else has."""
    return uuid.uuid4().hex[:16]


class Sign:
    """Says in the folder that somebody writes it.

    Attributes
    ----------
    journal
        The files that this writer adds and removes, for whoever finds it dead.
    objects
        The store, if the folder is in one.
    """

    def __init__(self, folder: RemotePath, writer: str) -> None:
        self.journal = Journal()
        self.objects: Objects | None = None
        self._place, self._writer = folder.child(STAGING, writer, SIGN), writer
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put_up(self) -> None:
        """Write it, and renew it until it is taken down."""
        _here.add(self._writer)
        self._put()
        self._thread = threading.Thread(target=self._renew, name="tabfeed-writer", daemon=True)
        self._thread.start()

    def say(self, journal: Journal) -> None:
        """What this writer is about to change."""
        with self._lock:
            self.journal = journal
            self._put()

    def take_down(self) -> None:
        """Stop renewing it; the object itself goes with its folder."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        _here.discard(self._writer)

    @property
    def gone(self) -> bool:
        """Whether somebody took this writer for dead."""
        return not self._place.exists

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED):
            with suppress(OSError), self._lock:
                if not self.gone:
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
            self.objects.put(posixpath.join(STAGING, self._writer, SIGN), text)
            return
        Path(f"{self._place.path}.new").write_text(text)
        os.replace(f"{self._place.path}.new", self._place.path)


@dataclass(frozen=True)
class Found:
    """A writer's sign, or where it should be: what it was changing, and whether it is dead."""

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


def signs(folder: RemotePath, names: Iterable[str]) -> list[Found]:
    """The writers of which there are files; `names` is what `staged_files` found."""
    writers = sorted({n.partition("/")[0] for n in names if "/" in n})
    return [_look_at(folder, writer) for writer in writers]


def _look_at(folder: RemotePath, writer: str) -> Found:
    place = folder.child(STAGING, writer, SIGN)
    try:
        text = read_now(place)
        said = json.loads(text)
        dead, journal = _is_dead(writer, said), parse_journal(text, place.name)
    except FileNotFoundError:  # every writer begins with its sign
        return Found(writer, True, Journal())
    except UnreadableFileError:  # renewed as often as it is read
        return Found(writer, False, Journal())
    except (
        ValueError, TypeError, AttributeError, ArithmeticError, RecursionError,
        UnfinishedDatasetError,
    ):  # fmt: skip
        return Found(writer, True, Journal())
    return Found(writer, dead, journal)


def _is_dead(writer: str, said: dict[str, Any]) -> bool:
    machine, process = said.get("machine"), said.get("process")
    if machine and machine == _machine() and isinstance(process, int):
        if process == os.getpid():
            return writer not in _here
        return _started(process) != said.get("started")
    return bool(time.time() - float(said.get("renewed", 0)) > _LONGEST_SILENCE)


@lru_cache(maxsize=1)
def _machine() -> str:
    """What has these processes under these numbers; empty where the system does not say."""
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
