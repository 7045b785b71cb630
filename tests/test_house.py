"""The rules of the architecture: who may import whom and what, and how full a folder may be.

The imports are read from the source, so an import inside a function counts as much as one at the
top: the rule is about what a module knows, not about when it learns it. What is public is held by
`tests/docs/test_public_names.py`.
"""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# Imports go one way: a module may import from its own row and from the rows above it.
LAYERS = [
    "errors lazy trace",
    "arguments budget display",
    "schema schema_formats",
    "hashing execute",
    "io",
    "ops",
    "workflow loader",
    "framework_utils profile doctor datagen",
    "cli testing",
]

# The same inside these packages, by sub-package or module; those of one row may know each other.
LAYERS_WITHIN = {
    "execute": [
        "executor tasks",
        "dask_cluster",
        "dask_run",
        "dask",
        "choice",
    ],
    "profile": [
        "run",
        "collect",
        "summary verdict",
        "judge",
        "report",
        "page",
        "comparison",
        "profiler",
        "script fastai keras lightning",
    ],
    "doctor": [
        "files report",
        "sample",
        "rules",
        "examine",
        "rewriter",
    ],
    "schema": [
        "dtypes textproto",
        "column",
        "schema",
        "tf_metadata",
        "merlin",
    ],
    "io": [
        "storage",
        "filters",
        "align partition",
        "formats",
        "fileset memory_needs",
        "commit",
        "table",
        "folder",
        "find_files",
        "open_table frames",
        "shuffle",
        "write",
        "dataset inspect",
    ],
    "loader": [
        "plan",
        "options",
        "read",
        "host_memory shuffle_quality",
        "row_sizes",
        "assemble",
        "prefetch position",
        "pipeline state",
        "build",
        "base_loader",
        "tensors",
        "gpu",
        "torch",
        "jax",
        "keras",
        "tensorflow",
    ],
    "workflow": [
        "compiled rows trust",
        "values",
        "artefact",
        "fit",
        "workflow",
    ],
}

# Old places of public names, which say so and import the new ones when asked.
MOVED = {"tabfeed.schema_formats", "tabfeed.loader.gpu_options", "tabfeed.loader.keras_columns"}

# Forbidden within a row: a loader takes any callable from table to table, and a workflow is one.
FORBIDDEN = {("workflow", "loader"), ("loader", "workflow")}

# Third-party modules every module may import, at the top too: the base install.
BASE = {"duckdb", "fsspec", "google_crc32c", "numpy", "polars", "pyarrow", "rich", "typer"}

# Optional ones any module may import inside a function, where they are accepted but not required.
OPTIONAL = {"pandas"}

# `loader/X/`, `framework_utils/X/` and `profile/X.py` may import, at the top too, what framework X
# stands for.
FRAMEWORKS = {
    "fastai": {"fastai", "torch"},
    "gpu": {"torch"},
    "jax": {"jax"},
    "keras": {"keras"},
    "lightning": {"lightning"},
    "tensorflow": {"keras", "tensorflow"},
    "tensors": {"torch"},
    "torch": {"torch"},
}

# Modules with a guest of their own: at the top, and inside functions only.
DASK = ("execute.dask", "execute.dask_cluster", "execute.dask_run")
GUESTS_AT_TOP = {module: {"dask", "distributed"} for module in DASK}
GUESTS_AT_TOP["loader.gpu.parquet.page_kernel"] = {"triton"}
GUESTS_AT_TOP["loader.jax.torch_chunks"] = {"torch"}
GUESTS_AT_TOP["loader.keras.tf_data"] = {"tensorflow"}
GUESTS_IN_FUNCTIONS = {"io": {"dask"}, "ops": {"tokenizers"}}


MOST_FILES = 15  # in a folder; one that needs more wants sub-packages

# Not private, for all their underscores: of NamedTuple, and of torch's sparse tensors.
UNDERSCORED = {"_asdict", "_fields", "_make", "_replace", "_indices", "_values"}


