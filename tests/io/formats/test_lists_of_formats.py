"""Wherever a user is told which formats there are, it is those of `FORMATS`."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from tabfeed import Dataset
from tabfeed.cli import app
from tabfeed.io.formats.base import FORMATS
from tests.docs.pages import DOCS

NAMES = sorted(f.name for f in FORMATS)


def test_every_format_is_named_where_users_choose_one() -> None:
    about_engine = str(Dataset.__doc__).split("engine\n")[1].split("part_size\n")[0]
    assert sorted(set(re.findall(r'``"(\w+)"``', about_engine))) == NAMES
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    assert f"one of {', '.join(NAMES)}\n" in text


def test_tab_completes_the_formats_and_each_is_one(tmp_path: Path) -> None:
    line = "tabfeed convert --engine "
    asked = {
        "_TABFEED_COMPLETE": "complete_bash",
        "COMP_WORDS": line.replace(" ", "\n"),
        "COMP_CWORD": "3",
    }
    runner = CliRunner()
    found = runner.invoke(app, prog_name="tabfeed", env=asked).output.split()
    assert sorted(found) == NAMES
    for name in found:
        result = runner.invoke(app, ["inspect", "--engine", name, str(tmp_path / "none")])
        assert "there is no file or folder" in result.stderr
