"""The demo runs, at a small size, proves what it says, and ends with a report."""

from __future__ import annotations

import re
import subprocess
import sys
import webbrowser
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_from_raw_files_to_a_report(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "demo.py")]
    options = ["--rows", "20000", "--folder", "out"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert "No row was lost: 20,000 rows before and after" in told
    assert told.count("the profiler's verdict") == 2
    assert f"the report {(tmp_path / 'out' / 'report.html').as_uri()}" in told
    _check_report(tmp_path / "out" / "report.html")


def _check_report(report: Path) -> None:
    page = report.read_text("utf-8")
    assert page.count('class="sentence"') == 2
    assert "Make the features" in page
    links = re.findall(r'href="([^"]+)"', page)
    assert links == ["tabfeed.html", "row_by_row.html", "side_by_side.html"]
    for link in links:
        assert "</html>" in (report.parent / link).read_text("utf-8")


@pytest.fixture
def demo_report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo_report  # type: ignore[import-not-found]

    return demo_report  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("terminal", "display", "opened"),
    [(True, ":0", True), (True, "", False), (False, ":0", False)],
)
def test_the_browser_opens_only_where_somebody_sees_it(
    terminal: bool,
    display: str,
    opened: bool,
    demo_report: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert demo_report.open_in_browser(tmp_path / "report.html") is opened
    assert asked == ([(tmp_path / "report.html").as_uri()] if opened else [])
