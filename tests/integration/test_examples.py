"""The examples run, at a small size, on files laid out as the real ones, and show what they say."""

from __future__ import annotations

import ast
import importlib
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[..., str]


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What examples import, and one thread: on a busy machine several wait for each other."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the server
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example here, where its framework is imported already; what it printed."""

    def run(name: str, *arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def cells(text: str, first: str) -> list[str]:
    """The other cells of the last table row that begins so."""
    *_, row = re.findall(rf"^│ {re.escape(first)} +│(.*)│$", text, re.M)
    return [cell.strip() for cell in row.split("│")]


def shared(name: str) -> Any:
    """A file that examples share."""
    return importlib.import_module(name)


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def test_criteo_from_text_to_a_model(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "out"
    told = run("criteo_etl", "--rows", "4000", "--folder", folder)
    assert cells(told, "label")[:3] == ["int64", "2", "0.0"]
    assert cells(told, "C6")[:2] == ["string", "4"]  # as many as the generator draws from
    assert cells(told, "raw to Parquet")[1] == "4,000"
    assert cells(told, "fit")[1] == cells(told, "shuffled batches")[1] == "3,500"
    assert cells(told, "transform, write valid")[1] == "500"
    assert is_picture(folder / "columns.png")
    trained = run("criteo_torch", "--folder", folder, "--batch-size", "200", "--epochs", "1")
    assert "18 batches of 200 rows" in trained and "AUC 0." in trained


def test_criteo_on_two_ranks(tmp_path: Path, run: Run) -> None:
    small = ("--rows", "4000", "--batch-size", "200", "--epochs", "1")
    told = run("criteo_ddp", "--folder", tmp_path / "out", *small)
    assert "2 ranks, 10 steps an epoch on each" in told
    assert "epoch 0: 2,000 + 2,000 rows, loss 0." in told and "AUC 0." in told
    assert "rows: 4000 - epochs: 1" in told


def test_criteo_text_is_read_as_parquet_is(tmp_path: Path) -> None:
    etl, data = shared("criteo_etl"), shared("criteo_data")
    paths = etl.write_text(tmp_path, 300)
    assert [p.name for p in data.raw_files(tmp_path)] == ["day_0", "day_1"]
    read = data.open_raw(paths).to_arrow()
    made = [t for day in (0, 1) for t in etl.datagen.criteo_tables(150, raw=True, seed=day)]
    assert read.to_pylist() == [row for table in made for row in table.to_pylist()]


def test_movielens_in_torch(tmp_path: Path, run: Run) -> None:
    files = shared("movielens_data").write_files(tmp_path / "ml", 30_000)
    with (files / "movies.csv").open("a") as movies, (files / "ratings.csv").open("a") as ratings:
        movies.write('9999991,"American President, The (1995)",(no genres listed)\n')
        ratings.write("1,9999991,4.0,964982703\n2,9999992,3.5,964982704\n")  # and one of no film
    told = run("movielens_torch", "--data", files, "--folder", tmp_path / "out", "--epochs", "2")
    mean, without, with_genres = (
        float(cells(told, name)[0]) for name in ("mean", "without genres", "with genres")
    )
    assert with_genres < without < mean and with_genres < 0.92 * mean, told
    assert re.search(r"'genres__values': \(\d+,\), 'genres__offsets': \(1025,\)", told)
    assert is_picture(tmp_path / "out" / "genres.png")


def test_outbrain_gains_from_target_encoding(tmp_path: Path, run: Run) -> None:
    files = shared("outbrain_data").write_files(tmp_path / "outbrain", 4_000)
    events = (files / "events.csv").read_text().splitlines()
    display, user, page, moment, _, _ = events[5].split(",")
    events[5] = f"{display},{user},{page},{moment},\\N,"  # as some rows of the real file are
    (files / "events.csv").write_text("\n".join(events) + "\n")
    told = run("outbrain_torch", "--data", files, "--folder", tmp_path / "out")
    _, plain = map(float, cells(told, "no target encoding"))
    seen, later = map(float, cells(told, "target encoding"))
    wrong_seen, wrong_later = map(float, cells(told, "without folds"))
    assert later > plain + 0.1, told
    assert wrong_seen > wrong_later + 0.05 and wrong_seen > seen + 0.05, told
    assert "made up" not in told
    assert is_picture(tmp_path / "out" / "target_encoding.png")


def test_sessions_beat_what_is_popular(tmp_path: Path, run: Run) -> None:
    clicks = shared("sessions_data").write_clicks(tmp_path / "clicks.dat", 4_000, items=200)
    assert re.match(r"\d+,2014-04-07T00:0\d:\d\d\.\d{3}Z,2145\d{5},0\n", clicks.read_text()[:60])
    told = run("sessions_torch", "--data", clicks, "--folder", tmp_path / "out", "--epochs", "4")
    popular, model = (float(cells(told, n)[-1].rstrip("%")) for n in ("most popular", "GRU"))
    assert model > 1.5 * popular, told
    assert is_picture(tmp_path / "out" / "hit_rate.png")


def test_serving(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    small = ("--rows", "3000", "--epochs", "1", "--requests", "60")
    told = run("serving", *small, "--folder", tmp_path / "out")
    assert "60 rows scored by the server and in batches" in told
    assert "A row without C7: 422, there is no column 'C7' in the row" in told
    for name, count in (("1 row", "60"), ("1 row, 4 clients", "60"), ("256 rows", "3")):
        requests, median, p99, *parts = cells(told, name)
        assert requests == count and 0 < float(median) <= float(p99) and all(map(float, parts))
    assert is_picture(tmp_path / "out" / "latency.png")
    check_hostile_requests(tmp_path / "out")


def check_hostile_requests(folder: Path) -> None:
    """One row and several follow one rule, and nothing makes the service fail."""
    from fastapi.testclient import TestClient

    app = shared("serving_app")
    client = TestClient(app.make_app(folder))
    row = {name: 3 for name in app.CONTINUOUS} | {name: "ab12" for name in app.CATEGORICAL}
    assert client.get("/ready").json() == {"ready": True}

    def ask(text: str) -> list[tuple[int, Any]]:
        one = client.post("/score", content=text.encode("utf-8", "surrogatepass"))
        two = client.post("/scores", content=f"[{text}, {text}]".encode("utf-8", "surrogatepass"))
        return [(response.status_code, response.json()) for response in (one, two)]

    (status, one), (_, two) = ask(json.dumps(row))
    assert status == 200 and two["clicks"] == pytest.approx([one["click"]] * 2)
    for change, message in {
        '"I1": 3.5': "column 'I1' is 3.5 here",
        '"I1": 1180591620717411303424': "column 'I1' is 1180591620717411303424 here",
        '"I1": "3"': "column 'I1' is '3' here",
        '"I1": Infinity': "Infinity is not JSON",
        '"I1": 1e400': "1e400 is too large",
        '"I1": [3]': "column 'I1' is \\[3\\] here",
        '"C1": 7': "column 'C1' is 7 here",
        r'"C1": "\ud800"': r"column 'C1' is '\\ud800' here",
        '"C1": ' + "[" * 5000 + "]" * 5000: "this is not JSON",
    }.items():
        for status, answer in ask(json.dumps(row)[:-1] + f", {change}}}"):
            assert status == 422 and re.search(message, answer["detail"]), (change, answer)
    for status, answer in ask(json.dumps(row).replace('"I1"', r'"\ud800"')):
        assert status == 422 and r"columns: \ud800, I2" in answer["detail"]
    for text in ('{"I1": 3}', "{}", json.dumps({n: [v] for n, v in row.items()})):
        assert [status for status, _ in ask(text)] == [422, 422]
    for text, status in {"[]": 422, "3": 422, "nonsense": 422, "[" + " " * (1 << 20): 413}.items():
        assert client.post("/score", content=text).status_code == status
    assert client.post("/scores", content="[]").json() == {"clicks": []}


def test_a_server_that_cannot_start_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("httpx")
    serving = shared("serving")
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(serving, "APP", tmp_path / "broken.py")
    with pytest.raises(SystemExit, match="ended with status 3"), serving.served(tmp_path):
        pass


def test_moving_from_nvtabular(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("tensorflow")
    pytest.importorskip("jax")
    told = run("from_nvtabular", "--rows", "2000", "--folder", tmp_path / "out")
    assert "+import tabfeed as nvt" in told and "2000 rows in 1 batches" in told
    assert re.search(r"\d\d names by the one word, \d\d elsewhere, \d gone", told)
    assert "not looked up" not in told
    assert cells(told, "nvtabular.ops.Categorify") == ["tabfeed.ops.Categorify", ""]
    migration = shared("from_nvtabular")
    assert migration.missing_arguments("ops.Clip", "min_value other") == ["other"]
    with pytest.raises(AttributeError):
        migration.find("tabfeed.ops.Nothing")


def test_reviews_from_files(tmp_path: Path) -> None:
    told = [("u", "a", "one"), ("u", "b", "two"), ("v", "a", "three"), ("u", "c", "four")]
    lines = [
        f'{{"reviewerID": "{u}", "asin": "{i}", "reviewText": "{text}", "overall": {n}.0, "x": 1}}'
        for n, (u, i, text) in enumerate(told)
    ]
    (tmp_path / "reviews.json").write_text("\n".join(lines) + "\n")
    parts = shared("deepconn_data").gather_texts(tmp_path / "reviews.json", tmp_path / "out")
    rows = [row for part in parts for row in part.to_arrow().to_pylist()]
    found = {r["rating"]: (set(r["user_text"].split()), r["item_text"]) for r in rows}
    assert found == {
        0.0: ({"two", "four"}, "three"),
        1.0: ({"one", "four"}, ""),
        2.0: (set(), "one"),
        3.0: ({"one", "two"}, ""),
    }


def test_no_folder_of_anybody_else_is_emptied(tmp_path: Path) -> None:
    showing = shared("showing")
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(SystemExit, match="holds something else"):
        showing.fresh(tmp_path)
    assert (tmp_path / "mine.txt").exists()
    made = showing.fresh(tmp_path / "new")
    (made / "result").touch()
    assert not (showing.fresh(made) / "result").exists()


# -- what holds for all of them ------------------------------------------------------------


def test_every_notebook_is_its_script() -> None:
    pytest.importorskip("jupytext")
    make = shared("make_notebooks")
    written = {p.stem: p.read_text("utf-8") for p in (EXAMPLES / "notebooks").glob("*.ipynb")}
    expected = {p.stem: make.notebook(p) for p in make.scripts()}
    stale = [n for n in expected.keys() | written.keys() if expected.get(n) != written.get(n)]
    assert not stale, f"run `make notebooks`: {stale}"
    assert "criteo_etl" in expected


@pytest.mark.parametrize(
    ("name", "small", "picture"),
    [("criteo_etl", ["--rows", "2000"], "columns.png"),
     ("movielens_torch", ["--rows", "5000", "--epochs", "1"], "genres.png")],
)  # fmt: skip
def test_a_notebook_takes_arguments_in_its_first_cell(
    name: str, small: list[str], picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES / "notebooks")
    monkeypatch.setattr(sys, "argv", ["kernel", "-f", "connection.json"])
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(EXAMPLES)])
    read = json.loads(Path(f"{name}.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in read if cell["cell_type"] == "code"]
    asked = [*small, "--folder", str(tmp_path / "out")]
    assert "sys.argv[1:] = []" in code[0]
    code[0] = code[0].replace("sys.argv[1:] = []", f"sys.argv[1:] = {asked}")
    names = {"__name__": "__main__", "__doc__": "as in a kernel"}
    for cell in code:
        exec(compile(cell, name, "exec", dont_inherit=True), names)
    assert is_picture(tmp_path / "out" / picture)


def calls(source: str, names: set[str]) -> list[set[str]]:
    """The names of the arguments of each call of one of these."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        {str(argument.arg) for argument in call.keywords}
        for call in found
        if isinstance(call.func, ast.Name) and call.func.id in names
    ]


