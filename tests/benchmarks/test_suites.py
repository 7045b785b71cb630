"""Which heats there are, the data they get, and that an interrupted run goes on."""

from __future__ import annotations

import doctest
import json
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks import bench
from benchmarks.harness import sums, tables, usage, worker
from benchmarks.harness.contender import Case, contender, contenders
from benchmarks.harness.data import Spec, make
from benchmarks.harness.heat import Settings
from benchmarks.harness.store import Store
from benchmarks.harness.suites import SUITES, Options, estimate, heats, placed, spec_of

PEERS = {
    "arrow", "daft_torch", "duckdb_by_hand", "grain_parquet", "hugging_face", "lance_torch",
    "lit_data", "merlin_loader", "mosaic_streaming", "pandas_sklearn", "petastorm_torch",
    "polars_by_hand", "ray_data", "tabfeed_features", "tabfeed_loader", "tensorflow_data",
    "torch_memory", "torch_parquet",
}  # fmt: skip


def test_every_adapter_is_read_without_its_package() -> None:
    assert {who.peer for who in contenders().values()} == PEERS
    for who in contenders().values():
        assert set(who.suites) <= set(SUITES)
        assert who.why or who.name.startswith("tabfeed")


def test_every_heat_has_its_reference_and_fits_in_memory() -> None:
    plans = heats(Options(Path("nowhere")))
    assert {p.suite for p in plans} == set(SUITES)
    for plan in plans:
        assert plan.names[0] == plan.reference
        assert 2 <= len(plan.names) <= 9
    entered = {(p.suite, name) for p in plans for name in p.names}
    assert entered == {(suite, who.name) for who in contenders().values() for suite in who.suites}


def test_the_usual_run_is_short_enough() -> None:
    total = sum(estimate(p) for p in heats(Options(Path("nowhere"))))
    assert total < 20 * 60


def test_nobody_is_entered_in_vain() -> None:
    for plan in heats(Options(Path("nowhere"))):
        cases = [placed(Case("", 1, ""), changes, "") for _, _, changes in plan.points]
        for name in plan.names:
            assert any(contender(name).takes(case) for case in cases), (plan.suite, name)


def test_only_some() -> None:
    plans = heats(Options(Path("nowhere"), only=("lance",), suites=("loading", "rows")))
    assert [p.names for p in plans] == [("tabfeed", "lance", "lance-take")]


def test_every_axis_has_its_ends() -> None:
    seen: dict[str, list[str]] = {}
    for plan in heats(Options(Path("nowhere"))):
        seen.setdefault(plan.suite, []).extend(label for label, _, _ in plan.points)
    assert set(seen["rows"]) == {"1,000,000", "4,000,000", "16,000,000"}
    assert set(seen["columns"]) == {"10", "40", "200", "1,000"}
    assert set(seen["codec"]) == {"plain", "snappy", "lz4", "zstd"}
    assert set(seen["workers"]) == {"0", "1", "2"}
    assert set(seen["epochs"]) == {"1", "5"}
    assert {label.split(",")[0] for label in seen["remote"]} == {"local", "remote"}


def test_the_same_numbers_whatever_the_width() -> None:
    plans = heats(Options(Path("nowhere"), suites=("columns",)))
    specs = [spec for plan in plans for _, spec, _ in plan.points]
    assert {spec.rows * spec.columns for spec in specs} == {40_000_000}
    assert min(spec.group for spec in specs) == 10_000


def test_remote_files_have_urls(tmp_path: Path) -> None:
    folder = make(spec_of(4_000, 10), tmp_path / "data")
    plan = next(iter(heats(Options(tmp_path, rows=8_000, suites=("remote",)))))
    plan = replace(plan, points=plan.points[:2])
    with plan.ready(Options(tmp_path, rows=8_000)) as heat:
        local, remote = (point.case for point in heat.points)
        name = Path(local.files[0]).name
        assert Path(local.files[0]).exists()
        assert remote.files[0] == f"s3://{Path(local.folder).name}/{name}"
        with urllib.request.urlopen(f"{remote.endpoint}/{folder.name}/{name}") as answer:
            assert answer.read() == (folder / name).read_bytes()


@pytest.mark.parametrize(("columns", "cats", "conts"), [(10, 6, 3), (40, 26, 13), (200, 133, 66)])
def test_widths(columns: int, cats: int, conts: int) -> None:
    spec = Spec(100, columns)
    assert (len(spec.cats), len(spec.conts)) == (cats, conts)


