"""What a pass learned, cut into slots and put together again."""

from __future__ import annotations

import pyarrow as pa

from tabfeed import ops
from tabfeed.ops.base import Inputs
from tabfeed.ops.state.counting import Counter
from tabfeed.ops.state.memory import MemoryManager
from tabfeed.schema import Schema
from tabfeed.workflow.merge_groups import Slots


def test_slots_that_come_in_any_order_make_the_same_pass() -> None:
    names = ("a", "b", "c")
    table = pa.table({n: [n, n, "x"] for n in names})
    memory = MemoryManager()
    groups = tuple((n,) for n in names)
    inputs = Inputs(Schema.from_arrow(table.schema), names, groups, memory=memory)
    node = list(names) >> ops.Categorify()
    slots = Slots([(node, inputs)])
    assert slots.names[2:] == [f"fit/Categorify/{n}" for n in names]
    parts = list(enumerate(slots.split([3, [node.op.partial(table, inputs)]])))
    for order in (parts, parts[::-1], [parts[3], parts[0], parts[4], parts[1], parts[2]]):
        rows, (counts,) = slots.assemble(order, memory)
        assert rows == 3
        assert tuple(counts) == names
        assert all(isinstance(c, Counter) and c.distinct() == 2 for c in counts.values())
