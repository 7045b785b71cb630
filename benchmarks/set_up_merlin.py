"""Sets up merlin-dataloader, NVTabular 23.08 and Petastorm in `.venv-merlin`, apart from the rest.

    python benchmarks/set_up_merlin.py      # `make bench` does so by itself

They need Python 3.11 and packages of 2023, which must not come near tabfeed's own. Where there is
no Python 3.11, this says so and the benchmark goes on without them. An environment made from the
same lists of requirements stays as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parent / ".venv-merlin"
LISTS = (HERE / "requirements-merlin.txt", HERE / "requirements-merlin-alone.txt")


def python_3_11() -> str | None:
    """An interpreter of that version."""
    return sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")


def main() -> None:
    """Make it, unless it is there whole."""
    done, wanted = VENV / "done", "".join(path.read_text("utf-8") for path in LISTS)
    if done.exists() and done.read_text("utf-8") == wanted:
        return
    python = python_3_11()
    if python is None:
        print(
            "There is no python3.11 here, so merlin-dataloader, NVTabular and Petastorm stay out."
        )
        return
    print(f"Setting up {VENV.name}: merlin-dataloader, NVTabular, Petastorm (some minutes) ...")
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([python, "-m", "venv", str(VENV)], check=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
    install = [*pip, "install", "--no-warn-conflicts"]
    subprocess.run([*install, "-r", str(LISTS[0])], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "-r", str(LISTS[1])], check=True)
    done.write_text(wanted, "utf-8")


if __name__ == "__main__":
    main()
