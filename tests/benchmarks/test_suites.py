"""Which heats there are, the data they get, and that an interrupted run goes on."""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks import bench
from benchmarks.harness import usage, worker
from benchmarks.harness.contender import Case, contender, contenders
from benchmarks.harness.data import Spec, make
from benchmarks.harness.heat import Settings
from benchmarks.harness.store import Store
from benchmarks.harness.suites import SUITES, Options, estimate, heats, spec_of

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
        assert len(plan.names) <= 7
    entered = {(p.suite, name) for p in plans for name in p.names}
    assert entered == {(suite, who.name) for who in contenders().values() for suite in who.suites}


def test_the_usual_run_is_short_enough() -> None:
    total = sum(estimate(p, Settings()) for p in heats(Options(Path("nowhere"))))
    assert total < 20 * 60


def test_nobody_is_entered_in_vain() -> None:
    for plan in heats(Options(Path("nowhere"))):
        cases = [replace(Case("", 1, ""), **changes) for _, _, changes in plan.points]
        for name in plan.names:
            assert any(contender(name).takes(case) for case in cases), (plan.suite, name)


def test_only_some() -> None:
    plans = heats(Options(Path("nowhere"), only=("lance",), suites=("loading", "rows")))
    assert [p.names for p in plans] == [("tabfeed", "lance")]


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


def test_a_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def fake(heat: Any, settings: Settings) -> dict[str, Any]:
        if len(ran) == 1:
            raise KeyboardInterrupt
        ran.append(heat.points[0].label)
        points = [{"label": p.label, "rows": 1, "shuffle": True} for p in heat.points]
        return {"suite": "rows", "reference": "tabfeed", "points": points, "contenders": {}}

    monkeypatch.setattr(bench, "run_heat", fake)
    monkeypatch.setattr(bench, "code_version", lambda: "1")
    arguments = ["--folder", str(tmp_path), "--suites", "rows", "--only", "polars"]
    args = bench.parse([*arguments, "--rows", "4000"])
    with pytest.raises(KeyboardInterrupt):
        bench.run(args)
    ran.clear()
    with pytest.raises(KeyboardInterrupt):
        bench.run(bench.parse([*arguments, "--rows", "4000", "--full"]))
    assert ran == ["8,000"]  # the other was kept
    ran.clear()
    monkeypatch.setattr(bench, "code_version", lambda: "2")
    with pytest.raises(KeyboardInterrupt):
        bench.run(args)
    assert ran == ["2,000"]  # what was measured was other code
    assert "(kept)" in capsys.readouterr().out


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


@pytest.mark.parametrize("module", [usage, worker])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
