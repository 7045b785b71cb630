from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Domain, Tags
from tabfeed.datagen import criteo, criteo_tables
from tabfeed.errors import ArgumentError

COUNTS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]


def arrays(rows: int, *, seed: int = 0) -> dict[str, npt.NDArray[np.float64]]:
    (table,) = criteo_tables(rows, seed=seed)
    return {name: table[name].to_numpy() for name in table.column_names}


def auc(label: npt.NDArray[np.float64], scores: npt.NDArray[np.float64]) -> float:
    """The chance that a click is ranked above another row, ties shared."""
    _, where, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    clicks = label.sum()
    return float(
        (ranks[label > 0].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(label) - clicks))
    )


def test_auc_by_hand() -> None:
    assert auc(np.array([0, 1, 0, 1.0]), np.array([1, 2, 3, 4.0])) == 0.75
    assert auc(np.array([0, 1.0]), np.array([1, 1.0])) == 0.5


def test_processed_rows_are_160_bytes_without_nulls() -> None:
    (table,) = criteo_tables(1_000)
    assert table.column_names == ["label", *COUNTS, *CATEGORIES]
    assert table.nbytes == 160 * 1_000
    assert not any(field.nullable for field in table.schema)
    assert {f.type for f in table.schema if f.name in CATEGORIES} == {pa.int32()}
    assert {f.type for f in table.schema if f.name not in CATEGORIES} == {pa.float32()}


def test_schema_says_what_the_columns_are(tmp_path: Path) -> None:
    schema = criteo(tmp_path, 100).schema
    assert schema.select_by_tag(Tags.TARGET).column_names == ["label"]
    assert schema.select_by_tag(Tags.CONTINUOUS).column_names == COUNTS
    assert schema.select_by_tag(Tags.CATEGORICAL).column_names == CATEGORIES
    assert schema["C9"].domain == Domain(0, 62)
    assert schema["C9"].embedding_size == (63, 16)


def test_ids_stay_below_their_cardinality(tmp_path: Path) -> None:
    rows, schema = arrays(100_000), criteo(tmp_path / "new", rows=10).schema
    for name in CATEGORIES:
        count, _ = schema[name].embedding_size
        assert schema[name].domain == Domain(0, count - 1)
        assert rows[name].min() == 0
        assert rows[name].max() < count
    assert np.unique(rows["C6"]).tolist() == [0, 1, 2, 3]


def test_counts_are_standardised() -> None:
    rows = arrays(100_000)
    for name in COUNTS:
        assert abs(rows[name].mean()) < 0.02
        assert abs(rows[name].std() - 1) < 0.02


def test_row_groups_files_and_encodings(tmp_path: Path) -> None:
    criteo(tmp_path, 10_000, row_group_size=1_500)
    files = sorted(tmp_path.glob("*.parquet"))
    assert [f.name for f in files] == [f"part_{i}.parquet" for i in range(4)]
    meta = pq.ParquetFile(files[0]).metadata
    assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [1_500, 1_000]
    columns = {
        meta.row_group(0).column(i).path_in_schema: meta.row_group(0).column(i) for i in range(40)
    }
    assert columns["C9"].has_dictionary_page
    assert not columns["C1"].has_dictionary_page
    assert {c.compression for c in columns.values()} == {"SNAPPY"}


def test_rows_depend_on_the_seed_alone(tmp_path: Path) -> None:
    whole = pa.concat_tables(criteo_tables(3_000, row_group_size=3_000)).combine_chunks()
    cut = pa.concat_tables(criteo_tables(3_000, row_group_size=77)).combine_chunks()
    files = criteo(tmp_path, 3_000, files=7, row_group_size=100).to_arrow()
    (start,) = criteo_tables(500)
    assert cut.equals(whole)
    assert files.combine_chunks().cast(whole.schema).equals(whole)
    assert start.equals(whole.slice(0, 500))
    (other,) = criteo_tables(500, seed=1)
    assert not other["C1"].equals(start["C1"])


def test_the_first_row_never_changes() -> None:
    some = ["label", "I1", "I13", "C1", "C6", "C20", "C26"]
    (table,) = criteo_tables(1)
    first = table.select(some).to_pylist()[0]
    assert list(first.values()) == [0.0, 1.356335997581482, 0.3665701746940613, 763, 0, 2630505, 13]
    (table,) = criteo_tables(1, raw=True)
    first = table.select(some).to_pylist()[0]
    assert list(first.values()) == [0, 4, 44, "65d1d7e3", "b81049b8", "99c4ce10", "aa38c6f9"]


