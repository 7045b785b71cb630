"""A fitted workflow as a folder: JSON for structure, Parquet for tables, a checksum for each.

``workflow.json`` holds the format's version, the versions of the libraries, the input
schema and the nodes; ``tables/`` what operators learned; ``checksums.json`` size and SHA-256
of every file. No pickle. Loading checks every file before it looks at any, opens nothing
outside the folder, and executes nothing from it.

A folder is written under another name and renamed when it is whole, so a killed save
leaves at most a hidden folder that the next save removes. Killed in the instant between the old
folder's leaving and the new one's coming, there is none of that name; whoever asks next, to load
or to save, gives the new one its name.
"""

from __future__ import annotations

import contextlib
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
from typing import TYPE_CHECKING, Any

from tabfeed.errors import ArtefactError, SchemaError
from tabfeed.io.temporary import make_locked, remove_strays
from tabfeed.ops.base import Inputs, Operator, StatOperator
from tabfeed.ops.node import Node, iter_nodes
from tabfeed.ops.plan import Plan
from tabfeed.schema import Schema
from tabfeed.workflow.values import Reader, Writer, import_path, resolve

if TYPE_CHECKING:
    from tabfeed.workflow.workflow import Workflow

__all__ = ["load", "save"]

FORMAT, VERSION = "tabfeed-workflow", 1
STRUCTURE, CHECKSUMS = "workflow.json", "checksums.json"
_LIBRARIES = ("tabfeed", "numpy", "pyarrow", "polars", "duckdb")


# -- saving -------------------------------------------------------------------------


def save(workflow: Workflow, path: Path, *, updatable: bool = True) -> None:
    """Write a fitted workflow, all of it or nothing."""
    if path.exists() and not _is_ours(path):
        raise ArtefactError(
            f"{path} exists and is not a saved workflow; choose another path, or remove it first"
        )
    with _whole_folder(path) as folder:
        writer, skip = Writer(folder), not updatable
        nodes = list(iter_nodes(workflow.output_node))
        number = {node: i for i, node in enumerate(nodes)}
        body = {
            "format": FORMAT,
            "format_version": VERSION,
            "versions": _versions(),
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "input_schema": json.loads(workflow.input_schema.to_json()),
            "output": number[workflow.output_node],
            "nodes": [_node_to_json(n, number, writer, skip) for n in nodes],
        }
        _write(folder / STRUCTURE, json.dumps(body, indent=1, allow_nan=False))
        _write(folder / CHECKSUMS, json.dumps(_checksums(folder), indent=1))


def _node_to_json(
    node: Node, number: dict[Node, int], writer: Writer, skip: bool
) -> dict[str, Any]:
    where = f"{node!r}"
    state = node.op.state() if node.op.is_fitted else {}
    if skip and isinstance(node.op, StatOperator):
        state |= dict.fromkeys(set(node.op.only_for_update) & set(state))
    return {
        "id": number[node],
        "operator": _class_path(node.op, where),
        "params": {k: writer(v, f"{where}, {k}") for k, v in node.op.params().items()},
        "parents": [number[p] for p in node.parents],
        "dependencies": [number[d] for d in node.dependencies],
        "fitted": isinstance(node.op, StatOperator) and node.op.is_fitted,
        "state": writer.mapping(state, where),
    }


def _class_path(op: Operator, where: str) -> str:
    """Where an operator's class is imported from; ours by their public place."""
    from tabfeed import ops

    kind = type(op)
    if getattr(ops, kind.__name__, None) is kind:
        return f"tabfeed.ops:{kind.__name__}"
    return import_path(kind, where)


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


def _is_ours(path: Path) -> bool:
    return path.is_dir() and ((path / STRUCTURE).is_file() or not any(path.iterdir()))


@contextmanager
def _whole_folder(path: Path) -> Iterator[Path]:
    """A folder that takes its name only once the block is through."""
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    _complete(path)
    remove_strays(path.parent, f".{_escaped(path.name)}.saving-*")
    new, lock = make_locked(lambda: _new_folder(path))
    old = path.parent / f".{path.name}.saving-{secrets.token_hex(4)}"
    try:
        yield new
        if path.exists():
            path.rename(old)
        with contextlib.suppress(FileNotFoundError):  # somebody else has given it its name
            new.rename(path)
        (old / CHECKSUMS).unlink(missing_ok=True)  # no longer whole, whatever happens next
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        lock.release()


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