def test_data_are_made_once_and_whole(tmp_path: Path) -> None:
    spec = spec_of(5_000, 10, lists=1)
    folder = make(spec, tmp_path)
    case = Case(str(folder), 5_000, "", spec.cats, spec.conts, lists=spec.multi_hot)
    table = pq.read_table(folder)
    assert table.num_rows == 5_000
    assert set(table.column_names) == set(case.columns)
    assert len(case.files) == 4
    assert str(table.schema.field("L1").type) == "list<element: int32>"
    before = Path(case.files[0]).stat().st_mtime_ns
    make(spec, tmp_path)
    assert Path(case.files[0]).stat().st_mtime_ns == before
    (folder / "_done").unlink()  # as if the maker had been killed
    make(spec, tmp_path)
    assert Path(case.files[0]).stat().st_mtime_ns > before
    assert pq.read_table(folder).equals(table)


def test_a_case_travels() -> None:
    case = Case("a", 10, "b", ("C1",), ("I1",), batch=4, shuffle=False)
    assert Case.from_json(case.to_json()) == case
    assert case.at_most(3) == Case("a", 3, "b", ("C1",), ("I1",), batch=3, shuffle=False)
    assert case.at_most(None) is case


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Heats take no time, and are noted; the code is always the same."""
    labels: list[str] = []

    def fake(heat: Any, settings: Settings) -> dict[str, Any]:
        labels.append(heat.points[0].label)
        points = [{"label": p.label, "rows": 1, "shuffle": True} for p in heat.points]
        known = {"suite": "rows", "reference": "tabfeed"}
        return {**known, "points": points, "contenders": {}}

    monkeypatch.setattr(bench, "run_heat", fake)
    monkeypatch.setattr(bench, "code_digest", lambda: "1")
    return labels


def rows_run(folder: Path, *more: str) -> dict[str, Any]:
    what = ["--folder", str(folder), "--suites", "rows", "--only", "polars", "--rows", "4000"]
    return bench.run(bench.parse([*what, *more]))


def test_a_run_goes_on_where_it_stopped(
    tmp_path: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("4,000", "16,000"):
        with pytest.raises(bench.Unfinished, match="the same command goes on"):
            rows_run(tmp_path, "--stop-after", "1")
        assert ran[-1] == label
    found = rows_run(tmp_path, "--stop-after", "1")
    assert ran == ["4,000", "16,000", "64,000"]
    assert capsys.readouterr().out.count("(kept)") == 3
    kept = [json.loads(p.read_text()) for p in (tmp_path / "heats").iterdir()]
    assert found["settings"]["took_s"] == round(sum(heat["seconds"] for heat in kept))


def test_other_code_makes_kept_heats_worthless(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_run(tmp_path)
    monkeypatch.setattr(bench, "code_digest", lambda: "2")
    rows_run(tmp_path)
    assert ran == ["4,000", "16,000", "64,000"] * 2
    rows_run(tmp_path, "--fresh")
    assert len(ran) == 9


def test_a_kept_heat_is_whole(tmp_path: Path) -> None:
    store = Store(tmp_path, "1")
    store.put(tmp_path / "a.json", {"x": 1})
    assert store.get(tmp_path / "a.json") == {"x": 1}
    assert store.get(tmp_path / "b.json") is None
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    store.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_part_leaves_the_committed_results_alone() -> None:
    whole, page = bench.places(bench.parse([]))
    assert whole.parts[-2:] == ("benchmarks", "results")
    assert page.parts[-2:] == ("docs", "benchmarks.md")
    for part in (["--only", "ray"], ["--suites", "rows"], ["--rows", "1000"]):
        results, page = bench.places(bench.parse(part))
        assert "build" in results.parts
        assert "build" in page.parts


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_tabfeed_takes_part(tmp_path: Path) -> None:
    spec = spec_of(4_000, 10)
    case = Case(str(make(spec, tmp_path)), 4_000, "", spec.cats, spec.conts, batch=1_000)
    for name in ("tabfeed", "tabfeed-columns", "torch-parquet-columns", "torch-by-hand"):
        found = worker.go_over(contender(name).open(case)(), case, 60.0, True)
        assert (found["rows"], found["whole"]) == (4_000, True)
    thrice = replace(case, epochs=3)
    found = worker.go_over(worker.passes(contender("tabfeed"), thrice), thrice, 60.0, True)
    assert (found["rows"], found["batches"], found["whole"]) == (12_000, 12, True)


@pytest.mark.parametrize("module", [sums, tables, usage, worker])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
