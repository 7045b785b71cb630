"""What a pass learned, cut into merge groups and put together again."""

from __future__ import annotations

import pyarrow as pa

from tabfeed import ops
from tabfeed.ops.base import Inputs
from tabfeed.ops.state.counting import Counter
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.schema import Schema
from tabfeed.workflow.fit import MergeGroups


def test_groups_that_come_in_any_order_make_the_same_result() -> None:
    names = ("a", "b", "c")
    table = pa.table({n: [n, n, "x"] for n in names})
    memory = MemoryManager()
    groups = tuple((n,) for n in names)
    inputs = Inputs(Schema.from_arrow(table.schema), names, groups, memory=memory)
    node = list(names) >> ops.Categorify()
    found = MergeGroups([(node, inputs)], memory)
    assert found.groups[1:] == [f"fit/Categorify/{n}" for n in names]
    parts = list(enumerate(found.split([3, [node.op.partial(table, inputs)]])))
    for order in (parts, parts[::-1], [parts[3], parts[0], parts[1], parts[2]]):
        rows, (counts,) = found.assemble(order)
        assert rows == 3
        assert tuple(counts) == names
        assert all(isinstance(c, Counter) and c.distinct() == 2 for c in counts.values())
