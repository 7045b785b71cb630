"""``python -m tabfeed`` is the ``tabfeed`` command."""

from __future__ import annotations

from tabfeed.cli import main

if __name__ == "__main__":
    main()
