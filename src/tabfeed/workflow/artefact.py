"""A fitted workflow as a folder: JSON for structure, Parquet for tables, a checksum for each.

``workflow.json`` holds the format's version, the versions of the libraries, the input
schema and the nodes; ``tables/`` what operators learned; ``checksums.json`` size and SHA-256
of every file. No pickle. Loading checks every file before it looks at any, opens nothing
outside the folder, and executes nothing from it: operators come from a registry, and functions only
from modules that the caller trusts (`tabfeed.workflow.trust`). A folder may come from anywhere, so
every value is checked (`tabfeed.workflow.values`), and whatever is wrong in one is an
`tabfeed.errors.ArtefactError` that names the place.

A folder is written under another name and renamed when it is whole, so a killed save
leaves at most a hidden folder that the next save removes. A save that is killed between renaming
the old folder and the new one leaves none of that name; the next load or save renames the new one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import polars as pl

from tabfeed.errors import ArtefactError, MissingExtraError, TabfeedError, WriteError
from tabfeed.io.storage.local import make_locked, remove_strays
from tabfeed.ops.base import Inputs, Operator, StatOperator
from tabfeed.ops.graph.node import Node, list_nodes
from tabfeed.ops.graph.plan import Plan
from tabfeed.ops.state.checks import wrong
from tabfeed.schema import Schema
from tabfeed.workflow.trust import Trust, find_calls, is_own, operator_name
from tabfeed.workflow.values import (
    Reader,
    Writer,
    check_body,
    check_checksums,
    check_params,
    require_shallow,
)

FORMAT, VERSION = "tabfeed-workflow", 1
STRUCTURE, CHECKSUMS = "workflow.json", "checksums.json"
_MOST_BYTES, _MOST_LISTED = 256 << 20, 16 << 20
_PLAIN = re.compile(r"[\w.-]+")
_LIBRARIES = ("tabfeed", "numpy", "pyarrow", "polars", "duckdb")


# -- saving -------------------------------------------------------------------------


def save(output: Node, source: Schema, path: Path, *, updatable: bool = True) -> None:
    """Write a fitted graph and the schema of its data, all of it or nothing."""
    with _saving(path), _whole_folder(path) as folder:
        writer, skip = Writer(folder), not updatable
        nodes = list_nodes(output)
        number = {node: i for i, node in enumerate(nodes)}
        written = [_node_to_json(n, number, writer, skip) for n in nodes]
        body = {
            "format": FORMAT,
            "format_version": VERSION,
            "versions": _versions(),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "input_schema": json.loads(source.to_json()),
            "output": number[output],
            "modules": sorted(writer.modules),
            "nodes": written,
        }
        require_shallow(body, f"{path}")
        text = json.dumps(body, indent=1, allow_nan=False)
        if len(text) > _MOST_BYTES:
            raise ArtefactError(
                f"{path}: what the operators learned takes {len(text):,} bytes of JSON; a saved "
                f"workflow has room for {_MOST_BYTES:,}. Keep large state in Arrow tables"
            )
        _write(folder / STRUCTURE, text)
        _write(folder / CHECKSUMS, json.dumps(_checksums(folder), indent=1))


@contextmanager
def _saving(path: Path) -> Iterator[None]:
    """What the system refuses is an error of ours that says where, why, and what to do."""
    try:
        yield
    except WriteError:
        raise
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space" if full else "check the permissions"
        before = " The workflow saved there before is untouched." if os.path.exists(path) else ""
        raise WriteError(
            f"the workflow cannot be saved to {path}: {e.strerror or e}.{before} Either {advice}, "
            "or choose another folder, and save it again"
        ) from e


def _node_to_json(
    node: Node, number: dict[Node, int], writer: Writer, skip: bool
) -> dict[str, Any]:
    where = f"{node!r}"
    name, ours = operator_name(type(node.op), where)
    if not ours:
        writer.modules.add(name.partition(":")[0])
    state = node.op.state() if node.op.is_fitted else {}
    if skip and isinstance(node.op, StatOperator):
        state |= dict.fromkeys(set(node.op.only_for_update) & set(state))
    return {
        "id": number[node],
        "operator": name,
        "params": {k: writer(v, f"{where}, {k}") for k, v in node.op.params().items()},
        "parents": [number[p] for p in node.parents],
        "dependencies": [number[d] for d in node.dependencies],
        "fitted": isinstance(node.op, StatOperator) and node.op.is_fitted,
        "state": writer.mapping(state, where),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _checksums(folder: Path) -> dict[str, Any]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): _digest(p) for p in files}


def _digest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _write(path: Path, text: str) -> None:
    """A file that is there whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def _refuse_what_is_not_ours(path: Path) -> None:
    """A folder of its own is replaced as a whole, so nothing else may be in it."""
    names = sorted(p.name for p in path.iterdir()) if path.is_dir() else [path.name]
    if names and STRUCTURE not in names:
        raise ArtefactError(
            f"{path} exists and is not a saved workflow; choose another path, or remove it first"
        )
    others = [n for n in names if n.removesuffix(".part") not in (STRUCTURE, CHECKSUMS, "tables")]
    if others:
        raise ArtefactError(
            f"{path} holds {others[0]!r} beside a saved workflow, which would be lost when the "
            "workflow is replaced; move it away, or save into a folder of the workflow's own"
        )


