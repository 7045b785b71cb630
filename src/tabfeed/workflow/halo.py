"""The rows around a partition, for operators that look at the rows before and after a row.

Partitions are cut where it suits reading; what a difference to the row before is must not
depend on that. So where an operator looks further than its own row, each partition is computed
together with the few rows that lie before and behind it, and those are cut off again. What was
read last is remembered, so that going through a dataset in order reads nearly nothing twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.io import Dataset
from tabfeed.io.align import cast_table
from tabfeed.workflow.compiled import CompiledGraph, Inner

__all__ = ["Halo", "WithHalo", "need_halo"]

_REMEMBERED = 8


def need_halo(program: CompiledGraph, dataset: Dataset) -> bool:
    """Whether a partition needs rows around it, for a graph that looks beyond single rows."""
    if dataset.npartitions <= 1:
        return False
    for node in program.nodes:
        if node.op.reach != (0, 0) and node.rows is not None:
            raise OperatorError(
                f"{node!r} looks at neighbouring rows, and {node.rows.op.label} before it drops, "
                "adds or moves rows, so across partitions the neighbours are not known. Write "
                f"the result of {node.rows.op.label} first, or read the data as one partition"
            )
    if not dataset.table.keeps_rows:
        raise OperatorError(
            "an operator looks at neighbouring rows, and a map on the dataset drops, adds or "
            "moves rows; write the mapped dataset first"
        )
    return True


class Halo:
    """Adds the rows around a partition to it.

    Parameters
    ----------
    dataset
        Where the rows are.
    columns
        The columns that are needed.
    reach
        How many rows before, and how many after.
    """

    def __init__(self, dataset: Dataset, columns: Sequence[str], reach: tuple[int, int]) -> None:
        self.dataset, self.columns = dataset, list(columns)
        self.before, self.after = reach
        self._known: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(self.dataset.partition_lens, initial=0))

    def around(self, table: pa.Table, first: int) -> tuple[pa.Table, Inner]:
        """The table with the rows around it, and which rows of the result are its own."""
        end, rows = first + table.num_rows, self._starts[-1]
        self._remember(table, first)
        head = self._rows(max(0, first - self.before), first, table.schema)
        tail = self._rows(end, min(rows, end + self.after), table.schema)
        whole = pa.concat_tables([*head, table, *tail])
        return whole, Inner(sum(t.num_rows for t in head), table.num_rows)

    def _remember(self, table: pa.Table, first: int) -> None:
        """Keep the edges of a partition, which the partitions beside it will need."""
        for low, high in (
            (max(0, table.num_rows - self.before), table.num_rows),
            (0, min(self.after, table.num_rows)),
        ):
            if low < high:  # a copy, so that the partition itself can go
                edge = table.take(pa.array(range(low, high)))
                self._known[first + low, first + high] = edge
        while len(self._known) > _REMEMBERED:
            try:
                self._known.popitem(last=False)
            except KeyError:  # another thread was faster
                break

    def _rows(self, start: int, stop: int, schema: pa.Schema) -> list[pa.Table]:
        """Rows of the dataset by number."""
        found: list[pa.Table] = []
        while start < stop:
            known = self._known.get((start, stop))
            if known is not None:
                return [*found, cast_table(known, schema)]
            number = bisect_right(self._starts, start) - 1
            part = self.dataset.read(number, self.columns)
            low = start - self._starts[number]
            piece = part.slice(low, min(stop - start, part.num_rows - low))
            found.append(cast_table(piece, schema))
            start += piece.num_rows
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": OrderedDict()}


class WithHalo:
    """A program as a numbered function of a partition, which looks beyond it."""

    def __init__(self, program: CompiledGraph, dataset: Dataset, *, training: bool) -> None:
        self.program, self.training = program, training
        self.halo = Halo(dataset, program.columns, program.reach)

    def __call__(self, table: pa.Table, first: int) -> pa.Table:
        """The result for the partition that starts with row number `first`."""
        if not table.num_rows:
            return self.program(table)
        whole, inner = self.halo.around(table, first)
        offset = first - inner.start
        return self.program(whole, offset, training=self.training, inner=inner)
