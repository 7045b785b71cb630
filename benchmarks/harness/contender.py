"""What a contender is, and the case it is given.

An adapter file in `benchmarks/peers` holds a tuple `CONTENDERS`. It imports what it stands for
inside its functions only, so that the harness can read all adapters wherever they are installed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Case", "Contender", "contender", "contenders"]

Epoch = Callable[[], Iterator[tuple[int, Any]]]
"""Goes over the data once: for each batch its rows, and the batch."""

Features = Callable[[], dict[str, float]]
"""Fits and transforms once: ``fit_s`` and ``transform_s``."""


@dataclass(frozen=True)
class Case:
    """One thing to measure: data, and how it is to be loaded.

    Parameters
    ----------
    folder
        Parquet files.
    rows
        How many rows they have; a contender that is too slow for all of them takes the first.
    cats, conts, labels, lists
        Columns.
    scratch
        A folder for what a contender makes of the files.
    batch
        Rows in a batch; 0 where features are made.
    endpoint
        Where an S3 server has the files, in a bucket called as the folder; "": they are on disk.
    epochs
        0: one pass of a contender that is ready counts. More: getting ready and so many passes.
    """

    folder: str
    rows: int
    scratch: str
    cats: tuple[str, ...] = ()
    conts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ("label",)
    lists: tuple[str, ...] = ()
    batch: int = 65_536
    shuffle: bool = True
    workers: int = 0
    endpoint: str = ""
    epochs: int = 0

    @property
    def place(self) -> str:
        """The folder, or the bucket's URL."""
        return f"s3://{Path(self.folder).name}" if self.endpoint else self.folder

    @property
    def files(self) -> list[str]:
        """Paths or URLs of the Parquet files, in order."""
        names = sorted(p.name for p in Path(self.folder).glob("*.parquet"))
        return [f"{self.place}/{name}" for name in names]

    @property
    def total(self) -> int:
        """Rows of all passes."""
        return self.rows * max(1, self.epochs)

    @property
    def columns(self) -> list[str]:
        """All columns."""
        return [*self.cats, *self.conts, *self.labels, *self.lists]

    def at_most(self, rows: int | None) -> Case:
        """The same with fewer rows, and no larger batches than that."""
        if rows is None or rows >= self.rows:
            return self
        return replace(self, rows=rows, batch=min(self.batch, rows))

    def to_json(self) -> dict[str, Any]:
        """For another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Case:
        """From another process."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


@dataclass(frozen=True)
class Contender:
    """One way to load, or to make features.

    Parameters
    ----------
    name
        Short and unique; what ``--only`` looks for.
    title
        What the page calls it.
    open
        From a case to what goes over the data once, or fits and transforms once.
    suites
        Where it takes part.
    modules
        Imported before anything is timed; the first is what it stands for, whose version counts.
    delivers
        What a batch is.
    shuffles
        How it shuffles; "" if it cannot.
    why
        Sentences on what makes it fast or slow.
    convert
        Makes its own files from the Parquet files, once; timed apart.
    most_rows
        More are not worth waiting for: the rate is known before. Of loading it does the first ones;
        features of more rows it does not make.
    limit
        Reads Parquet but delivers nothing: shows what is possible, is no peer.
    orders
        Whether it takes part shuffled (True), in order (False), or both.
    venv
        The environment it needs.
    peer
        Its adapter file; filled in when that is read.
    """

    name: str
    title: str
    open: Callable[[Case], Epoch] | Callable[[Case], Features]
    suites: tuple[str, ...]
    modules: tuple[str, ...]
    delivers: str = ""
    shuffles: str = ""
    why: str = ""
    convert: Callable[[Case], None] | None = None
    most_rows: int | None = None
    limit: bool = False
    orders: tuple[bool, ...] = (True, False)
    venv: str = "bench"
    peer: str = ""

    def takes(self, case: Case) -> bool:
        """Whether it can do what the case asks."""
        if case.batch == 0:  # features: nothing is shuffled, and all rows are to be seen
            return self.most_rows is None or case.rows <= self.most_rows
        return case.shuffle in self.orders and (bool(self.shuffles) or not case.shuffle)


@cache
def contenders(package: str = "benchmarks.peers") -> dict[str, Contender]:
    """All contenders by name, in the order of the adapter files."""
    found: dict[str, Contender] = {}
    folder = importlib.import_module(package)
    names = sorted(m.name for m in pkgutil.iter_modules(folder.__path__))
    for module in (name for name in names if not name.startswith("_")):
        for each in importlib.import_module(f"{package}.{module}").CONTENDERS:
            if each.name in found:
                raise ValueError(f"two contenders are called {each.name!r}")
            found[each.name] = replace(each, peer=module)
    return found


def contender(name: str, package: str = "benchmarks.peers") -> Contender:
    """One contender by its name."""
    return contenders(package)[name]