@contextmanager
def _whole_folder(path: Path) -> Iterator[Path]:
    """A folder that takes its name only once the block is through."""
    path = Path(os.path.abspath(path))
    if path.exists():
        _refuse_what_is_not_ours(path)
    made = _make_parents(path.parent)
    try:
        _complete(path)
        remove_strays(path.parent, f".{_escaped(path.name)}.saving-*")
        new, lock = make_locked(lambda: _new_folder(path))
        try:
            yield new
            _exchange(path, new)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            lock.release()
    except BaseException:
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # another process uses it by now
                folder.rmdir()
        raise


def _make_parents(folder: Path) -> list[Path]:
    """Make a folder and those above it; which had to be made, from the top."""
    absent = [p for p in (folder, *folder.parents) if not p.exists()][::-1]
    folder.mkdir(parents=True, exist_ok=True)
    return absent


def _exchange(path: Path, new: Path) -> None:
    """Give the new folder its name, and remove the old one."""
    old = path.parent / f".{path.name}.saving-{secrets.token_hex(4)}"
    if path.exists():
        path.rename(old)
    try:
        with contextlib.suppress(FileNotFoundError):  # another process has renamed it
            new.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    (old / CHECKSUMS).unlink(missing_ok=True)  # no longer whole, whatever happens next
    shutil.rmtree(old, ignore_errors=True)


def _new_folder(path: Path) -> Path:
    new = path.parent / f".{path.name}.saving-{secrets.token_hex(4)}"
    new.mkdir()
    return new


def _complete(path: Path) -> None:
    """Finish a save that was killed while it exchanged the old folder for the new one."""
    if path.exists():
        return
    whole = [
        p for p in path.parent.glob(f".{_escaped(path.name)}.saving-*") if (p / CHECKSUMS).is_file()
    ]
    if whole:
        newest = max(whole, key=lambda p: (p / CHECKSUMS).stat().st_mtime_ns)
        with contextlib.suppress(OSError):  # another process was faster, or the disk is read-only
            newest.rename(path)


def _escaped(name: str) -> str:
    """A name as a pattern that means just that name."""
    return re.sub(r"([*?[])", r"[\1]", name)


# -- loading ------------------------------------------------------------------------


def load(path: Path, trust: Trust) -> Plan:
    """The graph of a saved workflow, fitted as it was, resolved against the schema of its data."""
    _complete(path)
    if not (path / STRUCTURE).is_file():
        raise ArtefactError(f"{path} is not a saved workflow: it has no {STRUCTURE}")
    for name, most in ((STRUCTURE, _MOST_BYTES), (CHECKSUMS, _MOST_LISTED)):
        note = _inside(path, name)
        if not note.is_file():
            raise ArtefactError(
                f"{note} cannot be read: it is missing, or is not a file; save the workflow again"
            )
        if note.stat().st_size > most:
            raise ArtefactError(f"{note} is larger than {most:,} bytes, the most it may have")
    listed = _check_files(path)
    file = path / STRUCTURE
    body = _read_json(file)
    _check_format(body, path)
    check_body(body, f"{file}")
    calls = find_calls([[node["params"], node["state"]] for node in body["nodes"]])
    trust.require([n["operator"] for n in body["nodes"]], calls, f"{file}")
    with blaming(f"{file}: input_schema"):
        source = Schema.from_json(json.dumps(body["input_schema"]))
    return _load_graph(body, source, path, listed, trust)


