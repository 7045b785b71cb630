"""Compare two checkouts of tabfeed: the same benchmark, by turns. Prints JSON.

    python benchmarks/by_turns.py --old ../before --rounds 5 -- serve.py --rows 2000

Each round runs the benchmark once in each checkout, the other one first every second round, so
that a noisy machine disturbs both alike. Every number that the benchmark prints is compared: the
median of the old code, of the new, and the median of new / old over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Each number in the JSON of a benchmark, with its path; a list of them is its median."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}/{key}")
    elif isinstance(value, list) and value and all(isinstance(v, (int, float)) for v in value):
        yield path, statistics.median(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, float(value)


def measure(checkout: Path, command: list[str]) -> dict[str, float]:
    """Run one benchmark with the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    script = [sys.executable, str(checkout / "benchmarks" / command[0]), *command[1:]]
    out = subprocess.run(script, env=environment, cwd=checkout, stdout=subprocess.PIPE, check=True)
    return dict(numbers(json.loads(out.stdout)))


def main() -> None:
    """Run the benchmark in both checkouts, by turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--old", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("command", nargs="+", help="a script of benchmarks/ and its arguments")
    args = parser.parse_args()
    checkouts = {"old": args.old.resolve(), "new": HERE}
    runs: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    for number in range(args.rounds):
        for name in ("old", "new") if number % 2 == 0 else ("new", "old"):
            runs[name].append(measure(checkouts[name], args.command))
    found = {}
    for key in runs["new"][0]:
        old, new = ([run[key] for run in runs[name] if key in run] for name in ("old", "new"))
        if len(old) == len(new) == args.rounds:
            ratios = [n / o for n, o in zip(new, old, strict=True) if o]
            found[key] = {
                "old": statistics.median(old),
                "new": statistics.median(new),
                "new / old": round(statistics.median(ratios), 3) if ratios else None,
            }
    print(json.dumps({"benchmark": args.command, "rounds": args.rounds, "found": found}, indent=1))


if __name__ == "__main__":
    main()
