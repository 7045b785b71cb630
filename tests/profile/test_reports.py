"""Terminal, page and comparison, on runs written by hand."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tabfeed.errors import ArgumentError
from tabfeed.profile import Run, compare
from tests.profile.runs import Finished, full_run, make_run, save_page


class Check(HTMLParser):
    """Every element is closed, and nothing refers to anything outside of the page."""

    VOID = ("meta", "rect", "path", "polyline", "polygon")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "a", "image", "use")
        assert not {"src", "href", "srcset", "action"} & {name for name, _ in attrs}
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("run", [full_run(), make_run(), make_run(model=False, wait=1.0)])
def test_the_page_is_whole_and_alone(run: Run, tmp_path: Path) -> None:
    text = save_page(tmp_path, run)
    Check(text)
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"https?://", text)
    assert "default-src 'none'" in text
    assert "nan" not in text.lower().replace("nanosecond", "")


def test_the_page_tells_all(tmp_path: Path) -> None:
    shown = " ".join(Check(save_page(tmp_path, full_run())).text)
    for words in (
        "Starved by the transform",
        "What to do",
        "NVIDIA H200",
        "GPU busy",
        "Steps over time",
        "Queue",
        "queue full",
        "of the ceiling",
        "The numbers",
    ):
        assert words in shown


def test_threads_are_named_by_what_they_do_and_runs_as_they_are(tmp_path: Path) -> None:
    shown = Check(save_page(tmp_path, full_run())).text
    assert {"training loop", "loader 0"} < set(shown)
    compared = Check(compare([full_run("MainThread"), full_run("b")]).to_html()).text
    assert any(text.startswith("MainThread · ") for text in compared)
    assert "training loop" not in " ".join(compared)


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    text = save_page(tmp_path, full_run(name="<script>alert(1)</script>"))
    assert "<script>" not in text
    assert "LogOp &lt;b&gt;&amp;" in text


def test_the_terminal_tells_the_same() -> None:
    text = Finished(full_run()).report()
    assert text.splitlines()[1].startswith("│ Starved by the transform")
    for words in ("GPU busy", "reading and decoding", "start-up", "all of it", "MainThread"):
        assert words in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "\x1b" not in text


def test_comparison(tmp_path: Path) -> None:
    fed = make_run(wait=3.0, name="fed", gpu_busy=((0.0, 0.3),))
    ours = make_run(wait=0.0, name="tabfeed", gpu_busy=((0.0, 0.9),))
    both = compare([fed, ours])
    rows = {name: cells for name, *cells in both.rows()}
    assert rows["seconds"] == ["4.1 s", "1.1 s"]
    assert rows["GPU busy"] == ["30 %", "90 %"]
    assert rows["speedup"] == ["1.00", "4.00"]
    assert rows["waiting for data"] == ["75 %", "0 %"]
    assert "fed" in str(both) and "4.00" in str(both)
    assert [d["cause"] for d in both.to_dict()] == ["input", "compute"]
    shown = " ".join(Check(both.save(tmp_path / "both.html").read_text()).text)
    assert "4.00" in shown


def test_comparison_of_files_and_what_is_refused(tmp_path: Path) -> None:
    import json

    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(full_run(name=name).to_dict()))
    both = compare([tmp_path / "a.json", str(tmp_path / "b.json")])
    assert both.runs[0] == full_run(name="a")
    for wrong in ([], [full_run()], "a.json"):
        with pytest.raises(ArgumentError, match="two or more"):
            compare(wrong)
    with pytest.raises(ArgumentError, match=r"end in \.html"):
        both.save(tmp_path / "x.png")


def test_a_comparison_says_what_changed() -> None:
    fed = make_run(wait=3.0, name="fed", loader={"kind": "iterable", "name": "generator"})
    run = make_run(name="ours")
    run = replace(run, steps=replace(run.steps, rows=2_000_000))
    told = {row[0]: row[1:] for row in compare([fed, run]).rows()}
    assert told["rows per batch"] == ("10,000", "20,000")
    assert told["changed"] == (
        "",
        "tabfeed torch.Loader instead of generator, batches of 20,000 rows instead of 10,000",
    )
    assert compare([fed, run]).to_dict()[0]["changed"] == []
    assert "changed" not in [row[0] for row in compare([fed, fed]).rows()]