def test_models_are_where_their_batches_are() -> None:
    """A loader takes the GPU where there is one; a model has to be told."""
    no_model_of_its_own = {"criteo_etl", "criteo_lightning"}  # which has Lightning move it
    for path in EXAMPLES.glob("*.py"):
        source = path.read_text("utf-8")
        if "tabfeed.loader.torch" not in source or path.stem in no_model_of_its_own:
            continue
        told = ["device" in given for given in calls(source, {"Loader", "TorchAsyncItr"})]
        assert all(told) or re.search(r"\.to\(\w*loader\.device\)", source), path.name


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cpu"), (2, "cuda:1"), (8, "cuda:1")])
def test_each_rank_has_a_gpu_of_its_own_or_none(
    monkeypatch: pytest.MonkeyPatch, gpus: int, device: str
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert shared("criteo_ddp").own_device() == device


def test_every_example_is_run_by_a_test_and_listed() -> None:
    sources = {p.stem: p.read_text("utf-8") for p in EXAMPLES.glob("*.py")}
    programs = [n for n, text in sources.items() if "__main__" in text]
    tests = "".join(p.read_text("utf-8") for p in Path(__file__).parent.glob("*.py"))
    run = [n for n in programs if n in tests]
    started = "".join(sources[n] for n in run)  # by one of these, as the server is
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    assert [n for n in programs if n not in run and f"{n}.py" not in started] == []
    assert [n for n in programs if f"{n}.py" not in listed] == []
