"""The site builds without a warning, its links lead somewhere, and it loads nothing from afar."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT

pytest.importorskip("mkdocstrings")  # the `docs` extra needs Python 3.11
pytest.importorskip("material")


class Links(HTMLParser):
    """What a page loads, where it leads, and the places in it one can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {k: v or "" for k, v in attrs}
        self.places |= {found[k] for k in ("id", "name") if k in found}
        if tag == "a":
            self.leads += [found["href"]] if "href" in found else []
        elif tag != "meta" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loads += [found[k] for k in ("href", "src", "srcset") if k in found]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    offline = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | offline | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def links(site: Path) -> dict[Path, Links]:
    return {p: Links(p.read_text("utf-8")) for p in sorted(site.rglob("*.html"))}


def test_nothing_is_loaded_from_elsewhere(site: Path, links: dict[Path, Links]) -> None:
    assert len(links) > 40
    for page, found in links.items():
        away = [u for u in found.loads if urlsplit(u).scheme not in ("", "data")]
        assert not away and not [u for u in found.loads if u.startswith("//")], page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text("utf-8")
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", text), sheet


def test_links_lead_to_a_page_and_a_place_in_it(site: Path, links: dict[Path, Links]) -> None:
    broken = []
    for page, found in links.items():
        if page.name == "404.html":
            continue
        for url in found.leads + found.loads:
            parts = urlsplit(url)
            if parts.scheme or not (parts.path or parts.fragment):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            places = links[target].places | {"__top", ""} if target in links else {place}
            if not target.exists() or place not in places:
                broken.append((page.name, url))
    assert not broken


def test_pages_made_while_building_are_there(site: Path) -> None:
    operators = (site / "operators.html").read_text("utf-8")
    assert operators.count('class="worked"') > 30 and "<td>Rome</td>" in operators
    commands = (site / "reference" / "cli.html").read_text("utf-8")
    assert "tabfeed doctor DATA" in commands and "tags=list&lt;string&gt;" in commands
    assert "OneTableModel" in (site / "examples" / "demo_model.html").read_text("utf-8")
    films = (site / "examples" / "movielens_torch.html").read_text("utf-8")
    assert "<p>The model: a vector and a bias" in films and "# %%" not in films
    assert (site / "examples" / "notebooks" / "movielens_torch.ipynb").exists()
    assert "loader/torch/" in (site / "modules.html").read_text("utf-8")
    picture = ROOT / "benchmarks" / "results" / "bench.svg"
    landing = (site / "index.html").read_text("utf-8")
    assert ("results/bench.svg" in landing) == picture.exists()


def test_the_landing_page_has_bars_of_the_figures(site: Path) -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "bench.json").read_text("utf-8"))
    figures = found["suites"]["loading"]["figures"]
    lines = re.findall(
        r"<th>([^<]+)(?:<small>.*?</small>)?</th>\s*<td>.*?</td>\s*<td>(.*?)</td>",
        (site / "index.html").read_text("utf-8"),
    )
    assert len(lines) > 8 and ("tabfeed TorchAsyncItr", "1") in lines
    merlin = dict(lines)["merlin-dataloader 23.08"]
    assert float(merlin) == pytest.approx(figures["merlin"]["shuffled"]["ratio"], rel=0.05)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path: the site was NOT opened")
def test_the_site_works_when_opened_from_the_disk(site: Path, tmp_path: Path) -> None:
    """The theme's script ends early there if the search finds no worker: no dark, no copying."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=4000", "--dump-dom"]
    address = (site / "quickstart" / "jax.html").as_uri()
    command = [str(CHROMIUM), *options, "--enable-logging=stderr", address]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.count("md-code__button") > 2 and "<iframe hidden" in done.stdout
    assert "Uncaught" not in done.stderr, done.stderr[-2000:]
    assert (site / "search" / "search_index.js").stat().st_size > 100_000