@dataclass(frozen=True)
class Import:
    """`module` imports `name`: at the top, or else inside a function or for types only."""

    module: str
    name: str
    line: int
    at_top: bool

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}, imports {self.name}"


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name; a package goes by its own name."""
    found = {}
    for path in sorted(SRC.glob("tabfeed/**/*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def is_module(name: str) -> bool:
    """Whether `name` is a module of ours, there already or named in LAYERS."""
    return name in MODULES or name in {f"tabfeed.{part}" for row in LAYERS for part in row.split()}


def imports_of(module: str, tree: ast.AST, *, is_package: bool) -> Iterator[Import]:
    """Each import in `tree`, absolute; `from p import m` gives `p.m` where that is a module."""

    def visit(node: ast.AST, at_top: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, child.lineno, at_top)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    up = child.level - 1 if is_package else child.level
                    parts = module.split(".")
                    base = ".".join([*parts[: len(parts) - up], *([base] if base else [])])
                for alias in child.names:
                    full = f"{base}.{alias.name}"
                    yield Import(module, full if is_module(full) else base, child.lineno, at_top)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for part in child.body:
                    yield from visit(ast.Module([part], []), False)
                for part in child.orelse:
                    yield from visit(ast.Module([part], []), at_top)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, at_top and not function)

    yield from visit(tree, True)


def part_of(name: str) -> str:
    """`io` for `tabfeed.io.formats.parquet.file`; the empty string for `tabfeed` itself."""
    return [*name.split("."), ""][1]


def row_of(part: str) -> int | None:
    return next((i for i, row in enumerate(LAYERS) if part in row.split()), None)


def breach_inside(imported: Import) -> str | None:
    """What is wrong with an import of one part of tabfeed by another, if anything is."""
    here, there = part_of(imported.module), part_of(imported.name)
    if here in ("", "__main__"):
        return None
    if here == there:
        return breach_within(imported, LAYERS_WITHIN.get(here, []))
    if there == "":
        return f"{imported}: the package imports its parts, not the other way; name the part"
    mine, other = row_of(here), row_of(there)
    if mine is None or other is None:
        return f"{imported}: {here if mine is None else there} is in no row of LAYERS; give it one"
    if (here, there) in FORBIDDEN:
        return f"{imported}: {here} and {there} do not know each other"
    if other > mine:
        return f"{imported}: {there} stands above {here} in LAYERS' order; imports go one way"
    return None


def breach_within(imported: Import, rows: list[str]) -> str | None:
    """What is wrong with an import of one part of a package by another, if anything is."""
    here, there = ([*name.split("."), ""][2] for name in (imported.module, imported.name))
    if not rows or here == there or not here or imported.module in MOVED:
        return None
    if not there:
        return f"{imported}: name the module, not the package that holds both"
    row = {part: i for i, parts in enumerate(rows) for part in parts.split()}
    if here not in row or there not in row:
        return f"{imported}: {here if here not in row else there} is in no row of LAYERS_WITHIN"
    if row[there] > row[here]:
        return f"{imported}: {there} stands above {here} in LAYERS_WITHIN; imports go one way"
    return None


def framework_of(module: str) -> str | None:
    parts = module.split(".")
    if len(parts) > 2 and parts[1] in ("loader", "framework_utils", "profile"):
        return parts[2] if parts[2] in FRAMEWORKS else None
    return None


def breach_outside(imported: Import) -> str | None:
    """What is wrong with an import from outside tabfeed, if anything is."""
    name = imported.name.split(".")[0]
    if name in BASE or name in sys.stdlib_module_names:
        return None
    local = imported.module.removeprefix("tabfeed.")
    framework = framework_of(imported.module)
    at_top = GUESTS_AT_TOP.get(local, set()) | FRAMEWORKS.get(framework or "", set())
    if name in at_top:
        return None
    in_functions = OPTIONAL | GUESTS_IN_FUNCTIONS.get(part_of(imported.module), set())
    if name not in in_functions:
        return f"{imported}: it may not import {name}; see the tables in {Path(__file__).name}"
    if imported.at_top:
        return f"{imported}: {name} is optional here; import it inside the function that needs it"
    return None


def breach(imported: Import) -> str | None:
    inside = imported.name.split(".")[0] == "tabfeed"
    return breach_inside(imported) if inside else breach_outside(imported)


def breaches(module: str, source: str, *, is_package: bool = False) -> list[str]:
    found = imports_of(module, ast.parse(source), is_package=is_package)
    return [text for imported in found if (text := breach(imported))]


def test_every_module_has_a_layer() -> None:
    parts = {part_of(module) for module in MODULES} - {"", "__main__"}
    homeless = sorted(part for part in parts if row_of(part) is None)
    assert not homeless, f"give these a row in LAYERS: {homeless}"


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    path = MODULES[module]
    found = breaches(module, path.read_text("utf-8"), is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("tabfeed.schema", "from tabfeed.io import Dataset", "imports go one way"),
        ("tabfeed.schema", "def f():\n    from tabfeed import io", "imports go one way"),
        ("tabfeed.io.formats.text.csv", "from ....ops import Op", "imports go one way"),
        ("tabfeed.io.formats.text.csv", "from tabfeed import Dataset", "name the part"),
        ("tabfeed.io.formats.text.csv", "import tabfeed.nowhere", "nowhere is in no row"),
        ("tabfeed.io.storage.files", "from tabfeed.io.dataset import Dataset", "LAYERS_WITHIN"),
        ("tabfeed.io.write.plan", "from tabfeed.io.dataset import Dataset", "LAYERS_WITHIN"),
        ("tabfeed.loader.plan", "from tabfeed.loader.read import blocks", "LAYERS_WITHIN"),
        ("tabfeed.loader.plan", "import tabfeed.workflow.graph", "do not know each other"),
        ("tabfeed.workflow.fit", "from tabfeed.loader import torch", "do not know each other"),
        ("tabfeed.loader.jax", "import torch", "may not import torch"),
        ("tabfeed.loader.plan", "def f():\n    import torch", "may not import torch"),
        ("tabfeed.ops.lists", "def f():\n    import dask", "may not import dask"),
        ("tabfeed.execute.executor", "import distributed", "may not import distributed"),
        ("tabfeed.io.formats.memory", "import dask.dataframe", "inside the function"),
        (
            "tabfeed.schema",
            "try:\n    import pandas\nfinally: ...",
            "inside the function",
        ),
    ],
)
def test_a_breach_is_seen(module: str, source: str, expected: str) -> None:
    (found,) = breaches(module, source)
    assert expected in found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "tabfeed.io.formats.text.csv",
            "import json, pyarrow.csv\nfrom tabfeed.io.storage.files import Source",
        ),
        (
            "tabfeed.io.formats.text.csv",
            "from .source import Source\nfrom ....errors import TabfeedError",
        ),
        ("tabfeed.io.formats.memory", "def f():\n    import dask.dataframe as dd"),
        ("tabfeed.io.formats.memory", "if TYPE_CHECKING:\n    import pandas as pd"),
        ("tabfeed.io.dataset", "def f():\n    from tabfeed.io.write import plan"),
        ("tabfeed.execute.dask", "from distributed import Client\nimport dask"),
        ("tabfeed.loader.tensorflow", "import keras, tensorflow as tf"),
        ("tabfeed.framework_utils.torch.layers", "from torch import nn"),
        ("tabfeed.profile.verdict", "from tabfeed.loader import torch"),
    ],
)
def test_a_rightful_import_is_allowed(module: str, source: str) -> None:
    assert breaches(module, source) == []


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True)


def test_importing_tabfeed_loads_no_framework() -> None:
    heavy = {"dask", "distributed", "fastai", "jax", "keras", "pandas", "sklearn", "tensorflow"}
    heavy |= {"lightning", "matplotlib", "scipy", "torch"}
    code = "import sys, tabfeed; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert heavy & set(run.stdout.split()) == set()


def test_polars_imported_first_has_found_numpy_before_threads_look_for_it() -> None:
    code = """
