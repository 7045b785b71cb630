"""The code in the seed documents, read from where they lie, made ready to run here."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[3] / "shared" / "seeds"


def seed(number: str) -> str:
    """The text of a seed; skips the test where the folder is absent."""
    found = sorted(FOLDER.glob(f"{number}*.txt"))
    if not found:
        pytest.skip(f"{FOLDER} is absent, so there is no seed {number} to run")
    return found[0].read_text("utf-8")


def adapt(code: str) -> str:
    """Change the package's name, straighten quotes, and leave the GPU out where there is none."""
    code = code.replace("nvtabular", "tabfeed")
    code = code.replace("\u2018", "'").replace("\u2019", "'")
    return code if torch.cuda.is_available() else code.replace(".cuda()", "")


def markdown_blocks(text: str) -> list[str]:
    """The Python blocks of a markdown text."""
    blocks = re.findall(r"^( *)```python\n(.*?)^\1```", text, flags=re.M | re.S)
    return [adapt(textwrap.dedent(body)) for _, body in blocks]


def notebook_cells(text: str) -> list[str]:
    """The code cells of a notebook."""
    cells = json.loads(text)["cells"]
    return [adapt("".join(c["source"])) for c in cells if c["cell_type"] == "code"]
