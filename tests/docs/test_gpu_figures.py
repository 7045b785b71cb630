"""The figures on the GPU page are those that the benchmark wrote."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "gpu.md").read_text()
FOUND = json.loads((RESULTS / "gpu_h200.json").read_text())
BEFORE = json.loads((RESULTS / "gpu_h200_before.json").read_text())
LARGE = json.loads((RESULTS / "gpu_h200_large_groups.json").read_text())
WIDE = json.loads((RESULTS / "gpu_h200_wide.json").read_text())
MACHINES = {
    "the one above": FOUND,
    "the day before (`gpu_h200_before.json`)": BEFORE,
    "a quieter one (`gpu_h200_quieter.json`)": json.loads(
        (RESULTS / "gpu_h200_quieter.json").read_text()
    ),
    "a busier one (`gpu_h200_busier.json`)": json.loads(
        (RESULTS / "gpu_h200_busier.json").read_text()
    ),
    "one with a core taken by other users (`gpu_h200_slower.json`)": json.loads(
        (RESULTS / "gpu_h200_slower.json").read_text()
    ),
}

LOAD = {
    '`reader="cudf", device_memory="6GB"`': "tabfeed, cudf, 6 GB",
    '`reader="cudf", device_memory="3GB"`': "tabfeed, cudf, 3 GB",
    '`reader="cudf", device_memory="1GB"`': "tabfeed, cudf, 1 GB",
    '`reader="arrow"`': "tabfeed, arrow, 1 GB",
    "pylibcudf alone, whole files, nothing delivered": "pylibcudf alone",
    "pyarrow alone, 16 threads, nothing delivered": "pyarrow alone",
    "by hand: `IterableDataset`, 8 workers": "by hand, 8 workers",
    "`DataLoader(TensorDataset)`, item by item": "stock, item by item",
}
TRAIN = {
    "512-256, Adam, batches of 400,000": "512-256, Adam, batch 400,000",
    "three layers of 128, SGD, dense gradients, 65,536": "three of 128, SGD, dense, batch 65,536",
    "three layers of 128, SGD, sparse gradients, 65,536": "three of 128, SGD, sparse, batch 65,536",
    "the same as a CUDA graph": "three of 128, SGD, sparse, graph, batch 65,536",
}


def cells(label):
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {label} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


@pytest.mark.parametrize("label", LOAD)
def test_loading(label):
    rate, held = cells(label)
    found = FOUND["load"][LOAD[label]]
    assert float(rate) == pytest.approx(found["rate"], rel=0.06)
    if held:
        assert held == f"{found['MB on the GPU']:,.0f}"


@pytest.mark.parametrize("label", ['`reader="arrow"`', '`reader="cudf", device_memory="1GB"`'])
def test_the_first_epoch(label):
    rate, _ = cells(f"{label}, its first epoch")
    assert rate == f"{FOUND['load'][LOAD[label]]['rate of the first epoch']:.0f}"


@pytest.mark.parametrize("label", TRAIN)
def test_training(label):
    ceiling, arrow, first, busy, cudf, cudf_first, by_hand, by_hand_busy = cells(label)
    found = FOUND["train"][TRAIN[label]]
    assert ceiling == f"{found['ceiling']['rate']:.1f}"
    assert arrow == f"{found['arrow, share of the ceiling']:.0%}".replace("%", " %")
    assert cudf == f"{found['cudf, share of the ceiling']:.0%}".replace("%", " %")
    assert first == f"{found['arrow']['first'] * 1e3:.0f}"
    assert cudf_first == f"{found['cudf']['first'] * 1e3:.0f}"
    assert busy == f"{found['arrow']['busy']:.0f} %"
    if "by hand, 8 workers" not in found:
        assert by_hand == by_hand_busy == ""
        return
    share = found["by hand, 8 workers"]["rate"] / found["ceiling"]["rate"]
    assert by_hand == f"{share:.0%}".replace("%", " %")
    assert by_hand_busy == f"{found['by hand, 8 workers']['busy']:.0f} %"


def test_training_item_by_item():
    found = [FOUND["train"][name] for name in list(TRAIN.values())[:3]]
    shares = [f["stock, item by item"]["rate"] / f["ceiling"]["rate"] * 100 for f in found]
    said = "feeds the first three models at {:.1f}, {:.1f} and {:.1f} % of their ceilings"
    assert said.format(*shares) in PAGE.replace("\n", " ")


def test_the_first_epochs_of_training():
    page, fed = PAGE.replace("\n", " "), [FOUND["train"][name] for name in TRAIN.values()]
    arrow, auto = ([f[f"{r}, round by round"][0] * 100 for f in fed] for r in ("arrow", "auto"))
    said = 'With `"arrow"` that epoch is at {:.0f}, {:.0f}, {:.0f} and {:.0f} % of the ceiling'
    assert said.format(*arrow) in page
    said = 'With `"auto"` its first 2.5 seconds are at {:.0f}, {:.0f}, {:.0f} and {:.0f} %'
    assert said.format(*auto) in page
    later = [f["arrow, share of the ceiling"] for f in fed]
    seconds = [FOUND["rows"] / 1e6 / f["ceiling"]["rate"] for f in fed]
    lost = [s * (100 / a - 1 / b) for s, a, b in zip(seconds, arrow, later, strict=True)]
    assert f"which takes up to {max(lost):.1f} seconds longer" in page


def test_the_first_batch_by_hand():
    first = [FOUND["train"][name]["by hand, 8 workers"]["first"] for name in TRAIN.values()]
    said = f"the first batch takes {min(first):.1f} to {max(first):.1f} seconds"
    assert said in PAGE.replace("\n", " ")


def test_within_a_limit():
    page = PAGE.replace("\n", " ")
    found = FOUND["bounded"]
    shares = [found[f"{r}, share of the rate without a limit"] for r in ("arrow", "cudf")]
    rates = [found[reader]["rate"] for reader in ("arrow", "cudf")]
    said = "{:.2f} and {:.2f} of the rate without that limit, {:.0f} and {:.0f} million rows"
    assert said.format(*shares, *rates) in page
    both = [found[reader]["GB of all processes"] for reader in ("arrow", "cudf")]
    assert "have {:.1f} GB together, {:.1f} GB where the GPU decodes".format(*both) in page


def test_within_a_limit_once_more():
    again = json.loads((RESULTS / "gpu_h200_bounded.json").read_text())
    assert again["rounds"] == 9 and again["hardware"] == BEFORE["hardware"]
    reader = "{}, share of the rate without a limit"
    shares = [again["bounded"][reader.format(r)] for r in ("arrow", "cudf")]
    said = (
        "In nine rounds on the machine of the day before, with its code, it was {:.2f} and {:.2f}"
    )
    assert said.format(*shares) in PAGE.replace("\n", " ")


def test_auto():
    page = PAGE.replace("\n", " ")
    loading = FOUND["load"]["tabfeed, auto, 1 GB"]
    assert f"switches to the GPU, and loads {loading['rate']:.0f} then" in page
    assert loading["reader"].startswith("the GPU: steps came")
    fed = [FOUND["train"][name] for name in TRAIN.values()]
    assert all(found["auto, choice"].startswith("Arrow: training waits") for found in fed)
    shares = [found["auto, share of the ceiling"] * 100 for found in fed]
    said = '`"auto"` trains the models at {:.0f}, {:.0f}, {:.0f} and {:.0f} %, all four with Arrow'
    assert said.format(*shares) in page


def test_what_else_differs_between_the_machines():
    others = [found for found in MACHINES.values() if found is not FOUND]
    versions = {found["hardware"]["packages"]["pyarrow"].split(".")[0] for found in others}
    new = FOUND["hardware"]["packages"]["pyarrow"].split(".")[0]
    said = f"all but the first with earlier code and pyarrow {', '.join(versions)} instead of {new}"
    assert said in PAGE.replace("\n", " ")
    assert all(f["hardware"]["code"] != FOUND["hardware"]["code"] for f in others)
    days = [date.fromisoformat(f["hardware"]["date"]) for f in (BEFORE, FOUND)]
    assert days[1] - days[0] == timedelta(days=1)


@pytest.mark.parametrize("label", MACHINES)
def test_machines(label):
    load, train = MACHINES[label]["load"], MACHINES[label]["train"]
    cudf, arrow, pylibcudf, by_hand, shares = cells(label)
    rates = [load[f"tabfeed, cudf, {gb} GB"]["rate"] for gb in (6, 3, 1)]
    assert cudf == ", ".join(f"{rate:.0f}" for rate in rates)
    assert arrow == f"{load['tabfeed, arrow, 1 GB']['rate']:.0f}"
    assert pylibcudf == f"{load['pylibcudf alone']['rate']:.0f}"
    assert by_hand == f"{load['by hand, 8 workers']['rate']:.1f}"
    found = [train[name]["arrow, share of the ceiling"] for name in TRAIN.values()]
    assert shares == ", ".join(f"{share * 100:.0f}" for share in found)


def test_large_row_groups():
    page, load = PAGE.replace("\n", " "), LARGE["load"]
    names = ("tabfeed, arrow, 1 GB", "tabfeed, cudf, 1 GB", "tabfeed, cudf, 3 GB")
    arrow, cudf, roomy = (load[name]["rate"] for name in names)
    assert f'`"arrow"` loads {arrow:.0f}, `"cudf"` {cudf:.0f}, and {roomy:.0f} in 3 GB' in page
    auto = load["tabfeed, auto, 1 GB"]
    assert f'`"auto"` switches to the GPU and loads {auto["rate"]:.0f}' in page
    assert auto["MB on the GPU"] <= 1000 and auto["reader"].startswith("the GPU: steps came")
    assert LARGE["rows of a row group"] == 1_000_000


def test_wide_columns():
    names = ("tabfeed, arrow, 1 GB", "pyarrow alone", "tabfeed, cudf, 1 GB", "tabfeed, cudf, 3 GB")
    said = '`"arrow"` loads {:.0f} (pyarrow alone {:.0f}), `"cudf"` {:.0f}, and {:.0f} in 3 GB'
    assert said.format(*(WIDE["load"][name]["rate"] for name in names)) in PAGE.replace("\n", " ")


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras(backend):
    found = json.loads((RESULTS / f"keras_{backend}_h200.json").read_text())
    page, share = PAGE.replace("\n", " "), f"{found['share of the ceiling']:.2f}"
    assert f"on {backend} at {share} of it" in page.replace("JAX", "jax")
    if backend == "torch":
        assert f"the GPU is busy only {found['ceiling']['busy']:.0f} % of the time" in page
        rounds = sorted(found["shares, round by round"])
        assert len(rounds) == 5
        assert f"rounds that went from {rounds[0]:.2f} to {rounds[-1]:.2f}" in page
