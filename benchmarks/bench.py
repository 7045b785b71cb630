"""tabfeed against its peers: one picture, one page, one JSON file.

    make bench                              # all of it, under 20 minutes on two cores
    make bench ARGS="--merlin"              # first set up merlin-dataloader and NVTabular 23.08
    make bench ARGS="--full"                # 16 M rows and 1,000 columns too
    make bench ARGS="--only ray lance"      # only these, beside tabfeed
    make bench ARGS="--suites loading"      # only these

Contenders run in turn, each in a process of its own; every figure is a ratio within one such run,
the median of five. One that fails or takes too long is reported, and the rest go on. An interrupted
run goes on where it stopped; ``--fresh`` begins anew. A part of the contenders, or other sizes than
the usual, leave the committed results alone: theirs go to ``build/bench/results``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.harness.about import about, code_version  # noqa: E402
from benchmarks.harness.contender import contenders  # noqa: E402
from benchmarks.harness.heat import Settings, run_heat  # noqa: E402
from benchmarks.harness.store import Store, write_json  # noqa: E402
from benchmarks.harness.suites import SUITES, Options, estimate, heats  # noqa: E402
from benchmarks.harness.summary import summarise  # noqa: E402

USUAL_ROWS = 2_000_000


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="contenders or adapter files")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--full", action="store_true", help="the long ends of the axes too")
    parser.add_argument("--merlin", action="store_true", help="set up the incumbents first")
    parser.add_argument("--rows", type=int, default=USUAL_ROWS)
    parser.add_argument("--feature-rows", type=int, default=0, help="a tenth of --rows by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="longest one run over the data")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--results", type=Path, help="where JSON and picture go")
    parser.add_argument("--page", type=Path, help="where the page goes")
    parser.add_argument("--fresh", action="store_true", help="forget the heats already run")
    parser.add_argument("--list", action="store_true", help="show contenders and heats, run none")
    parser.add_argument("--report", action="store_true", help="only draw and write from the JSON")
    return parser.parse_args(arguments)


def places(args: argparse.Namespace) -> tuple[Path, Path]:
    """Where results and page go: the committed ones only for a whole run of the usual size."""
    usual = not args.only and set(args.suites) == set(SUITES) and args.rows == USUAL_ROWS
    results = args.results or (
        ROOT / "benchmarks" / "results" if usual else args.folder / "results"
    )
    page = args.page or (ROOT / "docs" if usual else args.folder / "results") / "benchmarks.md"
    return results, page


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All heats, each kept as soon as it is done."""
    options = Options(
        folder=args.folder,
        rows=args.rows,
        feature_rows=args.feature_rows or args.rows // 10,
        full=args.full,
        only=tuple(args.only),
        suites=tuple(args.suites),
    )
    settings = Settings(rounds=args.rounds, seconds=args.seconds, logs=args.folder / "logs")
    store = Store(args.folder / "heats", code_version())
    if args.fresh:
        store.clear()
    plans = heats(options)
    left = [estimate(plan, settings) for plan in plans]
    _say(f"{len(plans)} heats, about {_minutes(sum(left))}; logs in {settings.logs}")
    started, found = time.monotonic(), []
    for number, plan in enumerate(plans):
        path = store.path(plan, options, settings)
        kept = store.get(path)
        _say(
            f"[{number + 1}/{len(plans)}] {plan.suite}: {', '.join(plan.names)}"
            + (" (kept)" if kept else f" (about {_minutes(sum(left[number:]))} left)")
        )
        if kept is None:
            kept = run_heat(plan.make(options), settings)
            store.put(path, kept)
        _tell(kept)
        found.append(kept)
    result = {"about": about(), "settings": _settings(args, options, started)}
    return {**result, **summarise(found, contenders())}


def _settings(args: argparse.Namespace, options: Options, started: float) -> dict[str, Any]:
    return {
        "rows": options.rows,
        "feature_rows": options.feature_rows,
        "full": options.full,
        "rounds": args.rounds,
        "seconds": args.seconds,
        "code": code_version(),
        "took_s": round(time.monotonic() - started),
    }


def _tell(heat: dict[str, Any]) -> None:
    """One line a contender."""
    figures = summarise([heat], contenders())["suites"][heat["suite"]]["figures"]
    for name, seen in heat["contenders"].items():
        if seen["state"] != "ok":
            _say(f"    {name}: {seen['error']}")
        for label, figure in figures.get(name, {}).items():
            rate, ratio = figure["rate"] / 1e6, figure.get("ratio")
            share = "" if ratio is None else f", {ratio:.3f} of {heat['reference']}"
            _say(f"    {name}, {label}: {rate:.3f} M rows/s{share}")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """Set up if asked to, run, write."""
    args = parse()
    results, page = places(args)
    if args.merlin:
        subprocess.run([sys.executable, str(ROOT / "benchmarks" / "set_up_merlin.py")], check=True)
    if args.list:
        for who in contenders().values():
            _say(f"{who.name:24} {who.title} [{', '.join(who.suites)}]")
        return
    if not args.report:
        write_json(results / "bench.json", run(args))
    from benchmarks.harness.page import write_page
    from benchmarks.harness.picture import draw

    draw(results / "bench.json", results)
    write_page(results / "bench.json", page)
    _say(f"wrote {results / 'bench.json'}, bench.svg, bench.png and {page}")


if __name__ == "__main__":
    main()
