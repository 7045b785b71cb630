"""`rewrite`: the same rows in files that a loader reads fast.

All files get the same number of rows, give or take a row group. Rows stream through in partitions
of one row group, so memory is bounded by a few of them and by the limit of a full shuffle. The new
folder appears only once complete. A sample predicts the gain before writing; afterwards the new
files are measured against the old ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tabfeed.display import count, megabytes, rate
from tabfeed.doctor.examine import LAYOUTS, Layout, Subject, read_in_turn, try_out
from tabfeed.doctor.files import Source, is_local, open_parquet_files
from tabfeed.doctor.report import Cost, Forecast
from tabfeed.doctor.rules import good_group_rows
from tabfeed.errors import ArgumentError, BadFileError, WriteError
from tabfeed.io.commit.commit import Commit
from tabfeed.io.dataset import Dataset
from tabfeed.io.storage.files import RemotePath, path_of

_GROUPS_PER_FILE = 8


@dataclass(frozen=True)
class RewriteOptions:
    """How to write.

    Parameters
    ----------
    layout
        "fast" for plain, uncompressed pages; "compact" for small files.
    row_group_rows
        Maximum rows in a row group; by default about 64 MiB of them, a million at most.
    rows_per_file
        About how many rows a file has; eight row groups by default.
    shuffle
        None to keep the order, or "per_partition", "per_worker" or "full".
    seed
        Of the shuffle.
    memory_limit
        How much memory a full shuffle may use; by default a quarter of what is free.
    """

    layout: Layout = "fast"
    row_group_rows: int | None = None
    rows_per_file: int | None = None
    shuffle: str | None = None
    seed: int = 0
    memory_limit: int | float | str | None = None

    def __post_init__(self) -> None:
        for name in ("row_group_rows", "rows_per_file"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ArgumentError(f"{name} is {value}; it must be 1 or more")
        if self.layout not in LAYOUTS:
            raise ArgumentError(f'layout is {self.layout!r}; it must be "fast" or "compact"')


@dataclass(frozen=True)
class Rewritten:
    """The new files, and the gain.

    Attributes
    ----------
    dataset
        The new files.
    stored, stored_before
        Bytes of the new files and of the old ones.
    forecast
        The prediction from a sample.
    measured
        How many times as fast the new files are read; None unless old and new files are local.
    rows_per_second
        Reading speed of the old files.
    """

    dataset: Dataset
    stored: int
    stored_before: int
    forecast: Forecast
    measured: Cost | None
    rows_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "rows": self.dataset.num_rows,
            "files": len(self.dataset.files),
            "bytes": self.stored,
            "bytes_before": self.stored_before,
            "predicted_gain": self.forecast.gain.ratio,
            "measured_gain": None if self.measured is None else self.measured.ratio,
            "predicted_size": self.forecast.size,
            "measured_size": self.stored / self.stored_before,
            "rows_per_second_before": self.rows_per_second,
        }

    def __str__(self) -> str:
        found = self.measured
        gained = "nothing: files not local" if found is None else f"{found.ratio:.2f} times"
        now = "" if found is None else f", {rate(self.rows_per_second * found.ratio)}"
        return (
            f"{count(self.dataset.num_rows)} rows in {count(len(self.dataset.files))} files\n"
            f"speed: predicted {self.forecast.gain.ratio:.2f} times, measured {gained}{now}\n"
            f"size: predicted {self.forecast.size:.2f} times, measured "
            f"{self.stored / self.stored_before:.2f} times, {megabytes(self.stored)}"
        )


def rewrite(
    data: Source,
    out: str | os.PathLike[str],
    options: RewriteOptions | None = None,
    *,
    overwrite: bool = False,
    skip_bad: bool = False,
    seconds: float = 3.0,
    storage_options: Mapping[str, Any] | None = None,
) -> Rewritten:
    """Write Parquet files again so that a loader reads them fast, and measure the gain.

    Parameters
    ----------
    data
        A path, a list of paths, a glob, a folder, a URL, or a `Dataset`.
    out
        The folder to write; must not hold a dataset unless `overwrite` is True.
    options
        How to write; plain pages, the order kept, by default.
    overwrite
        Replace an existing dataset.
    skip_bad
        Leave out files that can't be opened.
    seconds
        About how long to measure, once before and once after.
    storage_options
        For URLs, passed to the filesystem.

    Examples
    --------
    >>> import tempfile
    >>> from tabfeed import Dataset
    >>> old, new = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> _ = Dataset({"x": list(range(1000))}).to_parquet(old)
    >>> written = rewrite(old, new, RewriteOptions(rows_per_file=250), seconds=0.1)
    >>> len(written.dataset.files), written.dataset.to_arrow()["x"].to_pylist()[:3]
    (4, [0, 1, 2])
    """
    chosen = options or RewriteOptions()
    Commit(out, overwrite=overwrite, storage_options=storage_options).check()
    dataset, bad = open_parquet_files(data, storage_options)
    _refuse_bad(bad, skip=skip_bad)
    if not dataset.num_rows:
        raise ArgumentError("the data has no rows")
    old = Subject.of(dataset)
    before = try_out(
        old, seconds, layouts=[chosen.layout], group_rows=chosen.row_group_rows, ask=False
    )
    forecast = before.forecasts[0]
    _refuse_full_disk(path_of(out, storage_options), int(forecast.size * old.facts.stored))
    written = _write(old, out, chosen, overwrite=overwrite, storage_options=storage_options)
    new = Subject.of(written)
    return Rewritten(
        dataset=written,
        stored=new.facts.stored,
        stored_before=old.facts.stored,
        forecast=forecast,
        measured=_measure(old, new, seconds),
        rows_per_second=before.rows_per_second,
    )


def _write(
    old: Subject,
    out: str | os.PathLike[str],
    options: RewriteOptions,
    *,
    overwrite: bool,
    storage_options: Mapping[str, Any] | None,
) -> Dataset:
    rows = old.facts.rows
    group_rows = options.row_group_rows or good_group_rows(old.facts)
    if options.rows_per_file is not None:
        group_rows = min(group_rows, options.rows_per_file)
    groups = -(-rows // group_rows)
    files = -(-rows // (options.rows_per_file or _GROUPS_PER_FILE * group_rows))
    return old.dataset.repartition(npartitions=max(groups, files)).to_parquet(
        out,
        shuffle=options.shuffle,
        seed=options.seed,
        output_files=files,
        row_group_size=group_rows,
        layout=options.layout,
        overwrite=overwrite,
        memory_limit=options.memory_limit,
        storage_options=storage_options,
    )


def _measure(old: Subject, new: Subject, seconds: float) -> Cost | None:
    """Read the old and new files in turn; None unless all are local."""
    if not is_local(old.dataset) or not is_local(new.dataset):
        return None
    variants = {"old": old.sample.dataset, "new": new.sample.dataset}
    few = [name for name, s in (("old", old), ("new", new)) if s.sample.few]
    return read_in_turn(variants, old.facts, seconds, short=few).cost("old", "new")


# -- as text ---------------------------------------------------------------------------------------


def show_rewritten(written: Rewritten, out: str, seconds: float, console: Console) -> None:
    """Print what rewriting gained: predicted and measured side by side."""
    rows, files = written.dataset.num_rows, len(written.dataset.files)
    console.print(Text(f"{out}: {count(rows)} rows in {count(files)} files, in {seconds:.1f} s"))
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("", "before", "predicted", "measured"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    gain, found, before = written.forecast.gain.ratio, written.measured, written.rows_per_second
    table.add_row("speed", "1.00", f"{gain:.2f}", "" if found is None else f"{found.ratio:.2f}")
    measured = "files not local" if found is None else rate(before * found.ratio)
    table.add_row("rows per second", rate(before), rate(before * gain), measured)
    predicted = written.forecast.size * written.stored_before
    sizes = (written.stored_before, predicted, written.stored)
    table.add_row("size", *(megabytes(size) for size in sizes))
    console.print(table)


# -- checks before any work ------------------------------------------------------------------------


def _refuse_bad(bad: list[str], *, skip: bool) -> None:
    if bad and not skip:
        raise BadFileError(
            f"{bad[0]} ({len(bad)} such files). Leave them out with skip_bad=True, on the command "
            "line --skip-bad",
            file=bad[0],
        )


def _refuse_full_disk(out: RemotePath, needed: int) -> None:
    if not out.local:
        return
    folder = Path(out.path)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise WriteError(
            f"{out.name} needs about {megabytes(needed)}, and {megabytes(free)} are free: "
            'free some space, choose another folder, or layout="compact"'
        )
