"""tabfeed against its peers: one picture, one page, one JSON file.

    make bench                              # all of it, under 20 minutes on two cores
    make bench ARGS="--only ray lance"      # only these, beside tabfeed
    make bench ARGS="--suites loading"      # only these

Contenders run in turn, each in a process of its own; every figure is a ratio within one such run,
the median of five. One that fails or takes too long is reported, and the rest go on.

An interrupted run goes on where it stopped, unless the code changed meanwhile; ``--fresh`` begins
anew, ``--stop-after`` stops by itself. A part of the contenders, or other sizes than the usual,
leave the committed results and the README alone: theirs go to ``build/bench/results``.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.harness.about import about, code_digest, code_version  # noqa: E402
from benchmarks.harness.contender import contenders  # noqa: E402
from benchmarks.harness.heat import Settings, run_heat  # noqa: E402
from benchmarks.harness.store import Store, write_json  # noqa: E402
from benchmarks.harness.suites import (  # noqa: E402
    BANDWIDTH,
    LATENCY,
    SUITES,
    Options,
    Plan,
    estimate,
    heats,
)
from benchmarks.harness.summary import summarise  # noqa: E402

USUAL_ROWS = 1_000_000


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="contenders or adapter files")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--rows", type=int, default=USUAL_ROWS)
    parser.add_argument(
        "--feature-rows", type=int, default=0, help="a twentieth of --rows by default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="longest one run after its first batch"
    )
    parser.add_argument(
        "--stop-after", type=float, default=math.inf, help="seconds; then go on later"
    )
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


class Unfinished(Exception):
    """Time is up; what was measured is kept."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All heats, each kept as soon as it is done."""
    options = Options(
        folder=args.folder,
        rows=args.rows,
        feature_rows=args.feature_rows or args.rows // 20,
        only=tuple(args.only),
        suites=tuple(args.suites),
    )
    settings = Settings(rounds=args.rounds, seconds=args.seconds, logs=args.folder / "logs")
    store = Store(args.folder / "heats", code_digest())
    if args.fresh:
        store.clear()
    found = run_heats(heats(options), options, settings, store, args.stop_after)
    took = sum(heat["seconds"] for heat in found)
    result = {"about": about(), "settings": _settings(options, settings, took)}
    return {**result, **summarise(found, contenders())}


def run_heats(
    plans: list[Plan], options: Options, settings: Settings, store: Store, stop_after: float
) -> list[dict[str, Any]]:
    """Those not yet run; the rest from the store."""
    paths = [store.path(plan, options, settings) for plan in plans]
    left = sum(estimate(p) for p, path in zip(plans, paths, strict=True) if not path.exists())
    _say(f"{len(plans)} heats, about {_minutes(left)} to go; logs in {settings.logs}")
    start, found, ran = time.monotonic(), [], 0
    for number, (plan, path) in enumerate(zip(plans, paths, strict=True)):
        kept = store.get(path)
        title = f"[{number + 1}/{len(plans)}] {plan.title}"
        if kept is None:
            if ran and time.monotonic() - start + estimate(plan) > stop_after:
                raise Unfinished(f"stopped before {title}; the same command goes on")
            _say(f"{title} (about {_minutes(left)} left)")
            left -= estimate(plan)
            begun = time.monotonic()
            with plan.ready(options) as heat:
                kept = run_heat(heat, settings)
            kept["seconds"] = time.monotonic() - begun  # making the data counts
            store.put(path, kept)
            _tell(kept)
            ran += 1
        else:
            _say(f"{title} (kept)")
        found.append(kept)
    return found


def _settings(options: Options, settings: Settings, took: float) -> dict[str, Any]:
    return {
        "rows": options.rows,
        "feature_rows": options.feature_rows,
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "latency": LATENCY,
        "bandwidth": BANDWIDTH,
        "code": code_version(),
        "took_s": round(took),
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
    """Run and write."""
    args = parse()
    results, page = places(args)
    if args.list:
        for who in contenders().values():
            _say(f"{who.name:24} {who.title} [{', '.join(who.suites)}]")
        for plan in heats(Options(args.folder)):
            _say(f"about {_minutes(estimate(plan)):>7}: {plan.title}")
        return
    if not args.report:
        try:
            write_json(results / "bench.json", run(args))
        except Unfinished as e:
            raise SystemExit(str(e)) from None
    report(results / "bench.json", page)


def report(source: Path, target: Path) -> None:
    """Draw and write: the README's figures too, where the committed page is written."""
    from benchmarks.harness.page import write_page
    from benchmarks.harness.picture import draw
    from benchmarks.harness.readme import write_readme

    draw(source, source.parent)
    write_page(source, target)
    if target.parent == ROOT / "docs":
        write_readme(source.parent, ROOT / "README.md")
    _say(f"wrote {source}, bench.svg, bench.png and {target}")


if __name__ == "__main__":
    main()
