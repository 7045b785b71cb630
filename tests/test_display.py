"""Progress bars are shown in a terminal only, never crash, and never two at once."""

import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from tabfeed import display
from tabfeed.display import progress, wanted

pty = pytest.importorskip("pty", reason="no terminals to open here")

WORK = """
import time
from tabfeed.display import progress
with progress("writing [files]", total={total}, unit="rows") as bar:
    for _ in range(5):
        bar.advance(200)
        time.sleep(0.06)
    with progress("inner", total=3) as inner:
        inner.advance()
    bar.advance({last})
print("done")
"""


def environment(**more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TABFEED_")}
    return {**env, "TERM": "xterm-256color", "COLUMNS": "100", **more}


def in_a_terminal(code: str, **more: str) -> tuple[int, str]:
    """Run Python with stderr on a terminal; its exit code and what the terminal got."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=environment(**more),
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # Linux's way of saying that the other side is closed
        pass
    finally:
        os.close(ours)
    return process.wait(), seen.decode()


def test_a_terminal_shows_a_bar_with_counts_and_speed() -> None:
    code, seen = in_a_terminal(WORK.format(total=1200, last=200))
    assert code == 0, seen
    assert "writing [files]" in seen
    assert "━" in seen
    assert re.search(r"[\d,]+/1,200 rows", seen)
    assert re.search(r"rows/s", seen)
    assert "inner" not in seen
    assert seen.rstrip().endswith("\x1b[2K"), "the line is wiped when the work is done"


@pytest.mark.parametrize(("total", "last"), [(None, 1), (0, 0), (1, 10_000), (10**12, 1)])
def test_totals_that_are_unknown_empty_or_wrong_do_no_harm(total: int | None, last: int) -> None:
    code, seen = in_a_terminal(WORK.format(total=total, last=last))
    assert code == 0, seen
    assert "writing" in seen
    assert "Traceback" not in seen


def test_a_failure_under_a_bar_arrives_and_the_next_bar_still_shows() -> None:
    code, seen = in_a_terminal("""
from tabfeed.display import progress
try:
    with progress("first", 10):
        raise ValueError
except ValueError:
    pass
with progress("second", 10) as bar:
    bar.advance()
""")
    assert code == 0, seen
    assert "first" in seen
    assert "second" in seen


def test_a_terminal_is_quiet_when_asked() -> None:
    assert in_a_terminal(WORK.format(total=1200, last=200), TABFEED_PROGRESS="0") == (0, "")


def test_a_pipe_gets_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORK.format(total=1200, last=200)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("0", False), ("", False), ("no", False), ("False", False), (" off ", False), ("1", True)],
)
def test_the_environment_decides(
    setting: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABFEED_PROGRESS", setting)
    assert wanted() is expected


class Closed:
    def isatty(self) -> bool:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("stderr", [None, Closed()])
def test_nowhere_to_write_is_nobody_to_see(stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TABFEED_PROGRESS")
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert wanted() is False


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_that_can_draw_bars_wants_them(
    widgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TABFEED_PROGRESS")
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr("tabfeed.display.find_spec", lambda name: sys.__spec__ if widgets else None)
    assert wanted() is widgets


def test_many_threads_may_advance_one_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TABFEED_PROGRESS", "1")
    with progress("forced", total=400) as bar:
        threads = [
            threading.Thread(target=lambda: [bar.advance() for _ in range(100)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert bar._bars.tasks[0].completed == 400  # type: ignore[attr-defined]
    assert not display._screen.locked()


def test_importing_does_not_load_rich() -> None:
    code = "import sys, tabfeed.display as p; p.wanted(); sys.exit('rich.progress' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
