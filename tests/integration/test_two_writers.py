"""Two writers of one folder in an object store, one stopped at each of its requests in turn.

The store is in memory and replaces the manifest in one conditional request, as S3 does. A writer
stops in one of three ways: it is killed, it is killed and its last request arrives late, or it
sleeps so long that the other takes it for dead, and goes on. Meanwhile the other writes the same
folder to the end, or is killed at one of its requests. Each row carries its version, so that rows
of two versions, or too few, cannot pass for a dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import fsspec
import pytest

from tabfeed import Dataset
from tabfeed.errors import SourceNotFoundError, UnfinishedDatasetError, WriteError
from tabfeed.io.commit import commit, object_store, unlocked
from tabfeed.io.storage.files import RemotePath

URL = "memory://two_writers/data"
CHANGES = ("move", "copy_file", "delete_file", "create_dir", "delete_dir", "open_output_stream")
LOOKS = ("get_file_info", "open_input_stream")
ROWS = 6


class Killed(BaseException):
    """The end of a writer: no clean-up follows, since every further request is refused."""


class Wire:
    """Counts the requests of a writer, and stops it before one of them."""

    def __init__(self, last: int = 0, stop: Callable[..., None] | None = None) -> None:
        self.count, self.dead, self.writer = 0, False, ""
        self._last, self._stop = last, stop

    def send(self, request: Callable[[], Any]) -> Any:
        if self.dead:
            raise Killed
        self.count += 1
        if self.count == self._last:
            if self._stop is None:
                self.dead = True
            else:
                self._stop(self, request)
            if self.dead:
                raise Killed
        return request()


class Wired:
    """A filesystem, or the objects of a store, whose requests go over a wire."""

    def __init__(self, inner: Any, wire: Wire, names: tuple[str, ...]) -> None:
        self.inner, self.wire, self.names = inner, wire, names

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.inner, name)
        if name not in self.names:
            return call
        return lambda *args, **options: self.wire.send(lambda: call(*args, **options))


class Conditional(object_store._AnyStore):
    """Objects that are replaced in one conditional request."""

    def swap(self, name: str, text: str, version: str | None, dead: Any) -> bool:
        now = self.read(name)
        if (now and now[1]) != version:
            return False
        self.put(name, text)
        return True


class Writers:
    """Writes versions of the dataset, each over a wire of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._wire = Wire()
        path_of = commit.path_of

        def wired_place(*args: Any) -> RemotePath:
            place = path_of(*args)
            plain = object_store._unwrapped(
                place.filesystem
            )  # nothing fails here that passes by itself
            return replace(place, filesystem=Wired(plain, self._wire, CHANGES + LOOKS))

        def wired_objects(folder: RemotePath, writer: str) -> Any:
            folder.filesystem.wire.writer = writer
            plain = Conditional(replace(folder, filesystem=folder.filesystem.inner), writer)
            names = ("read", "put", "swap", "copy", "delete", "clear")
            return Wired(plain, folder.filesystem.wire, names)

        monkeypatch.setattr(commit, "path_of", wired_place)
        monkeypatch.setattr(commit, "objects_of", wired_objects)
        monkeypatch.setenv("TABFEED_THREADS", "1")

    def write(self, version: int, wire: Wire | None = None) -> str:
        """Write a version: "published", "refused" since another published, or "killed"."""
        self._wire = wire or Wire()
        try:
            Dataset({"i": list(range(ROWS)), "v": [version] * ROWS}, npartitions=2).to_parquet(
                URL, output_files=2, overwrite=True
            )
        except Killed:
            return "killed"
        except WriteError as e:
            assert "run it again" in str(e)
            return "refused"
        return "published"


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Writers]:
    yield Writers(monkeypatch)
    clear()


def clear() -> None:
    system = fsspec.filesystem("memory")
    if system.exists("/two_writers"):
        system.rm("/two_writers", recursive=True)


def look() -> int | None:
    """The one whole version that a reader finds; None if there is none, or it is refused."""
    try:
        table = Dataset(URL).to_arrow()
    except (UnfinishedDatasetError, SourceNotFoundError):
        return None
    assert sorted(table["i"].to_pylist()) == list(range(ROWS)), "rows are missing or too many"
    (version,) = set(table["v"].to_pylist())
    return int(version)


def left() -> list[str]:
    return sorted(p.rpartition("/data/")[2] for p in fsspec.filesystem("memory").find(URL))


def stops(both: Writers, old: bool, stride: int) -> range:
    """The requests before which a writer is stopped."""
    clear()
    if old:
        both.write(1)
    wire = Wire()
    assert both.write(2, wire) == "published"
    assert wire.count > 15
    return range(1, wire.count + 1, stride)


@pytest.mark.parametrize("old", [True, False], ids=["over a dataset", "into a new folder"])
@pytest.mark.parametrize("way", ["killed", "late", "asleep"])
def test_one_writer_stops_and_the_other_goes_on_or_is_killed(
    both: Writers, way: str, old: bool
) -> None:
    before = 1 if old else None
    for first in stops(both, old, 1):
        for second in (0, *stops(both, old, 6)):
            clear()
            if old:
                both.write(1)
            late: list[Callable[[], Any]] = []  # what a killed writer sent, and arrives later
            outcomes: dict[int, str] = {}

            def stop(
                wire: Wire,
                request: Callable[[], Any],
                second: int = second,
                late: list[Callable[[], Any]] = late,
                outcomes: dict[int, str] = outcomes,
            ) -> None:
                """At this request of the first writer."""
                if way == "asleep":
                    unlocked._here.discard(wire.writer)  # as if its sign were old
                    outcomes[3] = both.write(3, Wire(second))
                    assert look() in ((3,) if outcomes[3] == "published" else (before, 2, 3))
                    return
                late.append(request)
                wire.dead = True

            outcomes[2] = both.write(2, Wire(first, stop))
            if way != "asleep":
                outcomes[3] = both.write(3, Wire(second))
            where = f"first at {first}, second at {second}: {outcomes}"
            if way == "late":
                for request in late:
                    with suppress(OSError):  # what it was to change is gone
                        request()
            found = look()
            if outcomes[3] == "published" and outcomes[2] != "published":
                assert found == 3, where
            elif outcomes[2] == "published" and way == "asleep" and outcomes[3] != "published":
                assert found in (2, 3), where
            elif old:
                assert found is not None, where
            assert both.write(4) == "published", where
            assert look() == 4, where
            names = left()
            assert len([n for n in names if n.endswith(".parquet")]) == 2 or way == "late", names
            assert not [n for n in names if n.startswith("_tabfeed_writing")], where
