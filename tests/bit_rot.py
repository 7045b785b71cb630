"""Damage as a failing disk does it: other bytes in a file that nobody has written."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def rot(path: Path, data: bytes) -> None:
    """Put `data` into a file; the time of its last change stays.

    A disk would leave ctime alone too. Nobody can set it, but other rights explain that it moved.
    """
    facts = path.stat()
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    mode = stat.S_IMODE(facts.st_mode)
    path.chmod(mode & ~stat.S_IRWXO | (mode + 1) & stat.S_IRWXO)  # others than before, each time
