"""The quick test of branches of unions in Avro files: enough for good files, made once a block."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed.errors import BadFileError
from tabfeed.io import ReadOptions
from tabfeed.io.formats import avro as avro_file
from tabfeed.io.formats.avro import open_avro
from tests.io.avros import container, record, save, v
from tests.io.data_files import locate, rows_of, write
from tests.io.formats.test_avro import TYPES, _renamed
from tests.io.formats.test_avro_units import FIELDS, ROW


@pytest.fixture
def no_walk(monkeypatch) -> None:
    """The quick test is to be enough."""

    def refuse(*_: object) -> None:
        raise AssertionError("a good block was walked")

    monkeypatch.setattr(avro_file, "walk", refuse)


# -- read ---------------------------------------------------------------------------------


def test_a_block_is_checked_once(tmp_path: Path, monkeypatch) -> None:
    rows = [{"a": i, "s": None} for i in range(100)]
    file = open_avro(
        locate(
            save(
                tmp_path / "a.avro", record(a="long", s=["null", "string"]), rows, sync_interval=50
            )
        ),
        ReadOptions(block_size=1),
    )
    assert len(file.unit_rows) > 2
    file.read([0, 1], ["a"])
    monkeypatch.setattr(avro_file, "count_bytes", None)
    file.read([1, 0], ["s"])
    with pytest.raises(TypeError):
        file.read([2], ["s"])


@pytest.mark.usefixtures("no_walk")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("columns", [["n"], ["a", "l", "n"], ["z"]])
def test_good_files_of_every_type(tmp_path: Path, kind: str, columns: list[str]) -> None:
    schema, _, value = TYPES[kind]
    again = _renamed(_renamed(schema))
    listed = value if kind in ("enum", "record", "records") else [value, value]
    items = ["null", again] if kind in ("enum", "record", "records") else None
    fields = record(
        z="int",
        a=schema,
        n=["null", _renamed(schema)],
        l=items or [{"type": "array", "items": again}, "null"],
    )
    rows = [{"z": i, "a": value, "n": value, "l": listed} for i in range(3)]
    rows[1] = {**rows[1], "n": None, "l": None}
    file = open_avro(locate(save(tmp_path / "a.avro", fields, rows)), ReadOptions())
    assert rows_of(file, columns) == [{c: row[c] for c in columns} for row in rows]


@pytest.mark.usefixtures("no_walk")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(ROW, max_size=20), st.integers(1, 300))
def test_good_files_of_fastavro(tmp_path: Path, rows: list, interval: int) -> None:
    location = locate(save(tmp_path / "a.avro", FIELDS, rows, sync_interval=interval))
    assert rows_of(open_avro(location, ReadOptions())) == rows


@pytest.mark.usefixtures("no_walk")
def test_good_files_of_polars(tmp_path: Path) -> None:
    numbers = [s * (2**i + d) for i in range(63) for d in (-1, 0, 1) for s in (1, -1)]
    frame = pl.DataFrame(
        {
            "i": [*numbers, -(2**63), None],
            "f": [None, *map(float, numbers), float("nan")],
            "s": [None, "", *("é" * (i % 200) for i in range(len(numbers)))],
            "l": [None, [], *([i, None] * (i % 70) for i in range(len(numbers)))],
            "t": [None, {"x": None, "y": "a"}, *({"x": i, "y": None} for i in numbers)],
            "b": [None, True, *(i % 3 == 0 for i in numbers)],
        }
    )
    frame = frame.with_columns(
        d=pl.col("i") % 10**9,
        when=(pl.col("i") % 10**15).cast(pl.Datetime("us")),
        day=(pl.col("i") % 10**5).cast(pl.Int32).cast(pl.Date),
    ).with_columns(d=(pl.col("d").cast(pl.Decimal(12, 2))))
    frame.write_avro(tmp_path / "a.avro")
    file = open_avro(locate(tmp_path / "a.avro"), ReadOptions())
    table = file.read([0], file.schema.names)
    assert pl.from_arrow(table).equals(pl.read_avro(tmp_path / "a.avro"))
    assert pa.types.is_decimal(table.schema.field("d").type)


def test_branches_are_checked_where_no_column_is_read(tmp_path: Path) -> None:
    wrong = container(record(z="long", a=["null", "long"]), [(2, v(0, 1, 7) + v(1, 2, 7))])
    file = open_avro(write(tmp_path / "bad.avro", wrong), ReadOptions())
    for read in (lambda: file.read([0], []), lambda: list(file.batches(0, [], 10))):
        with pytest.raises(BadFileError, match=r"bad\.avro .* column 'a': .* no branch 2"):
            read()


def test_rows_that_lie_in_the_next_block(tmp_path: Path) -> None:
    row = v(1, 5)
    data = container(record(a=["null", "long"]), [(3, row * 2), (1, row + v(2, 5))])
    file = open_avro(write(tmp_path / "a.avro", data), ReadOptions())
    with pytest.raises(BadFileError, match="the block at byte"):
        rows_of(file)