import polars, sys
assert "numpy" not in sys.modules, "NumPy was there before: nothing is tested"
import tabfeed
print(hasattr(sys.modules["polars._dependencies"].numpy, "__lazy__"))
"""
    run = run_python(code)
    assert run.stdout == "False\n", run.stderr


def listing_modules() -> list[str]:
    """The modules without a leading underscore that list names in ``__all__``."""
    shown = (name for name in MODULES if not any(p.startswith("_") for p in name.split(".")))
    listing = re.compile("^__all__ = ", re.M)
    return [name for name in shown if listing.search(MODULES[name].read_text("utf-8"))]


def listing_order(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then the rest: the order `make format` sorts to."""
    return 0 if name.isupper() else 1 if name[0].isupper() else 2, name


@pytest.mark.parametrize("module", listing_modules())
def test_listed_names_are_sorted_and_there(module: str) -> None:
    needed = FRAMEWORKS.get(framework_of(module) or "", set())
    needed = needed | GUESTS_AT_TOP.get(module.removeprefix("tabfeed."), set())
    for name in sorted(needed):
        pytest.importorskip(name)
    loaded = importlib.import_module(module)
    assert list(loaded.__all__) == sorted(set(loaded.__all__), key=listing_order)
    missing = [name for name in loaded.__all__ if not hasattr(loaded, name)]
    assert not missing, f"{module}.__all__ names what is not there: {missing}"


