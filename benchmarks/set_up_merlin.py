"""Sets up merlin-dataloader and NVTabular 23.08 in `.venv-merlin`, an environment of their own.

    make bench ARGS="--merlin"

They need Python 3.11 and packages of 2023, which must not come near tabfeed's own. Where the
environment is there already, nothing happens; remove the folder to set it up anew.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parent / ".venv-merlin"


def python_3_11() -> str:
    """An interpreter of that version."""
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    found = shutil.which("python3.11")
    if found is None:
        raise SystemExit("merlin-dataloader 23.08 needs Python 3.11; there is no `python3.11` here")
    return found


def main() -> None:
    """Make it, unless it is there whole."""
    done = VENV / "done"
    if done.exists():
        return
    print(f"Setting up {VENV.name}: merlin-dataloader and NVTabular 23.08 (some minutes) ...")
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([python_3_11(), "-m", "venv", str(VENV)], check=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
    install = [*pip, "install", "--no-warn-conflicts"]
    subprocess.run([*install, "-r", str(HERE / "requirements-merlin.txt")], check=True)
    alone = str(HERE / "requirements-merlin-alone.txt")
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "-r", alone], check=True)
    done.touch()


if __name__ == "__main__":
    main()
