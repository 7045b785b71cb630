"""Ctrl-C and kill -9 while a workflow fits, transforms and writes, and saves.

Each step runs in a process of its own that says when it is in the midst of it. Afterwards there
is no half-written artefact or dataset, the old one is whole if there was one, the temporary
folder is empty, at the latest after the next run, and the next run succeeds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tabfeed as nvt
from tabfeed.errors import ArtefactError, TabfeedError

SCRIPT = '''
import signal, sys, threading, time
from pathlib import Path
import tabfeed as nvt
from tabfeed import ops
from tabfeed.workflow import artefact

step, folder = sys.argv[1], Path(sys.argv[2])

interrupted, said = threading.Event(), threading.Lock()

def stop(number, frame):
    interrupted.set()
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, stop)

def here(wanted):
    """Say it once, and go no further until the signal has come."""
    if step == wanted:
        if said.acquire(blocking=False):
            print("here", flush=True)
        if threading.current_thread() is threading.main_thread():
            time.sleep(600)  # the signal's handler ends it
        interrupted.wait(600)

class Slow(ops.StatOperator):
    """Passes its columns; says when the third partition is summarised."""
    def transform(self, frame, inputs):
        here("write")
        return frame
    def partial(self, frame, inputs):
        return 1
    def merge(self, a, b):
        if a + b == 6:
            assert step == "none" or list(Path(nvt_temporary).glob("tabfeed-*")), "nothing spilled"
            here("fit")
        return a + b
    def finish(self, summary, inputs):
        self.parts_ = summary

import tempfile
nvt_temporary = tempfile.gettempdir()
texts = [f"a long enough text {i}" for i in range(3000)]
data = nvt.Dataset({"c": texts, "x": [float(i) for i in range(3000)]}, npartitions=8)
node = (["c"] >> ops.JoinGroupby("x")) + (["c"] >> ops.Categorify()) + (["x"] >> Slow())
workflow = nvt.Workflow(node)
if step != "save":
    workflow.fit(data, memory_limit="10kB")
    workflow.transform(data).to_parquet(folder / "out", overwrite=True)
whole = artefact._checksums
def slow(folder):
    here("save")
    return whole(folder)
artefact._checksums = slow
workflow = nvt.Workflow((["c"] >> ops.JoinGroupby("x")) + (["c"] >> ops.Categorify())).fit(data)
workflow.save(folder / "saved")
print("done", flush=True)
'''


def _run(step: str, folder: Path, send: int | None) -> tuple[int, str]:
    """Run the script; send it a signal when it says that it is in the midst of `step`."""
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "TABFEED_THREADS": "2"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, step, str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    if send is not None:
        line = process.stdout.readline()
        assert line == "here\n", line + process.communicate()[1]
        process.send_signal(send)
    out, err = process.communicate()
    return process.returncode, out + err


def _left(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.mark.timeout(900)  # three processes in turn; nothing waits for a time
@pytest.mark.parametrize("step", ["fit", "write", "save"])
def test_interrupted(step: str, tmp_path: Path) -> None:
    code, output = _run(step, tmp_path, signal.SIGINT)
    assert code in (1, 130, -signal.SIGINT) and "KeyboardInterrupt" in output, output
    assert _left(tmp_path / "tmp") == []
    _assert_nothing_half_done(tmp_path)
    code, _ = _run(step, tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    _assert_nothing_half_done(tmp_path)
    code, output = _run("none", tmp_path, None)
    assert code == 0, output
    assert _left(tmp_path / "tmp") == []
    assert nvt.Dataset(tmp_path / "out").num_rows == 3000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "saved", "tmp"]
    assert nvt.Workflow.load(tmp_path / "saved").output_schema.column_names == ["c_count", "c"]


def _assert_nothing_half_done(folder: Path) -> None:
    with pytest.raises(TabfeedError):
        nvt.Dataset(folder / "out")
    with pytest.raises(ArtefactError):
        nvt.Workflow.load(folder / "saved")