@pytest.mark.parametrize("module", [m for m in MODULES if MODULES[m].name == "__init__.py"])
def test_a_package_that_offers_names_says_which(module: str) -> None:
    body = ast.parse(MODULES[module].read_text("utf-8")).body
    offers = [node for node in body if not isinstance(node, ast.Expr)]
    offers = [n for n in offers if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")]
    assert not offers or module in listing_modules(), f"{module} has names but no __all__"


def test_the_frameworks_live_together() -> None:
    wanted = ["torch", "tensorflow", "keras", "jax", "lightning"]
    wanted += ["fastai.basics", "fastai.tabular.all"]
    here = [name for name in wanted if importlib.util.find_spec(name.split(".")[0])]
    run = run_python("; ".join(f"import {name}" for name in here))
    assert run.returncode == 0, run.stderr


def test_no_warning_filter_is_set_for_a_while() -> None:
    """It would be that of all threads, and could be put back in the wrong order."""
    found = [
        p.name
        for p in SRC.rglob("*.py")
        if re.search(r"^ *with warnings\.catch_warnings", p.read_text(), re.M)
    ]
    assert found == []


def files_by_folder() -> Counter[str]:
    return Counter(p.parent.relative_to(SRC).as_posix() for p in SRC.rglob("*.py"))


def test_a_folder_is_read_at_a_glance() -> None:
    fuller = {f: n for f, n in files_by_folder().items() if n > MOST_FILES}
    assert not fuller, "make sub-packages, named for what they do"


def is_private(name: str) -> bool:
    return name[0] == "_" and name[1:2] != "_" and name not in UNDERSCORED


def own_private_names(tree: ast.AST) -> set[str]:
    """Private names that a module gives itself: functions, classes, variables, attributes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def private_uses(tree: ast.AST, own: set[str], ours: set[str]) -> set[str]:
    """Private names of ours that a module uses, by import or as attributes, and has not itself.

    An attribute of ``self`` may come from a base class, so it counts only where it belongs to
    another object.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tabfeed":
            found |= {alias.name for alias in node.names if is_private(alias.name)}
        elif isinstance(node, ast.Attribute) and node.attr in ours - own:
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            found |= set() if of_self else {node.attr}
    return found


def all_private_uses() -> dict[str, set[str]]:
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}
    own = {name: own_private_names(tree) for name, tree in trees.items()}
    ours = set().union(*own.values())
    found = {name: private_uses(tree, own[name], ours) for name, tree in trees.items()}
    for path in (SRC.parent / "benchmarks").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        found[str(path)] = private_uses(tree, own_private_names(tree), ours)
    return {name: uses for name, uses in found.items() if uses}


def test_no_module_uses_the_private_names_of_another() -> None:
    assert all_private_uses() == {}, "make these public, or move them"


def test_a_private_use_is_seen() -> None:
    source = "from tabfeed.io import _a\nx._b + self._c + y._d + z._replace()\n_d = 1"
    tree = ast.parse(source)
    assert private_uses(tree, own_private_names(tree), {"_b", "_c", "_d"}) == {"_a", "_b"}
