"""Change the code a little, many times over, and see whether the tests next to it notice.

    .venv/bin/python benchmarks/mutants.py --count 160 --out mutants.json

A mutant is one module with one small change, drawn at random: a comparison, an arithmetic sign,
`and` for `or`, a flag, a whole number. A forked process imports it in place of the module and runs
the tests next to it, until one fails. A mutant that fails no test survives, and says which test is
missing, unless the change changes nothing: whoever has looked at one and found that says so in
`SAME`. Prints one JSON object; with `--out`, the same command goes on where it ended.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEADLINE = 300.0  # seconds for the tests of one mutant; a hang is noticed

# Each module, and the tests next to it.
MODULES = {
    "tabfeed.loader.plan": ["tests/loader/test_plan.py", "tests/integration/test_saved_before.py"],
    "tabfeed.loader.position": ["tests/loader/test_position.py", "tests/loader/test_state.py"],
    "tabfeed.loader.prefetch": ["tests/loader/test_prefetch.py"],
    "tabfeed.io.commit.commit": [
        "tests/io/commit/test_commit.py",
        "tests/io/commit/test_overwriting.py",
        "tests/io/storage/test_s3.py",
        "tests/integration/test_two_writers.py",
    ],
    "tabfeed.io.write.writer": [
        "tests/io/write/test_writer.py",
        "tests/io/write/test_memory.py",
        "tests/io/write/test_file_writer.py",
        "tests/io/test_memory_needs.py",
    ],
    "tabfeed.ops.categorify": ["tests/ops/test_categorify.py", "tests/workflow/test_update.py"],
    "tabfeed.ops.state.memory": [
        "tests/ops/state/test_memory.py",
        "tests/ops/state/test_counting.py",
    ],
    "tabfeed.workflow.artefact": [
        "tests/workflow/test_artefact.py",
        "tests/workflow/test_artefact_inside.py",
    ],
}

# Mutants that change nothing a caller can see: module, the changed line, and why.
SAME: dict[tuple[str, str], str] = {
    (
        "tabfeed.loader.plan",
        "at = int(np.searchsorted(self.starts, low, side='right')) - 2",
    ): "a block before the first has no row of the range and is passed over",
    (
        "tabfeed.loader.plan",
        "twice = np.concatenate([circle, circle]).astype(dtype, copy=True)",
    ): "a copy more",
    (
        "tabfeed.io.write.writer",
        "self._rest = table.slice(rows) if table.num_rows >= rows else None",
    ): "a rest of no rows, which is passed over",
    (
        "tabfeed.loader.position",
        "saved = {'data': top.text('data'), 'rows': top.number('rows', 1), 'epoch': "
        "top.number('epoch', 0), 'step': top.number('step', 0), 'workers': top.number('workers', "
        "1, _MOST_PROCESSES, default=1), 'plan': _read_plan(_Keys(top.take('plan'), 'plan.'), "
        "plan)}",
    ): "no loader has no rows, so that a state of none is refused either way",
    (
        "tabfeed.ops.state.memory",
        "_PARTITIONS = (1, 8, 65)",
    ): "into how many parts values are divided; the groups are the same",
    (
        "tabfeed.ops.state.memory",
        "_PARTITIONS = (2, 8, 64)",
    ): "into how many parts values are divided; the groups are the same",
    (
        "tabfeed.ops.state.memory",
        "parts = [memory.new_file() for _ in range(count)] if count >= 1 else []",
    ): "a single part goes by way of a file of its own; the groups are the same",
    (
        "tabfeed.workflow.artefact",
        "old = path.parent / f'.{path.name}.saving-{secrets.token_hex(5)}'",
    ): "a longer name for a folder that is gone once the workflow is saved",
    (
        "tabfeed.workflow.artefact",
        "while (block := file.read(1 << 21)):",
    ): "a file is read in larger blocks, and has the same checksum",
    (
        "tabfeed.workflow.artefact",
        "_write(folder / CHECKSUMS, json.dumps(_checksums(folder), indent=2))",
    ): "the same JSON, indented differently",
    (
        "tabfeed.loader.prefetch",
        "def __init__(self, do: Callable[[int], T], numbers: range, *, workers: int=3, depth: "
        "int=3, spare: Callable[[Callable[[], None]], bool]=lambda wake: False, on_stop: "
        "Callable[[], None]=lambda: None) -> None:",
    ): "how many threads make the results, which are the same",
    (
        "tabfeed.loader.prefetch",
        "def __init__(self, do: Callable[[int], T], numbers: range, *, workers: int=2, depth: "
        "int=4, spare: Callable[[Callable[[], None]], bool]=lambda wake: False, on_stop: "
        "Callable[[], None]=lambda: None) -> None:",
    ): "how far ahead results are made, which are the same",
    (
        "tabfeed.io.commit.commit",
        "self._made = self._interrupted = True",
    ): "a local folder sets one on entering and no store looks; the other is set before a look",
    (
        "tabfeed.io.commit.unlocked",
        "_COPIES = 9",
    ): "how many copies run at a time",
    (
        "tabfeed.io.commit.commit",
        "for name, info in zip(new, infos, strict=False):",
    ): "there are as many infos as names",
    (
        "tabfeed.io.commit.manifest",
        "return json.dumps(body, indent=2)",
    ): "the same JSON, indented differently",
    (
        "tabfeed.io.table",
        "return 2 + sum((size for size in sizes if size is not None))",
    ): "one byte more in an estimate that chooses the number of buckets",
    (
        "tabfeed.io.write.writer",
        "return shuffled(tables, seed=self.options.seed, stream=1 + file.numbers[0] if "
        "file.numbers else 1, nbytes=self.table.estimated_bytes(file.partitions), budget=budget)",
    ): "a file without numbers has no partitions, and no rows to shuffle",
    (
        "tabfeed.io.write.writer",
        "source = self.table.in_smaller_partitions(max(1, self.limit // 17))",
    ): "rows are read in slightly smaller parts, and the order does not depend on that",
    (
        "tabfeed.io.write.writer",
        "source = self.table.in_smaller_partitions(max(2, self.limit // 16))",
    ): "rows are read in slightly larger parts, and the order does not depend on that",
    (
        "tabfeed.io.write.writer",
        "most = max(5, SpillBudget.buckets // share)",
    ): "files that a shuffle beside many others may have open; the order does not depend on that",
    (
        "tabfeed.io.table",
        "unknown = [piece for piece, size in zip(pieces, sizes, strict=False) if size is None]",
    ): "there are as many sizes as pieces",
    (
        "tabfeed.io.write.writer",
        "@dataclass(frozen=False)",
    ): "private, and neither changed nor hashed",
    (
        "tabfeed.ops.categorify",
        "self.summary_ = False",
    ): "an operator is fitted if this is not None",
    (
        "tabfeed.ops.categorify",
        "plain = [plain_array(frame.column(n), t) for n, t in zip(group, dtypes, strict=False)]",
    ): "there are as many types as columns",
    (
        "tabfeed.ops.categorify",
        "def __init__(self, freq_threshold: int | Mapping[str, int]=0, out_path: str | "
        "None=None, cat_cache: Any='host', dtype: Any=None, on_host: bool=True, encode_type: "
        "str='joint', name_sep: str='_', search_sorted: bool=False, num_buckets: int | "
        "Mapping[str, int] | None=None, vocabs: Mapping[str, Any] | None=None, max_size: int | "
        "Mapping[str, int]=0, single_table: bool=False, cardinality_memory_limit: Any=None, "
        "tree_width: Any=None, split_out: Any=2, split_every: Any=8) -> None:",
    ): "accepted for older code, and not used",
    (
        "tabfeed.ops.state.memory",
        "self._files += 2",
    ): "files have other numbers, and each still its own",
    (
        "tabfeed.ops.state.memory",
        "self._files = 1",
    ): "files have other numbers, and each still its own",
    (
        "tabfeed.workflow.artefact",
        "text = json.dumps(body, indent=2, allow_nan=False)",
    ): "the same JSON, indented differently",
    (
        "tabfeed.workflow.artefact",
        "while (block := file.read(2 << 20)):",
    ): "a file is read in larger blocks, and has the same checksum",
}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


class Mutator(ast.NodeTransformer):
    """Changes the place number `at` of a module, and counts the places."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0
        self.line = 0

    def _here(self, node: Any) -> bool:
        here = self.count == self.at
        self.count += 1
        if here:
            self.line = node.lineno
        return here

    def visit_Compare(self, node: ast.Compare) -> Any:
        """Another comparison."""
        self.generic_visit(node)
        for i, op in enumerate(node.ops):
            if type(op) in COMPARISONS and self._here(node):
                node.ops[i] = COMPARISONS[type(op)]()
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Another sign."""
        self.generic_visit(node)
        if type(node.op) in ARITHMETIC and self._here(node):
            node.op = ARITHMETIC[type(node.op)]()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """`and` for `or`."""
        self.generic_visit(node)
        if self._here(node):
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """No `not`."""
        self.generic_visit(node)
        return node.operand if isinstance(node.op, ast.Not) and self._here(node) else node

    def visit_Constant(self, node: ast.Constant) -> Any:
        """The other flag, the next number."""
        if isinstance(node.value, bool) and self._here(node):
            return ast.copy_location(ast.Constant(not node.value), node)
        if type(node.value) is int and self._here(node):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        """What an error says is not looked at."""
        return node

    def visit_arg(self, node: ast.arg) -> Any:
        """Annotations are for people."""
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """The value, not the annotation."""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """The body and the defaults, not what it returns in words."""
        returns, node.returns = node.returns, None
        self.generic_visit(node)
        node.returns = returns
        return node


def path_of(module: str) -> Path:
    """The file of a module."""
    return ROOT / "src" / Path(*module.split(".")).with_suffix(".py")


def places(module: str) -> int:
    """How many places of a module can be changed."""
    found = Mutator()
    found.visit(ast.parse(path_of(module).read_text()))
    return found.count


def mutate(module: str, at: int) -> tuple[str, int, str, str]:
    """A module with one place changed: its source, the line's number, before and after."""
    text = path_of(module).read_text()
    tree = ast.parse(text)
    before = ast.unparse(tree).splitlines()
    mutator = Mutator(at)
    tree = ast.fix_missing_locations(mutator.visit(tree))
    source = ast.unparse(tree)
    changed = [(a, b) for a, b in zip(before, source.splitlines(), strict=False) if a != b]
    old, new = changed[0] if changed else ("", "")
    return source, mutator.line, old.strip(), new.strip()


