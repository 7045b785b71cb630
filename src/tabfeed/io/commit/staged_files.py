"""Files of a dataset that is being written, before they get their final names.

Each process that writes some of the files, on this machine or another, uses a folder of its own
with a random name inside the staging folder. A file that a killed writer left there never becomes
part of the dataset: only those that a returned `StagedFiles` names do.
"""

from __future__ import annotations

import posixpath
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tabfeed.errors import ArgumentError, TabfeedError, WriteError
from tabfeed.io.commit.manifest import Entry
from tabfeed.io.storage.paths import RemotePath
from tabfeed.io.storage.retry import reason, remedy

__all__ = ["StagedFiles"]


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
