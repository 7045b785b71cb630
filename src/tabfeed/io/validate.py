"""Read a whole dataset once and say what is wrong with it, or slow about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tabfeed.errors import BadFileError, UnreadableFileError
from tabfeed.execute import LocalExecutor
from tabfeed.io.parquet import ParquetFile
from tabfeed.io.partition import Partition

if TYPE_CHECKING:
    from tabfeed.io.dataset import Dataset

__all__ = ["Report", "validate"]

_SMALL_GROUP = 10_000
_SMALL_FILE = 1_000_000
_LARGE_GROUP = 512 * 2**20


@dataclass(frozen=True)
class Report:
    """What reading every byte showed.

    Attributes
    ----------
    rows
        Rows that could be read.
    damaged
        What cannot be read, a sentence each.
    advice
        What is readable but slow, a sentence each.
    """

    rows: int
    damaged: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything can be read."""
        return not self.damaged

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        verdict = "can be read whole" if self.ok else f"{len(self.damaged)} places are damaged"
        lines = [f"{self.rows:,} rows; {verdict}"]
        lines += [f"  damaged: {d}" for d in self.damaged] + [f"  slow: {a}" for a in self.advice]
        return "\n".join(lines)


def validate(dataset: Dataset) -> Report:
    """See `Dataset.validate`."""

    def check(piece_number: int) -> tuple[int, str | None]:
        try:
            return dataset.read(Partition((pieces[piece_number],))).num_rows, None
        except (BadFileError, UnreadableFileError) as e:
            return 0, str(e)

    pieces = [p for part in dataset.partitions for p in part.pieces]
    results = list(LocalExecutor().map(range(len(pieces)), check))
    damaged = [problem for _, problem in results if problem is not None]
    left_out = [s.reason for s in dataset.skipped]
    return Report(
        rows=sum(rows for rows, _ in results),
        damaged=tuple(dict.fromkeys(damaged + left_out)),
        advice=tuple(_advice(dataset)),
    )


def _advice(dataset: Dataset) -> list[str]:
    """Remarks that a footer alone allows."""
    advice = []
    units = [
        u for u in dataset._files.units() if isinstance(dataset._files.files[u.file], ParquetFile)
    ]
    small = [u for u in units if (u.rows or 0) < _SMALL_GROUP]
    if len(units) > 1 and len(small) > len(units) // 2:
        advice.append(
            f"{len(small)} of {len(units)} row groups have fewer than {_SMALL_GROUP:,} rows; "
            "write it again with to_parquet, which makes them larger"
        )
    columns = dataset._source_columns
    large = [u for u in units if dataset._files.nbytes(u, columns) > _LARGE_GROUP]
    if large:
        advice.append(
            f"{len(large)} row groups take more than 512 MiB in memory and are read in slices; "
            "write it again with row_group_size=250_000"
        )
    files = [f for f in dataset._files.files if isinstance(f, ParquetFile)]
    tiny = [f for f in files if f.location.size < _SMALL_FILE]
    if len(tiny) > 100:
        advice.append(f"{len(tiny)} files are smaller than 1 MB; write fewer with output_files=")
    return advice
