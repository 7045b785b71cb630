"""Without its framework, a door says which command installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

DOORS = [
    ("tabfeed.loader.torch", "torch"),
    ("tabfeed.loader.jax", "jax"),
    ("tabfeed.loader.keras", "keras"),
    ("tabfeed.loader.tensorflow", "tensorflow"),
    ("tabfeed.framework_utils.torch", "torch"),
]


@pytest.mark.parametrize(("door", "extra"), DOORS)
def test_the_error_names_the_extra(door: str, extra: str) -> None:
    # None in sys.modules makes an import fail as if the library were not installed.
    code = f"import sys; sys.modules[{extra!r}] = None; import {door}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "MissingExtraError" in last
    assert f'pip install "tabfeed[{extra}]"' in last