@contextmanager
def blaming(at: str) -> Iterator[None]:
    """Whatever fails inside is the fault of what the folder holds at this place.

    Operators and the libraries under them meet values here that no program wrote, and may raise
    anything at all.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except (Exception, pl.exceptions.PanicException) as e:
        if isinstance(e, ArtefactError) and str(e).startswith(at.partition(": ")[0]):
            raise
        reason = str(e) if isinstance(e, TabfeedError) else f"{type(e).__name__}: {e}"
        raise ArtefactError(f"{at}: {reason}") from e


def _read_json(file: Path) -> Any:
    """A JSON file of the folder, of a depth that can be handled."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        found = json.loads(file.read_bytes(), parse_constant=refuse)
    except (OSError, ValueError, RecursionError, MemoryError) as e:
        raise ArtefactError(f"{file} cannot be read: {e!r}; save the workflow again") from e
    require_shallow(found, f"{file}")
    return found


def _check_format(body: Any, path: Path) -> None:
    found = body.get("format") if isinstance(body, dict) else None
    if found != FORMAT:
        raise ArtefactError(f"{path} is of format {found!r}, not {FORMAT!r}")
    version = body.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise wrong(f"{path / STRUCTURE}: format_version", "an integer from 1", version)
    if version > VERSION:
        versions = body.get("versions")
        writer = versions.get("tabfeed") if isinstance(versions, dict) else None
        raise ArtefactError(
            f"{path} was saved in format version {version} by tabfeed {writer}; this tabfeed "
            f"reads up to {VERSION}: upgrade it"
        )


def _check_files(path: Path) -> set[str]:
    """Every file that is listed is there, inside, and unchanged; their names."""
    listed = _read_json(path / CHECKSUMS)
    check_checksums(listed, f"{path / CHECKSUMS}: ")
    if STRUCTURE not in listed:
        raise ArtefactError(f"{path / CHECKSUMS} does not list {STRUCTURE}")
    for name, entry in listed.items():
        file = _inside(path, name)
        if not file.is_file():
            raise ArtefactError(f"{path} is incomplete: {name} is missing")
        if file.stat().st_size != entry["bytes"] or _digest(file)["sha256"] != entry["sha256"]:
            raise ArtefactError(f"{file} has changed since it was saved, or was cut short")
    return set(listed)


def _inside(folder: Path, name: str) -> Path:
    """A path inside the folder; one that leads out of it is refused, and so is any link."""
    parts = name.split("/")
    if not all(_PLAIN.fullmatch(p) and p not in (".", "..") for p in parts):
        raise ArtefactError(f"{folder} names a file outside itself: {name!r}")
    file = folder
    for part in parts:
        file = file / part
        if file.is_symlink():
            raise ArtefactError(f"{file} is a link, and may lead outside itself; copy the file")
    return file


def _load_graph(
    body: dict[str, Any], source: Schema, path: Path, listed: set[str], trust: Trust
) -> Plan:
    def find(name: Any, where: str) -> Path:
        if not isinstance(name, str):
            raise wrong(where, "the name of a file", name)
        file = _inside(path, name)
        if name not in listed:
            raise ArtefactError(f"{where}: {name!r} has no checksum")
        return file

    reader = Reader(find, trust)
    nodes: dict[int, Node] = {}
    states: dict[Node, tuple[Any, str]] = {}
    for i, entry in enumerate(body["nodes"]):
        at = f"{path / STRUCTURE}: nodes[{i}]"
        with blaming(at):
            op = _load_operator(entry, reader, at)
            parents = [nodes[k] for k in entry["parents"]]
            node = Node(op, parents, [nodes[k] for k in entry["dependencies"]])
        nodes[entry["id"]] = node
        states[node] = (entry["state"] if entry["fitted"] else None, at)

    def restore(node: Node, inputs: Inputs) -> None:
        state, at = states[node]
        if state is None:
            return
        at = f"{at}.state"
        with blaming(at):
            found = reader.mapping(state, at)
            if is_own(type(node.op)):
                node.op.check_state(found, inputs, at)
            node.op.restore(found, inputs)

    output = nodes[body["output"]]
    with blaming(f"{path / STRUCTURE}: nodes"):
        return Plan(output, source, on_inputs=restore)


def _load_operator(entry: dict[str, Any], reader: Reader, at: str) -> Operator:
    kind = reader.trust.operator(entry["operator"], f"{at}.operator")
    params = reader.mapping(entry["params"], f"{at}.params")
    if is_own(kind):
        check_params(kind, params, f"{at}.params")
    if "out_path" in params and any(is_own(k) for k in kind.__mro__):
        params["out_path"] = None  # a loaded workflow has no place to write to
    with blaming(f"{at}.params"):
        make = getattr(kind, "from_params", kind)
        made = make(**params)
    if not isinstance(made, Operator):
        raise ArtefactError(f"{at}: {entry['operator']} made {type(made).__name__}, no operator")
    return made
