"""Notebooks from the examples: `make notebooks` writes them into ``examples/notebooks``.

Scripts in the percent format (cells begin with ``# %%``) become notebooks with the same cells, by
jupytext. Before them comes a cell that lets a notebook import what the scripts share and take the
arguments that they take. They hold no outputs: these would be out of date with the first change.
Scripts that start several processes, which a notebook cannot do, have no cells and get no notebook.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jupytext

HERE = Path(__file__).parent
SET_UP = """\
import sys

sys.path.insert(0, "..")  # files that the examples share
sys.argv[1:] = []  # what would follow the script on a command line, such as ["--epochs", "1"]\
"""


def scripts() -> list[Path]:
    """The examples that have cells."""
    return [p for p in sorted(HERE.glob("*.py")) if p.read_text("utf-8").startswith("# %%")]


def notebook(script: Path) -> str:
    """The notebook of a script, as text: the same text whenever the script is the same."""
    read = jupytext.read(script, fmt="py:percent").cells
    title, *text = read[0].source.split("\n", 1)
    cells = [_cell("markdown", f"# {title}\n{''.join(text)}"), _cell("code", SET_UP)]
    cells += [_cell(cell.cell_type, cell.source) for cell in read[1:]]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _cell(kind: str, source: str) -> dict[str, Any]:
    made = {"cell_type": kind, "id": "", "metadata": {}, "source": source.splitlines(keepends=True)}
    return made | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def main() -> None:
    """Write all of them, and remove those whose script is gone."""
    folder = HERE / "notebooks"
    folder.mkdir(exist_ok=True)
    made = {folder / f"{script.stem}.ipynb": notebook(script) for script in scripts()}
    for path in set(folder.glob("*.ipynb")) - made.keys():
        path.unlink()
    for path, text in made.items():
        path.write_text(text, "utf-8")
    print(f"{len(made)} notebooks are in {folder}.")


if __name__ == "__main__":
    main()
