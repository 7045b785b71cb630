"""A few thousand of the fuzzer's inputs, and what it would call a failure."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks.fuzzing.mutate import mutate_bytes, mutate_json
from benchmarks.fuzzing.targets import Target
from tabfeed.errors import TabfeedError

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_hostile_inputs_are_read_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    pytest.importorskip("torch")
    out = tmp_path / "fuzz.json"
    command = [sys.executable, ROOT / "benchmarks/fuzz.py", "--count", "3000", "--seed", "11"]
    # In a process of its own: it forks, and must not have started a thread before.
    run = subprocess.run([*command, "--out", out], capture_output=True, text=True)
    assert out.exists(), run.stderr
    found = json.loads(out.read_text())
    assert found["failures"] == []
    assert found["inputs"] == 3000
    assert run.returncode == 0


class Bad(Target):
    """Does what its inputs say."""

    name = "bad"

    def prepare(self, folder: Path) -> None:
        (folder / "words").write_text("read refused foreign nameless signal hang changed other")

    def damage(self, source: Path, where: Path, rng: random.Random) -> bool:
        words = (source / "words").read_text().split()
        word = words[int(where.name.removeprefix("bad"))]
        (where / "word").write_text(word)
        return word == "changed"

    def use(self, where: Path) -> bool:
        word = (where / "word").read_text()
        if word in ("refused", "nameless"):
            raise TabfeedError(f"{where.name} is bad" if word == "refused" else "bad")
        if word == "foreign":
            raise KeyError(word)
        if word == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        while word == "hang":
            time.sleep(1)
        return word == "read"


def test_each_failure_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fuzz.TARGETS, "bad", Bad())
    monkeypatch.setattr(fuzz, "DEADLINE", 5.0)
    out = tmp_path / "out.json"
    found = fuzz.run(["bad"], 8, 0, workers=1, out=out)
    words = ["read", "refused", "foreign", "nameless", "signal", "hang", "changed", "other"]
    assert found["outcomes"] == {"bad": dict.fromkeys(sorted(words), 1)}
    assert sorted(f["outcome"] for f in found["failures"]) == sorted(words[2:7])
    assert {p.name.split("-")[-1] for p in (tmp_path / "out").iterdir()} == set(words[2:7])
    again = fuzz.run(["bad"], 8, 0, workers=1, out=out)
    assert again["inputs"] == 8  # what was done is not done again


def test_damage_is_the_same_for_the_same_seed() -> None:
    data, value = bytes(range(200)), {"a": [1, {"b": "c"}], "d": None}
    for seed in range(300):
        one, two = (
            (
                mutate_bytes(data, random.Random(seed), within=(50, 150), tokens=[b"x"]),
                json.dumps(mutate_json(json.loads(json.dumps(value)), random.Random(seed))),
            )
            for _ in range(2)
        )
        assert one == two
        assert one[0].startswith(data[:50])