# -- the raw form ---------------------------------------------------------------------


def test_raw_columns_and_their_nulls() -> None:
    (table,) = criteo_tables(50_000, raw=True)
    assert table["label"].type == pa.int32()
    assert table["label"].null_count == 0
    for name in COUNTS:
        assert table[name].type == pa.int32()
        assert table[name].null_count / 50_000 < 0.32
    for name in CATEGORIES:
        assert table[name].type == pa.string()
        assert table[name].null_count / 50_000 < 0.045
    assert table["I1"].null_count == 0
    assert max(table[name].null_count for name in COUNTS) / 50_000 > 0.28
    assert max(table[name].null_count for name in CATEGORIES) / 50_000 > 0.035
    table.validate(full=True)
    for field in table.schema:
        assert field.nullable or table[field.name].null_count == 0


def test_raw_categories_are_8_hex_digits_one_for_each_id() -> None:
    (raw,), (processed,) = criteo_tables(20_000, raw=True), criteo_tables(20_000)
    text = raw["C2"].to_pylist()
    ids = processed["C2"].to_pylist()
    pairs = {(t, i) for t, i in zip(text, ids, strict=True) if t is not None}
    assert len(pairs) == len({t for t, _ in pairs}) == len({i for _, i in pairs}) > 1_000
    assert all(len(t) == 8 and int(t, 16) >= 0 for t, _ in pairs)
    # The same id is another text in another column.
    assert raw["C3"].to_pylist()[ids.index(0)] != text[ids.index(0)]


def test_raw_and_processed_are_the_same_rows() -> None:
    (raw,), (processed,) = criteo_tables(20_000, raw=True), criteo_tables(20_000)
    assert raw["label"].to_pylist() == processed["label"].to_pylist()
    count, value = raw["I1"].to_numpy(), processed["I1"].to_numpy()
    order = np.argsort(value)
    assert (np.diff(count[order]) >= 0).all()  # a larger value never is a smaller count
    assert raw["I2"].to_numpy(zero_copy_only=False)[~np.isnan(raw["I2"].to_numpy())].min() < 0


# -- the hidden model -----------------------------------------------------------------


def test_one_row_in_four_is_a_click_for_every_seed() -> None:
    for seed in (0, 1, 2):
        assert abs(arrays(100_000, seed=seed)["label"].mean() - 0.25) < 0.01


def mean_clicks(train: dict[str, npt.NDArray[np.float64]], name: str) -> npt.NDArray[np.float64]:
    """The share of clicks of each id, drawn towards that of all; rare ids share one place."""
    size = min(int(train[name].max()) + 1, 4_096)
    place = np.minimum(train[name], size - 1)
    shown = np.bincount(place, minlength=size)
    clicked = np.bincount(place, train["label"], minlength=size)
    means: npt.NDArray[np.float64] = (clicked + 20 * train["label"].mean()) / (shown + 20)
    return means


def test_a_simple_model_learns_on_one_seed_what_holds_on_another() -> None:
    train, test = arrays(100_000, seed=0), arrays(50_000, seed=1)
    means = {name: mean_clicks(train, name) for name in CATEGORIES}

    def features(rows: dict[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        known = [m[np.minimum(rows[name], len(m) - 1)] for name, m in means.items()]
        return np.column_stack([np.ones(len(rows["label"])), *(rows[n] for n in COUNTS), *known])

    weights, *_ = np.linalg.lstsq(features(train), train["label"], rcond=None)
    assert auc(test["label"], features(test) @ weights) > 0.75
    # And there is nothing to learn from a label that belongs to other rows.
    assert abs(auc(np.roll(test["label"], 1), features(test) @ weights) - 0.5) < 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows is 0; it must be a positive integer"),
        ({"rows": 1.5}, "rows is 1.5"),
        ({"rows": 10, "seed": -1}, "seed is -1; it must be an integer of at least 0"),
        ({"rows": 10, "row_group_size": 0}, "row_group_size is 0"),
        ({"rows": 10, "files": 0}, "files is 0"),
    ],
)
def test_bad_arguments_write_nothing(options: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        criteo(tmp_path / "new", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_bad_arguments_of_tables_are_refused_when_called() -> None:
    with pytest.raises(ArgumentError, match="rows is -5"):
        criteo_tables(-5)
