"""Columns and schemas for hypothesis: what tests of several modules draw from."""

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tabfeed import ColumnSchema, Domain, Schema, Tags

_LEAVES = st.sampled_from(
    "int8 int16 int32 int64 uint8 uint64 halffloat float double bool string large_string binary "
    "date32[day] timestamp[us] decimal128(9, 2) dictionary<string, int32>".replace(
        ", ", ","
    ).split()
).map(lambda text: text.replace(",", ", "))
_TAGS = [str(t) for t in Tags] + ["mine", "groupby_col"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
    max_leaves=5,
)  # fmt: skip


@st.composite
def columns(draw: st.DrawFn, name: st.SearchStrategy[str] | None = None) -> ColumnSchema:
    """Any column whose properties are JSON."""
    dtype: Any = draw(st.none() | _LEAVES)
    is_list = False
    if dtype is not None and draw(st.booleans()):
        is_list = True
        dtype = f"list<{dtype}>" if draw(st.booleans()) else f"list<list<{dtype}>>"
    tags = set(draw(st.lists(st.sampled_from(_TAGS), max_size=4)))
    for one, other in (("categorical", "continuous"), ("regression", "classification")):
        if one in tags:
            tags.discard(other)
    return ColumnSchema(
        draw(name if name is not None else st.text(min_size=1, max_size=8)),
        dtype,
        tags=tuple(tags),
        properties=draw(st.dictionaries(st.text(max_size=6), JSON, max_size=3)),
        nullable=draw(st.booleans()),
        value_count=draw(st.none() | _counts()) if is_list else None,
        domain=draw(st.none() | _domains()),
        embedding_size=draw(st.none() | st.tuples(st.integers(0, 10**9), st.integers(0, 512))),
    )


def _counts() -> st.SearchStrategy[tuple[int, int | None]]:
    low = st.integers(0, 5)
    return st.tuples(low, st.none() | st.integers(5, 9))


def _domains() -> st.SearchStrategy[Domain]:
    whole = st.none() | st.integers(-(2**63), 2**64)
    real = st.none() | st.floats(allow_nan=False)
    names = st.none() | st.text(min_size=1, max_size=5)
    return st.builds(Domain, whole, whole, names) | st.builds(Domain, real, real, names)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Any schema of a few such columns."""
    names = draw(st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=5))
    return Schema(draw(columns(st.just(name))) for name in names)


def arrow_schema() -> pa.Schema:
    """A schema with lists, nulls and types of several families."""
    return pa.schema(
        [
            pa.field("label", pa.float32(), nullable=False),
            pa.field("C1", pa.int64()),
            pa.field("genres", pa.list_(pa.string())),
            pa.field("seen", pa.timestamp("us", "UTC")),
        ]
    )
