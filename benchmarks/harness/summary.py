"""From what was seen in the heats to medians and ratios.

A ratio is to the reference in the same round of the same heat: 0.5 is half as fast. The median of
the rounds' ratios is what counts; the rates themselves only show the scale, since machines are
noisy. The reference runs in every heat; its own figures are medians over all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from .contender import Contender

__all__ = ["summarise"]

Found = dict[str, Any]


def summarise(heats: Iterable[Found], known: Mapping[str, Contender]) -> Found:
    """Suites with their points and figures, and what is known of each contender."""
    suites: dict[str, Found] = {}
    people: dict[str, Found] = {}
    for heat in heats:
        suite = suites.setdefault(heat["suite"], _empty(heat["reference"]))
        suite["seconds"] += heat["seconds"]
        suite["points"] += [p for p in heat["points"] if p not in suite["points"]]
        for name, seen in heat["contenders"].items():
            _note_person(people.setdefault(name, {}), seen, known[name])
            if seen["state"] != "ok":
                suite["failed"][name] = seen["error"]
            for label in seen["points"] if seen["state"] == "ok" else ():
                figures = _figures(heat, name, label)
                if figures:
                    suite["figures"].setdefault(name, {}).setdefault(label, []).append(figures)
    for suite in suites.values():
        suite["figures"] = {
            name: {label: _merged(parts) for label, parts in points.items()}
            for name, points in suite["figures"].items()
        }
    return {"suites": suites, "contenders": people}


def _empty(reference: str) -> Found:
    return {"reference": reference, "points": [], "figures": {}, "failed": {}, "seconds": 0.0}


def _note_person(person: Found, seen: Found, who: Contender) -> None:
    person.update(
        title=who.title,
        peer=who.peer,
        delivers=who.delivers,
        shuffles=who.shuffles,
        why=who.why,
        limit=who.limit,
        most_rows=who.most_rows,
    )
    if "versions" in seen:
        person["versions"] = seen["versions"]


def _figures(heat: Found, name: str, label: str) -> Found:
    """Of one contender at one point in one heat."""
    seen = heat["contenders"][name]
    point = seen["points"][label]
    runs = point["runs"]
    if not runs:
        return {}
    reference = heat["contenders"].get(heat["reference"], {})
    theirs = reference.get("points", {}).get(label, {}).get("runs", [])
    rates = [_rate(run, point["rows"]) for run in runs]
    ratios = [a / _rate(b, point["rows"]) for a, b in zip(rates, theirs, strict=False)]
    return {
        "rates": rates,
        "ratios": [1.0] * len(rates) if name == heat["reference"] else ratios,
        "cpu": [run["cpu"] / _rows(run, point["rows"]) * 1e6 for run in runs],
        "memory": [seen["memory"]] if label == next(iter(seen["points"])) else [],
        "import_memory": [seen["import"]["memory"]],
        "rows": [point["rows"]],
        "open_s": [point["open_s"]],
        "first_s": [run["first_s"] for run in runs if "first_s" in run],
        "convert_s": [point["convert_s"]] if point["convert_s"] is not None else [],
        "fit_s": [run["fit_s"] for run in runs if "fit_s" in run],
        "transform_s": [run["transform_s"] for run in runs if "transform_s" in run],
        "slow": bool(point.get("slow")),
        "cut": not all(run.get("whole", True) for run in runs),
    }


def _rate(run: Found, rows: int) -> float:
    """Rows a second."""
    if "fit_s" in run:
        return rows / float(run["fit_s"] + run["transform_s"])
    return float(run["rows"] / run["seconds"])


def _rows(run: Found, rows: int) -> int:
    return int(run.get("rows", rows))


def _merged(parts: list[Found]) -> Found:
    """One figure from those of several heats: medians over all rounds of all of them."""
    out: Found = {}
    for key in ("cpu", "memory", "import_memory", "rows", "open_s", "first_s", "convert_s"):
        out[key] = _median([value for part in parts for value in part[key]])
    for key in ("fit_s", "transform_s"):
        out[key] = _median([value for part in parts for value in part[key]])
    ratios = [value for part in parts for value in part["ratios"]]
    out["rate"] = _median([value for part in parts for value in part["rates"]])
    out["ratio"] = _median(ratios)
    out["ratio_range"] = [min(ratios), max(ratios)] if ratios else None
    out["runs"] = sum(len(part["rates"]) for part in parts)
    out["slow"] = any(part["slow"] for part in parts)
    out["cut"] = any(part["cut"] for part in parts)
    return {key: value for key, value in out.items() if value is not None}


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
