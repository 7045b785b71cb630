"""The report as a person sees it: in a browser, at a desk and on a phone, light and dark.

Screenshots are kept in build/screenshots, or where TABFEED_SCREENSHOTS says. Without a Chromium on
the path these tests are skipped, and say so.
"""

import os
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from tabfeed.profile import compare
from tests.profile.runs import full_run, make_run, save_page

CHROMIUM = next(
    (p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on the path: the report's page was NOT looked at"
)

# Headless Chromium makes no window narrower than 500 pixels, so a phone's width is a frame inside a
# page of our own.
KEPT = Path(__file__).parents[2] / "build" / "screenshots"
SIZES = {"desktop": (1280, 1000), "phone": (390, 1000)}


def chromium(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={profile}", "--hide-scrollbars", "--enable-logging=stderr"),
        *("--disable-dev-shm-usage", *options),
    ]
    return subprocess.run(command, capture_output=True, text=True)


def pixels(path: Path) -> tuple[int, int, list[bytes]]:
    """Width, height and lines of an eight-bit PNG, unpacked by hand."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            wide, high, _, colour = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    step = {2: 3, 6: 4}[colour]
    raw, lines, before = zlib.decompress(packed), [], bytes(wide * step)
    for y in range(high):
        start = y * (wide * step + 1)
        before = unfilter(raw[start], raw[start + 1 : start + 1 + wide * step], before, step)
        lines.append(before)
    return wide, high, lines


def unfilter(kind: int, line: bytes, above: bytes, step: int) -> bytes:
    out = bytearray(line)
    for i in range(len(out)):
        left = out[i - step] if i >= step else 0
        up, corner = above[i], above[i - step] if i >= step else 0
        if kind == 1:
            out[i] = (out[i] + left) & 255
        elif kind == 2:
            out[i] = (out[i] + up) & 255
        elif kind == 3:
            out[i] = (out[i] + (left + up) // 2) & 255
        elif kind == 4:
            guess = left + up - corner
            near = min((left, up, corner), key=lambda v: abs(guess - v))
            out[i] = (out[i] + near) & 255
    return bytes(out)


def shoot(folder: Path, html: str, name: str, width: int, height: int, *, dark: bool) -> Path:
    (folder / "report.html").write_text(html, "utf-8")
    kept = Path(os.environ.get("TABFEED_SCREENSHOTS", KEPT))
    kept.mkdir(parents=True, exist_ok=True)
    picture = kept / f"{name}-{width}-{'dark' if dark else 'light'}.png"
    picture.unlink(missing_ok=True)  # of an earlier run
    shown = folder / "report.html"
    if width < 500:
        shown = folder / "frame.html"
        shown.write_text(
            f'<style>body{{margin:0}}</style><iframe src="report.html" '
            f'style="border:0;width:{width}px;height:{height}px"></iframe>'
        )
    mode = ["--blink-settings=preferredColorScheme=0"] if dark else []
    run = chromium(
        folder, *mode, f"--window-size={max(width, 500)},{height}", f"--screenshot={picture}",
        shown.as_uri(),
    )  # fmt: skip
    assert picture.exists(), run.stderr
    assert "CONSOLE" not in run.stderr, run.stderr
    return picture


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_renders(tmp_path: Path, size: str, dark: bool) -> None:
    width, height = SIZES[size]
    picture = shoot(
        tmp_path, save_page(tmp_path, full_run()), f"report-{size}", width, height, dark=dark
    )
    wide, high, lines = pixels(picture)
    assert (wide, high) == (max(width, 500), height)
    corner = lines[2][: len(lines[0]) // wide][:3]
    assert (max(corner) < 60) == dark
    colours = {line[i : i + 3] for line in lines[::4] for i in range(0, len(line), 16)}
    assert len(colours) > 30


@pytest.mark.parametrize(("size", "dark"), [("desktop", False), ("phone", True)])
def test_the_comparison_renders(tmp_path: Path, size: str, dark: bool) -> None:
    width, height = SIZES[size]
    html = compare([make_run(wait=3.0, name="fed"), full_run("tabfeed")]).to_html()
    picture = shoot(tmp_path, html, f"compare-{size}", width, height, dark=dark)
    assert picture.stat().st_size > 5_000


LONG = "a name that is rather long for a phone"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_nothing_sticks_out_sideways(tmp_path: Path, width: int, kind: str) -> None:
    """The page is no wider than its window: measured by a script the test adds, not the page's."""
    runs = [make_run(wait=3.0, name=LONG), full_run(name=LONG)]
    html = save_page(tmp_path, runs[1]) if kind == "report" else compare(runs).to_html()
    html = re.sub(r"<meta http-equiv[^>]*>", "", html)
    probe = (
        "<script>addEventListener('load',()=>{document.title="
        "document.documentElement.scrollWidth+' of '+innerWidth;"
        "parent.postMessage(document.title,'*')})</script>"
    )
    (tmp_path / "report.html").write_text(html.replace("</body>", probe + "</body>"), "utf-8")
    (tmp_path / "frame.html").write_text(
        "<p id=told></p><script>onmessage=e=>told.textContent=e.data</script>"
        f'<iframe src="report.html" style="border:0;width:{width}px;height:900px"></iframe>'
    )
    run = chromium(
        tmp_path, "--dump-dom", "--virtual-time-budget=2000", "--allow-file-access-from-files",
        (tmp_path / "frame.html").as_uri(),
    )  # fmt: skip
    found = re.search(r'id="told">(\d+) of (\d+)<', run.stdout)
    assert found, run.stdout[:500] + run.stderr
    assert int(found[1]) <= int(found[2]) == width


def test_no_request_leaves_the_page(tmp_path: Path) -> None:
    """What the page could ask for if its author slipped is refused by its own policy."""
    html = save_page(tmp_path, full_run())
    leak = '<img src="http://192.0.2.1/x.png"><script>console.log("ran")</script>'
    (tmp_path / "leak.html").write_text(html.replace("</main>", leak + "</main>"), "utf-8")
    run = chromium(tmp_path, "--dump-dom", (tmp_path / "leak.html").as_uri())
    refused = run.stderr.count("violates the following Content Security Policy")
    assert refused >= 2, run.stderr
    assert "ran" not in [line.strip() for line in run.stderr.splitlines()]