def load(path: Path) -> tuple[Node, Schema]:
    """The graph of a saved workflow, fitted as it was, and the schema of its data."""
    _complete(path)
    if not (path / STRUCTURE).is_file():
        raise ArtefactError(f"{path} is not a saved workflow: it has no {STRUCTURE}")
    _check_files(path)
    try:
        body = json.loads((path / STRUCTURE).read_text(encoding="utf-8"))
        _check_format(body, path)
        source = Schema.from_json(json.dumps(body["input_schema"]))
        return _load_graph(body, source, path), source
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as e:
        if isinstance(e, SchemaError):
            raise ArtefactError(f"{path}: {e}") from e
        raise ArtefactError(f"{path / STRUCTURE} is not what a saved workflow holds: {e!r}") from e


def _check_format(body: dict[str, Any], path: Path) -> None:
    if body["format"] != FORMAT:
        raise ArtefactError(f"{path} is of format {body['format']!r}, not {FORMAT!r}")
    if body["format_version"] > VERSION:
        raise ArtefactError(
            f"{path} was saved in format version {body['format_version']} by tabfeed "
            f"{body['versions'].get('tabfeed')}; this tabfeed reads up to {VERSION}: upgrade it"
        )


def _check_files(path: Path) -> None:
    """Every file that is listed is there, inside, and unchanged."""
    try:
        listed = json.loads((path / CHECKSUMS).read_text(encoding="utf-8"))
        items = [(name, entry["bytes"], entry["sha256"]) for name, entry in listed.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise ArtefactError(
            f"{path / CHECKSUMS} cannot be read: {e!r}; save the workflow again"
        ) from e
    if STRUCTURE not in listed:
        raise ArtefactError(f"{path / CHECKSUMS} does not list {STRUCTURE}")
    for name, size, digest in items:
        file = _inside(path, name)
        if not file.is_file():
            raise ArtefactError(f"{path} is incomplete: {name} is missing")
        if file.stat().st_size != size or _digest(file)["sha256"] != digest:
            raise ArtefactError(f"{file} has changed since it was saved, or was cut short")


def _inside(folder: Path, name: Any) -> Path:
    """A path inside the folder; one that leads out of it is refused, links included."""
    file = folder / str(name)
    outside = Path(str(name)).is_absolute() or ".." in Path(str(name)).parts
    if outside or not file.resolve().is_relative_to(folder.resolve()):
        raise ArtefactError(f"{folder} names a file outside itself: {name!r}")
    return file


def _load_graph(body: dict[str, Any], source: Schema, path: Path) -> Node:
    listed = json.loads((path / CHECKSUMS).read_text(encoding="utf-8"))

    def find(name: Any) -> Path:
        file = _inside(path, name)
        if name not in listed:
            raise ArtefactError(f"{path} uses {name!r}, for which it has no checksum")
        return file

    reader = Reader(find)
    nodes: dict[int, Node] = {}
    states: dict[Node, Any] = {}
    for entry in body["nodes"]:
        op = _load_operator(entry, reader)
        parents = [nodes[i] for i in entry["parents"]]
        node = Node(op, parents, [nodes[i] for i in entry["dependencies"]])
        nodes[entry["id"]] = node
        if entry["fitted"]:
            states[node] = entry["state"]

    def restore(node: Node, inputs: Inputs) -> None:
        if node in states:
            node.op.restore(reader(states[node], f"{node!r}"), inputs)

    output = nodes[body["output"]]
    Plan(output, source, on_inputs=restore)
    return output


def _load_operator(entry: dict[str, Any], reader: Reader) -> Operator:
    name = entry["operator"]
    kind = resolve(name, f"operator {name}")
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        raise ArtefactError(f"{name!r} is not an operator")
    params = {k: reader(v, f"{name}, {k}") for k, v in entry["params"].items()}
    make = getattr(kind, "from_params", kind)
    made = make(**params)
    assert isinstance(made, Operator)
    return made