class _Replaced(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports one module from a changed source."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Found for one module alone."""
        if name != self.module:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(path_of(name)))

    def get_source(self, name: str) -> str:
        """The changed source."""
        return self.source

    def exec_module(self, module: Any) -> None:
        """Run it, with the name of the file it stands for."""
        module.__file__ = str(path_of(self.module))
        exec(compile(self.source, module.__file__, "exec"), module.__dict__)


def noticed(module: str, source: str | None) -> bool:
    """Whether some test fails, or does not end, with the changed module; None changes nothing."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        if source is not None:
            sys.meta_path.insert(0, _Replaced(module, source))
        import pytest

        # Outages of a store take seconds each, and tell of the store alone.
        options = ["-x", "-q", "-p", "no:cacheprovider", "-k", "not outage"]
        tests = [test for test in MODULES[module] if (ROOT / test).exists()]
        status = pytest.main([*options, *tests])
        os._exit(int(status != 0))
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.1)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def draw(count: int, seed: int, modules: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Places to change, as many of each module, or all it has."""
    each = -(-count // len(modules))
    for module in modules:
        every = range(places(module))
        for at in random.Random(f"{seed} {module}").sample(every, min(each, len(every))):
            yield module, at


def run(count: int, seed: int, modules: Sequence[str], out: Path | None) -> dict[str, Any]:
    """Try mutants; which survived, and the share that was noticed."""
    done: dict[str, Any] = {}
    if out is not None and out.exists():
        done = json.loads(out.read_text())["mutants"]
    result: dict[str, Any] = {}
    whole: set[str] = set()
    for module, at in draw(count, seed, modules):
        source, line, old, new = mutate(module, at)
        key = f"{module}:{line}: {old} -> {new}"
        if key not in done:
            if module not in whole and noticed(module, None):
                raise SystemExit(f"the tests next to {module} fail as it is")
            whole.add(module)
            done[key] = "noticed" if noticed(module, source) else "survived"
            print(done[key], key, file=sys.stderr, flush=True)
        if done[key] == "survived" and (module, new) in SAME:
            done[key] = f"the same: {SAME[module, new]}"
        result = summary(done)
        if out is not None:
            out.write_text(json.dumps(result, indent=1))
    return result


def summary(mutants: dict[str, str]) -> dict[str, Any]:
    """The share that was noticed of those that change something, for all and for each module."""

    def share(found: list[str]) -> dict[str, Any]:
        seen, missed = found.count("noticed"), found.count("survived")
        return {
            "mutants": len(found),
            "noticed": seen,
            "survived": missed,
            "the same": len(found) - seen - missed,
            "share noticed": round(seen / max(1, seen + missed), 3),
        }

    names = dict.fromkeys(key.split(":")[0] for key in mutants)
    return {
        **share(list(mutants.values())),
        "modules": {n: share([v for k, v in mutants.items() if k.startswith(n)]) for n in names},
        "survivors": [key for key, what in mutants.items() if what == "survived"],
        "mutants": mutants,
    }


def main() -> int:
    """Run by the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", nargs="*", choices=sorted(MODULES), default=list(MODULES))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.chdir(ROOT)
    os.environ.setdefault("TABFEED_PROGRESS", "0")
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    import polars  # noqa: F401  here, so that no mutant has to
    import pyarrow.parquet  # noqa: F401
    import torch  # noqa: F401

    print(json.dumps(run(args.count, args.seed, args.module, args.out), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
