"""Counts that DuckDB sorts on disk, within little memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import OperatorError

ROWS = 300_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of which each occurs once or twice, and numbers that are all different."""
    order = np.random.default_rng(0).permutation(ROWS)
    texts = pa.array(np.char.add("customer number ", (order * 2 // 3).astype(str)))
    path = tmp_path_factory.mktemp("many") / "a.parquet"
    table = pa.table({"c": texts, "x": order / 7.0})
    pq.write_table(table, path, row_group_size=50_000, use_dictionary=False)
    return path


def features() -> Workflow:
    return Workflow((["c"] >> ops.Categorify()) + (["x"] >> ops.FillMedian()))


@pytest.mark.parametrize("shares", [(1,), (8,)])
def test_groups_that_do_not_fit_are_made_share_by_share(
    many: Path, shares: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = features().fit(Dataset(many)).transform(Dataset(many)).to_arrow()
    monkeypatch.setattr("tabfeed.ops.state.memory._PARTITIONS", shares)
    little = features().fit(Dataset(many), memory_limit="2MB")
    assert little.transform(Dataset(many)).to_arrow().equals(whole)


def test_more_data_is_learned_share_by_share(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = pa.table({"c": ["customer number 5", "new"], "x": [1.0, 2.0]})
    whole = features().fit(Dataset(many))
    whole.update(more)
    monkeypatch.setattr("tabfeed.ops.state.memory._PARTITIONS", (8,))
    little = features().fit(Dataset(many), memory_limit="2MB")
    little.update(more, memory_limit="2MB")
    data = Dataset(many)
    assert little.transform(data).to_arrow().equals(whole.transform(data).to_arrow())
    assert little.transform(more).equals(whole.transform(more))


def test_where_nothing_helps_the_error_says_what_would(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tabfeed.ops.state.memory._LEAST_DATABASE", 2 * 2**20)
    with pytest.raises(OperatorError, match=r"within memory_limit \(2,000,000 bytes\).*or more"):
        features().fit(Dataset(many), memory_limit="2MB")
