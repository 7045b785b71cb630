"""How long `import tabfeed` takes: the median of fresh interpreters, less an empty one's start.

Prints one JSON object. Run with ``.venv/bin/python benchmarks/import_time.py``.
"""

import json
import platform
import statistics
import subprocess
import sys
import time

RUNS = 9


def seconds(code: str) -> float:
    """Wall time of one fresh interpreter that runs `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    seconds("import tabfeed")  # writes the bytecode, fills the page cache
    empty = [seconds("pass") for _ in range(RUNS)]
    runs = [seconds("import tabfeed") for _ in range(RUNS)]
    start = statistics.median(empty)
    result = {
        "benchmark": "import_time",
        "runs": RUNS,
        "import_s": round(statistics.median(runs) - start, 4),
        "interpreter_s": round(start, 4),
        "slowest_s": round(max(runs) - start, 4),
        "python": platform.python_version(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
