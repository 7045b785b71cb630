"""`check_loader`: what every loader promises, checked on data whose rows carry a checksum.

The checks make small files of unequal size, load them in many ways, and compare with the rows
that are known to be there. They look at batches only through a function the caller gives, so
they serve any framework.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.io.dataset import Dataset
from tabfeed.trace import ListRecorder, recording

__all__ = ["check_loader", "make_rows", "write_rows"]

SIZES = (40, 7, 0, 23, 61, 1, 0)
_PATIENCE = 60.0


def make_rows(keys: Sequence[int], *, lists: bool = True) -> pa.Table:
    """Rows whose every column follows from their key.

    Columns: ``key`` (int64), ``check`` (int32), ``x`` (float32, also as a double in ``wide``),
    ``y`` (float32), and with `lists` ``words`` (lists of int64, some empty, some null).
    """
    key = np.asarray(keys, dtype=np.int64)
    columns: dict[str, Any] = {
        "key": key,
        "check": check_of(key),
        "x": (key * 0.5).astype(np.float32),
        "wide": key * 0.25,
        "y": (key % 3).astype(np.float32),
    }
    if lists:
        words = [words_of(k) if k % 5 else None for k in key.tolist()]
        columns["words"] = pa.array(words, pa.list_(pa.int64()))
    return pa.table(columns)


def check_of(key: Any) -> Any:
    """The checksum of a key."""
    return ((np.asarray(key, dtype=np.int64) * 2654435761) % 2_147_483_647).astype(np.int32)


def words_of(key: int) -> list[int]:
    """The list that belongs to a key; keys divisible by 5 have a null, which loads as empty."""
    return [] if key % 5 == 0 else [key * 10 + i for i in range(key % 4)]


def write_rows(
    folder: Path, sizes: Sequence[int] = SIZES, *, lists: bool = True, row_group: int = 32
) -> Dataset:
    """Rows numbered from 0 in one file a size, as a dataset."""
    start = 0
    for number, size in enumerate(sizes):
        table = make_rows(range(start, start + size), lists=lists)
        pq.write_table(table, folder / f"part_{number:03}.parquet", row_group_size=row_group)
        start += size
    return Dataset(str(folder))


@dataclass(frozen=True)
class _Suite:
    make: Callable[..., Any]
    read: Callable[[Any], Mapping[str, Any]]
    folder: Path

    def loader(self, sizes: Sequence[int] = SIZES, **options: Any) -> Any:
        return self.make(self.dataset(sizes), **options)

    def dataset(self, sizes: Sequence[int]) -> Dataset:
        folder = self.folder / "-".join(map(str, sizes))
        if not folder.exists():
            folder.mkdir()
            return write_rows(folder, sizes)
        return Dataset(str(folder))

    def keys(self, batches: Iterator[Any]) -> list[list[int]]:
        """The keys of each batch; fails if a row is not whole."""
        return [self.checked(self.read(batch)) for batch in batches]

    @staticmethod
    def checked(columns: Mapping[str, Any]) -> list[int]:
        key = np.asarray(columns["key"])
        expected = {"check": check_of(key), "x": key * 0.5, "y": key % 3}
        for name, values in expected.items():
            if name in columns:
                got = np.asarray(columns[name])
                assert np.array_equal(got, values), f"{name} is not that of its row: {got} {values}"
        if "words" in columns:
            words = [list(map(int, w)) for w in columns["words"]]
            assert words == [words_of(k) for k in key.tolist()], "lists are not those of their rows"
        return [int(k) for k in key]

    # -- the checks ---------------------------------------------------------------------

    def check_every_row_once(self) -> None:
        """Over all ranks every row comes exactly once, in equal steps, as many as `len` says."""
        for sizes, world, batch, shuffle in [
            (SIZES, 1, 10, False),
            (SIZES, 1, 10, True),
            (SIZES, 3, 7, True),
            (SIZES, 4, 5, False),
            ((50,), 4, 3, True),
            ((9, 0), 9, 1, True),
        ]:
            how: dict[str, Any] = {"batch_size": batch, "shuffle": shuffle, "global_size": world}
            ranks = []
            for rank in range(world):
                loader = self.loader(sizes, global_rank=rank, **how)
                ranks.append(self.keys(iter(loader)))
                assert len(loader) == len(ranks[-1]), "len() is not the number of batches"
            assert len({len(r) for r in ranks}) == 1, "ranks have unequal steps"
            seen = Counter(k for rank in ranks for batch_keys in rank for k in batch_keys)
            assert seen == Counter(range(sum(sizes))), "a row is missing or came twice"

    def check_drop_last(self) -> None:
        """With drop_last batches are full, and it ends."""
        for sizes, batch in [(SIZES, 10), ((100, 5), 100), (SIZES, sum(SIZES))]:
            got = self.keys(iter(self.loader(sizes, batch_size=batch, drop_last=True)))
            assert [len(b) for b in got] == [batch] * (sum(sizes) // batch)

    def check_order(self) -> None:
        """Order follows from the seed; epochs differ, rows and partitions are both reordered."""
        how: dict[str, Any] = {"batch_size": 10, "shuffle": True}
        threads = [self.loader(**how, threads=t, depth=d) for t, d in [(1, 1), (3, 5)]]
        orders = [[self.keys(iter(loader)) for _ in range(3)] for loader in threads]
        assert orders[0] == orders[1], "the order depends on the number of threads"
        first, second, third = orders[0]
        assert first != second != third, "an epoch repeats the order of the one before"
        starts = [b[0][0] for b in orders[0]]
        assert len(set(starts)) > 1, "epochs begin with the same row"
        other = self.keys(iter(self.loader(**how, seed=1)))
        assert other != first, "the seed changes nothing"
        assert first != [sorted(b) for b in first], "rows are not shuffled"
        in_order = self.keys(iter(self.loader(batch_size=10)))
        assert [k for b in in_order for k in b] == list(range(sum(SIZES)))

    def check_restore(self) -> None:
        """A state saved after any batch gives exactly the batches that were still to come."""
        for shuffle in (True, False):
            how: dict[str, Any] = {"batch_size": 13, "shuffle": shuffle}
            loader = self.loader(**how)
            expected = self.keys(iter(loader)) + self.keys(iter(loader))
            for stop in range(len(expected) + 1):
                loader = self.loader(**how)
                got = self._take(loader, stop)
                again = self.loader(**how)
                again.load_state_dict(loader.state_dict())
                while len(got) < len(expected):
                    got += self._take(again, len(expected) - len(got))
                assert got == expected, f"batches differ after a restore at {stop}"

    def _take(self, loader: Any, count: int) -> list[list[int]]:
        """Up to `count` batches, over epochs."""
        out: list[list[int]] = []
        while len(out) < count:
            for batch in loader:
                out.append(self.checked(self.read(batch)))
                if len(out) == count:
                    break
        return out

    def check_no_thread_is_left(self) -> None:
        """`break`, `close`, dropping the iterator and the end of an epoch all end the threads."""
        before = _threads()
        loader = self.loader(batch_size=3, shuffle=True)
        for _ in loader:
            break
        _wait_for(lambda: _threads() <= before, "break leaves a thread")
        batches = iter(loader)
        next(batches)
        loader.close()
        _wait_for(lambda: _threads() <= before, "close leaves a thread")
        list(loader)
        _wait_for(lambda: _threads() <= before, "the end of an epoch leaves a thread")

    def check_errors_arrive(self) -> None:
        """What a transform raises reaches the loop with its type, soon, and leaves no thread."""
        before = _threads()
        loader = self.loader(batch_size=10, transforms=_raise_late)
        start = time.monotonic()
        try:
            list(loader)
        except _Planned:
            pass
        else:
            raise AssertionError("an exception was swallowed")
        assert time.monotonic() - start < _PATIENCE, "the exception came late"
        _wait_for(lambda: _threads() <= before, "an exception leaves a thread")

    def check_work_is_in_the_background(self) -> None:
        """Reading, gathering and conversion happen on other threads than the caller's.

        Work of a GPU may be queued by the caller; it is then in a span "queue".
        """
        recorder = ListRecorder()
        with recording(recorder):
            list(self.loader(batch_size=10, shuffle=True))
        busy = {s.name for s in recorder.spans if s.thread == threading.current_thread().name}
        assert not busy & {"read", "convert", "gather", "finish"}, f"on the caller's thread: {busy}"
        seen = {s.name for s in recorder.spans}
        assert {"read", "gather", "finish"} <= seen or {"read", "queue"} <= seen

    def check_kept_batches(self) -> None:
        """Batches that are kept are never overwritten."""
        loader = self.loader(batch_size=4, shuffle=True)
        kept = [*loader, *loader, *loader]
        assert Counter(k for keys in self.keys(iter(kept)) for k in keys) == Counter(
            {k: 3 for k in range(sum(SIZES))}
        )


class _Planned(RuntimeError):
    """Raised on purpose."""


def _raise_late(table: pa.Table) -> pa.Table:
    if table.num_rows and table.column("key")[0].as_py() > 60:
        raise _Planned("on purpose")
    return table


def _threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("tabfeed")}


def _wait_for(condition: Callable[[], bool], message: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{message}: {sorted(_threads())}"
        time.sleep(0.01)


def check_loader(
    make: Callable[..., Any],
    read: Callable[[Any], Mapping[str, Any]],
    *,
    skip: Sequence[str] = (),
) -> None:
    """Check that a loader keeps the promises of all loaders.

    Parameters
    ----------
    make
        ``make(dataset, batch_size=..., ...)`` gives a loader. It must take ``shuffle``,
        ``global_size``, ``global_rank``, ``drop_last``, ``transforms``, ``seed``, ``threads`` and
        ``depth`` as well, and load the columns ``key``, ``check``, ``x``, ``y`` and ``words``
        as far as it can.
    read
        Turns a batch into a mapping from these names to NumPy arrays, ``words`` to a list of lists;
        ``key`` is needed, the others are checked where they are there.
    skip
        Names of checks to leave out.

    Raises
    ------
    AssertionError
        With the promise that is broken.
    """
    with tempfile.TemporaryDirectory() as folder:
        suite = _Suite(make, read, Path(folder))
        for name in sorted(dir(suite)):
            if name.startswith("check_") and name not in skip:
                getattr(suite, name)()
