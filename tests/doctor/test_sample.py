"""The baseline is written as its original was, and holds the same rows."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.doctor.files import facts_of, loader_of
from tabfeed.doctor.sample import as_codes, filled, settings_of, without, write_sample
from tabfeed.errors import WriteError
from tabfeed.io import Dataset

ROWS = 5000
TABLE = pa.table(
    {
        "i": pa.array(range(ROWS), pa.int32()),
        "f": pa.array([i / 2 for i in range(ROWS)], pa.float32()),
        "t": [f"text {i % 50}" for i in range(ROWS)],
        "l": pa.array([[i, i + 1] for i in range(ROWS)], pa.list_(pa.int64())),
        "n": pa.array([None if i % 3 else i for i in range(ROWS)], pa.int64()),
    }
)
WRITTEN: dict[str, dict[str, Any]] = {
    "defaults": {},
    "zstd, second version": {"compression": "zstd", "data_page_version": "2.0"},
    "plain, checksums": {
        "compression": "none",
        "use_dictionary": False,
        "write_page_checksum": True,
    },
    "one of each": {
        "compression": {"i": "gzip", "f": "snappy", "t": "zstd", "l.list.element": "lz4"},
        "use_dictionary": ["t"],
        "column_encoding": {"i": "DELTA_BINARY_PACKED", "f": "BYTE_STREAM_SPLIT"},
    },
    "small pages": {"max_rows_per_page": 500, "write_batch_size": 100},
}


@pytest.mark.parametrize("options", WRITTEN.values(), ids=WRITTEN)
def test_the_baseline(tmp_path: Path, options: dict[str, Any]) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=2000, **options)
    dataset = Dataset(tmp_path / "a.parquet")
    facts = facts_of(dataset)
    groups = [(0, TABLE.slice(i, 2000)) for i in range(0, ROWS, 2000)]
    baseline = write_sample(iter(groups), tmp_path / "baseline", settings_of(facts))
    again = facts_of(baseline)
    assert baseline.to_arrow().equals(TABLE)
    assert again.group_rows == facts.group_rows == (2000, 2000, 1000)
    for old, new in zip(facts.columns, again.columns, strict=True):
        assert (new.codecs, new.encoding, new.nullable) == (old.codecs, old.encoding, old.nullable)
    assert facts.pages is not None and again.pages is not None
    assert again.pages.checksums == facts.pages.checksums
    assert again.pages.version == facts.pages.version
    assert again.pages.values == facts.pages.values


def test_files_are_kept_apart_or_joined(tmp_path: Path) -> None:
    from dataclasses import replace

    parts = [(n, TABLE.slice(1000 * n, 1000)) for n in range(5)]
    pq.write_table(TABLE, tmp_path / "a.parquet")
    as_is = settings_of(facts_of(Dataset(tmp_path / "a.parquet")))
    assert len(write_sample(iter(parts), tmp_path / "kept", as_is).files) == 5
    joined = replace(as_is, one_file=True, group_rows=3000)
    one = write_sample(iter(parts), tmp_path / "one", joined)
    assert facts_of(one).group_rows == (3000, 2000)
    assert one.to_arrow().equals(TABLE)


def test_changes_of_the_data() -> None:
    coded = as_codes(["t"])(TABLE)
    assert coded.schema.field("t").type == pa.int32()
    assert coded.column("t").to_pylist()[:52] == [*range(50), 0, 1]
    whole = filled(["n"])(TABLE)
    assert whole.column("n").to_pylist()[:4] == [0, 0, 0, 3]
    assert without(["l", "t"])(TABLE).column_names == ["i", "f", "n"]


def test_text_and_nulls_are_read_as_numbers(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    dataset = Dataset(tmp_path)
    kinds = {c.name: c.kind for c in facts_of(dataset).columns}
    assert kinds == {"i": "number", "f": "number", "t": "text", "l": "list", "n": "number"}
    (batch,) = loader_of(dataset, kinds).start()
    first = batch["i"].argsort()[:4]
    assert batch["t"][first].tolist() == [6, 6, 6, 6]
    assert batch["n"][first].tolist() == [0, 0, 0, 3]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    pq.write_table(TABLE, tmp_path / "a.parquet")
    writing = settings_of(facts_of(Dataset(tmp_path / "a.parquet")))
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(WriteError, match="set TMPDIR"):
        write_sample(iter([(0, TABLE)]), tmp_path / "baseline", writing)
