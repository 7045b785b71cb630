from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tabfeed import Tags
from tabfeed.datagen import outbrain, outbrain_tables
from tabfeed.errors import ArgumentError


def made(displays: int = 3_000, *, seed: int = 0) -> dict[str, pa.Table]:
    parts = outbrain_tables(displays, documents=400, ads=240, row_group_size=2_500, seed=seed)
    return {name: pa.concat_tables(chunks) for name, chunks in parts.items()}


def test_six_datasets_under_one_folder(tmp_path: Path) -> None:
    data = outbrain(tmp_path, 500, documents=400, ads=240, files=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(data._fields)
    assert data.clicks.schema.select_by_tag(Tags.TARGET).column_names == ["clicked"]
    assert data.events.column_names == [
        "display_id", "uuid", "document_id", "timestamp", "platform", "geo_location",
    ]  # fmt: skip
    assert data.documents_meta.num_rows == 400
    assert data.promoted_content.num_rows == 240


def test_files_hold_what_tables_give(tmp_path: Path) -> None:
    data = outbrain(tmp_path, 300, documents=40, ads=24, files=2, row_group_size=100)
    parts = outbrain_tables(300, documents=40, ads=24)
    for name, dataset in data._asdict().items():
        assert dataset.to_arrow().to_pylist() == pa.concat_tables(parts[name]).to_pylist()


def test_a_display_shows_2_to_12_different_ads_and_one_is_clicked() -> None:
    clicks = made()["clicks"]
    by_display = clicks.group_by("display_id").aggregate(
        [("clicked", "sum"), ("ad_id", "count"), ("ad_id", "count_distinct")]
    )
    assert by_display.num_rows == 3_000
    assert pc.unique(by_display["clicked_sum"]).to_pylist() == [1]
    assert by_display["ad_id_count"].equals(by_display["ad_id_count_distinct"])
    assert sorted(pc.unique(by_display["ad_id_count"]).to_pylist()) == list(range(2, 13))


def test_every_id_leads_somewhere() -> None:
    tables = made()
    ads = set(tables["promoted_content"]["ad_id"].to_pylist())
    documents = set(tables["documents_meta"]["document_id"].to_pylist())
    assert (ads, documents) == (set(range(1, 241)), set(range(1, 401)))
    assert set(tables["clicks"]["ad_id"].to_pylist()) <= ads
    assert tables["events"]["display_id"].to_pylist() == list(range(1, 3_001))
    assert set(tables["clicks"]["display_id"].to_pylist()) == set(range(1, 3_001))
    for name in ("events", "promoted_content", "documents_categories", "documents_topics"):
        assert set(tables[name]["document_id"].to_pylist()) <= documents


def test_an_advertiser_has_campaigns_and_a_publisher_has_sources() -> None:
    tables = made()
    for table, part, owner in [
        ("promoted_content", "campaign_id", "advertiser_id"),
        ("documents_meta", "source_id", "publisher_id"),
    ]:
        owners = tables[table].group_by(part).aggregate([(owner, "count_distinct")])
        assert pc.unique(owners[f"{owner}_count_distinct"]).to_pylist() == [1]


@pytest.mark.parametrize(
    ("table", "name", "most"), [("categories", "category_id", 2), ("topics", "topic_id", 3)]
)
def test_each_document_has_different_names_with_confidence(
    table: str, name: str, most: int
) -> None:
    rows = made()[f"documents_{table}"]
    each = rows.group_by("document_id").aggregate([(name, "count"), (name, "count_distinct")])
    assert each.num_rows == 400
    assert each[f"{name}_count"].equals(each[f"{name}_count_distinct"])
    assert set(each[f"{name}_count"].to_pylist()) == set(range(1, most + 1))
    confidence = rows["confidence_level"].to_numpy()
    assert 0.1 < confidence.min() < confidence.max() <= 1


def test_events_happen_in_time_somewhere() -> None:
    events = made()["events"]
    assert (np.diff(events["timestamp"].to_numpy()) >= 0).all()
    assert sorted(pc.unique(events["platform"]).to_pylist()) == [1, 2, 3]
    assert 0 < events["geo_location"].null_count < 100
    assert "US>CA>803" in events["geo_location"].to_pylist()
    assert 1 < len(pc.unique(events["uuid"])) < 3_000  # some users come again


def test_what_one_seed_teaches_holds_on_another() -> None:
    train, test = made(20_000)["clicks"], made(5_000, seed=1)["clicks"]
    ad, clicked = train["ad_id"].to_numpy(), train["clicked"].to_numpy()
    rate = (np.bincount(ad, clicked, minlength=241) + 1) / (np.bincount(ad, minlength=241) + 5)
    starts = np.flatnonzero(np.diff(test["display_id"].to_numpy(), prepend=0))
    guess = rate[test["ad_id"].to_numpy()]
    best = np.repeat(np.maximum.reduceat(guess, starts), np.diff([*starts, len(guess)]))
    right = test["clicked"].to_numpy()[guess == best].sum() / len(starts)
    assert right > 0.35  # any ad would be right in 0.24


@pytest.mark.parametrize(
    ("name", "value"), [("displays", 0), ("documents", 0), ("ads", 11), ("seed", -1)]
)
def test_bad_arguments(name: str, value: int, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is {value}"):
        outbrain(tmp_path / "new", **{name: value})  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
