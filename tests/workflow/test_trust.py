"""Loading a workflow runs no code, and touches no file, that the folder chooses."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tabfeed as nvt
from tabfeed import ops
from tabfeed.errors import ArgumentError, ArtefactError
from tests.workflow.test_artefact import rewrite

DATA = {"c": ["b", "a", "b"], "x": [1.0, 2.5, 4.0]}

HERE = """
import os
import os.path
import numpy
import polars as pl
from tabfeed import ops
from pathlib import Path
Path(__file__).with_name("ran").touch()

def thrice(column):
    return column * 3

class Tools:
    @staticmethod
    def negative(column):
        return -column

class Triple(ops.Operator):
    def __init__(self, by=3):
        self.by = by
    def transform(self, frame, inputs):
        return frame.select(pl.col(n) * self.by for n in inputs.names)

alias = thrice
VALUE = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Writes `its_functions` to a folder that Python imports from; gives it, imported anew."""
    (tmp_path / "code" / "its_package").mkdir(parents=True)
    (tmp_path / "code" / "its_functions.py").write_text(HERE)
    (tmp_path / "code" / "its_package" / "__init__.py").write_text("")
    (tmp_path / "code" / "its_package" / "inner.py").write_text(HERE)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))

    def fresh(name: str = "its_functions") -> Any:
        import importlib

        found = importlib.import_module(name)
        for known in [m for m in sys.modules if m.startswith("its_")]:
            del sys.modules[known]
        for mark in (tmp_path / "code").rglob("ran"):
            mark.unlink()
        return found

    yield fresh
    for known in [m for m in sys.modules if m.startswith("its_")]:
        del sys.modules[known]


def ran(tmp_path: Path) -> bool:
    return any((tmp_path / "code").rglob("ran"))


def save(node: Any, folder: Path) -> Path:
    nvt.Workflow(node).fit(DATA).save(folder)
    return folder


def named(folder: Path, operator: str) -> None:
    rewrite(folder, lambda body: body["nodes"][1].update(operator=operator))


# -- what needs no permission ---------------------------------------------------------


def test_tabfeed_s_own_operators_and_ufuncs_need_nothing(tmp_path: Path) -> None:
    node = (["c"] >> ops.Categorify()) + (["x"] >> ops.LambdaOp(np.log1p) >> ops.Normalize())
    folder = save(node, tmp_path / "w")
    body = json.loads((folder / "workflow.json").read_text())
    assert body["modules"] == []
    assert "tabfeed.ops:LambdaOp" in [n["operator"] for n in body["nodes"]]
    loaded = nvt.Workflow.load(folder)
    assert loaded.transform(pa.table(DATA)).column_names == ["c", "x"]


def test_a_ufunc_that_is_not_numpy_s_cannot_be_found_again(tmp_path: Path) -> None:
    mine = np.frompyfunc(abs, 1, 1)
    with pytest.raises(ArtefactError, match="has no name to import it by"):
        save(["x"] >> ops.LambdaOp(mine, dtype="float64"), tmp_path / "w")


def half(column: Any) -> Any:
    return column / 2


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def times(self, column: Any) -> Any:
        return column * self.by

    @classmethod
    def double(cls, column: Any) -> Any:
        return column * 2


@functools.wraps(half)
def seventh(column: Any) -> Any:
    return column / 7


@pytest.mark.parametrize("function", [seventh, Scale(10.0).times])
def test_a_function_that_its_name_does_not_lead_to_is_refused(
    tmp_path: Path, function: Any
) -> None:
    with pytest.raises(ArtefactError, match="something else is found under that name"):
        save(["x"] >> ops.LambdaOp(function, dtype="float64"), tmp_path / "w")
    assert not (tmp_path / "w").exists()


def test_a_class_method_is_found_again(tmp_path: Path) -> None:
    folder = save(["x"] >> ops.LambdaOp(Scale.double, dtype="float64"), tmp_path / "w")
    loaded = nvt.Workflow.load(folder, trusted=[__name__])
    assert loaded.transform({"x": 1.5}) == {"x": 3.0}


@pytest.mark.parametrize("trusted", [None, 1, [1]])
def test_what_is_trusted_is_names_of_modules(tmp_path: Path, trusted: Any) -> None:
    folder = save(["x"] >> ops.Normalize(), tmp_path / "w")
    with pytest.raises(ArgumentError, match="give names of modules, or True"):
        nvt.Workflow.load(folder, trusted=trusted)


class Nameless:
    """Something callable that has no name of its own."""

    def __call__(self, column: pl.Series) -> pl.Series:
        return column


@pytest.mark.parametrize("function", [functools.partial(np.add, 1), Nameless(), str.upper])
def test_what_has_no_name_cannot_be_saved(tmp_path: Path, function: Any) -> None:
    with pytest.raises(ArtefactError, match="has no name to import it by"):
        save(["x"] >> ops.LambdaOp(function, dtype="float64"), tmp_path / "w")


# -- what does ------------------------------------------------------------------------


def test_a_module_is_not_imported_unless_it_is_trusted(
    module: Callable[[], Any], tmp_path: Path
) -> None:
    theirs = module()
    twice = ["x"] >> ops.LambdaOp(theirs.thrice)
    node = twice + (["x"] >> ops.LambdaOp(theirs.Tools.negative) >> ops.Rename(name="z"))
    folder = save(node + (["x"] >> theirs.Triple() >> ops.Rename(name="y")), tmp_path / "w")
    assert json.loads((folder / "workflow.json").read_text())["modules"] == ["its_functions"]
    with pytest.raises(ArtefactError) as caught:
        nvt.Workflow.load(folder)
    message = str(caught.value)
    for name in ("its_functions:thrice", "its_functions:Tools.negative", "its_functions:Triple"):
        assert name in message
    assert "Workflow.load(path, trusted=['its_functions'])" in message
    assert "operators=[...]" in message
    assert not ran(tmp_path) and "its_functions" not in sys.modules
    for trusted in (["its_functions"], "its_functions", True):
        loaded = nvt.Workflow.load(folder, trusted=trusted)
        assert loaded.transform(pa.table(DATA)).to_pydict() == {
            "x": [3.0, 7.5, 12.0], "z": [-1.0, -2.5, -4.0], "y": [3.0, 7.5, 12.0],
        }  # fmt: skip
    assert ran(tmp_path)


@pytest.mark.parametrize("trusted", [(), False, ["its_function"], ["its_functions.more"], ["os"]])
def test_trust_in_another_module(module: Callable[[], Any], tmp_path: Path, trusted: Any) -> None:
    folder = save(["x"] >> ops.LambdaOp(module().thrice), tmp_path / "w")
    with pytest.raises(ArtefactError, match="uses code that is not tabfeed's"):
        nvt.Workflow.load(folder, trusted=trusted)
    assert not ran(tmp_path)


@pytest.mark.parametrize("trusted", ["its_package", "its_package.inner"])
def test_a_package_stands_for_its_modules(
    module: Callable[[str], Any], tmp_path: Path, trusted: str
) -> None:
    folder = save(["x"] >> ops.LambdaOp(module("its_package.inner").thrice), tmp_path / "w")
    loaded = nvt.Workflow.load(folder, trusted=[trusted])
    assert loaded.transform({"x": 2.0}) == {"x": 6.0}


@pytest.mark.parametrize(
    "call",
    [
        "os:system",
        "subprocess:call",
        "builtins:eval",
        "pip:main",
        "numpy:load",
        "numpy:add.reduce.__self__",
        "pyarrow:_os",
        "polars.io.csv.functions:read_csv",
        "tabfeed.workflow.artefact:os.system",
        "tabfeed.io.storage.local:TemporaryFolder",
        "workflow.evil:f",
        "",
        "thrice",
        ":thrice",
        ".its_functions:thrice",
        "its_functions:",
        "its_functions:thrice:more",
        None,
        7,
        ["os:system"],
    ],
)
def test_no_other_function_is_found(tmp_path: Path, call: Any) -> None:
    folder = save(["x"] >> ops.LambdaOp(np.log1p), tmp_path / "w")
    rewrite(folder, lambda body: body["nodes"][1]["params"].update(f={"$call": call}))
    with pytest.raises(ArtefactError, match=r"workflow\.json: "):
        nvt.Workflow.load(folder)


@pytest.mark.parametrize(
    "where",
    [
        lambda call: {"f": {"$dict": [["a", {"$tuple": [call]}]]}},
        lambda call: {"f": np.log1p, "properties": {"deep": [[call]]}},
    ],
)
def test_functions_are_found_however_deep(tmp_path: Path, where: Any) -> None:
    folder = save(["x"] >> ops.LambdaOp(np.log1p), tmp_path / "w")

    def change(body: dict[str, Any]) -> None:
        params = where({"$call": "os:system"})
        body["nodes"][1]["params"] = {
            k: {"$call": "numpy:log1p"} if v is np.log1p else v for k, v in params.items()
        }

    rewrite(folder, change)
    with pytest.raises(ArtefactError, match="code that is not tabfeed's: os:system"):
        nvt.Workflow.load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "its_functions:os.system",
        "its_functions:os.path.join",
        "its_functions:numpy.load",
        "its_functions:Path",
        "its_functions:alias",
        "its_functions:VALUE",
        "its_functions:nothing",
        "its_functions:thrice.__globals__",
        "its_functions:__builtins__.eval",
        "its_functions:Triple.__init__.__globals__",
    ],
)
def test_what_a_trusted_module_imports_is_not_trusted(
    module: Callable[[], Any], tmp_path: Path, name: str
) -> None:
    folder = save(["x"] >> ops.LambdaOp(module().thrice), tmp_path / "w")
    rewrite(folder, lambda body: body["nodes"][1]["params"].update(f={"$call": name}))
    with pytest.raises(ArtefactError, match=r"is defined elsewhere|has no"):
        nvt.Workflow.load(folder, trusted=["its_functions"])


def test_what_a_trusted_module_lacks(tmp_path: Path, module: Callable[[], Any]) -> None:
    folder = save(["x"] >> ops.LambdaOp(module().thrice), tmp_path / "w")
    (tmp_path / "code" / "its_functions.py").write_text("1 / 0")
    with pytest.raises(ArtefactError, match="failed while it was imported: ZeroDivisionError"):
        nvt.Workflow.load(folder, trusted=["its_functions"])
    (tmp_path / "code" / "its_functions.py").unlink()
    with pytest.raises(ArtefactError, match="install the package that defines it"):
        nvt.Workflow.load(folder, trusted=["its_functions"])


def test_trusted_takes_names(tmp_path: Path) -> None:
    folder = save(["x"] >> ops.Normalize(), tmp_path / "w")
    with pytest.raises(ArgumentError, match="give names of modules, or True"):
        nvt.Workflow.load(folder, trusted=[sys])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="not a subclass"):
        nvt.Workflow.load(folder, operators=[len])  # type: ignore[list-item]


# -- operators ------------------------------------------------------------------------


class Below(ops.StatOperator):
    """Distance from the largest value."""

    def transform(self, frame: pl.LazyFrame, inputs: ops.Inputs) -> pl.LazyFrame:
        return frame.select((self.max_[n] - pl.col(n)).alias(n) for n in inputs.names)

    def partial(self, frame: pl.LazyFrame, inputs: ops.Inputs) -> Any:
        return frame.select(pl.col(n).max() for n in inputs.names).collect().row(0, named=True)

    def merge(self, a: Any, b: Any) -> Any:
        return {n: max(a[n], b[n]) for n in a}

    def finish(self, summary: Any, inputs: ops.Inputs) -> None:
        self.max_ = summary


def test_an_operator_that_is_passed(tmp_path: Path) -> None:
    folder = save(["x"] >> Below(), tmp_path / "w")
    with pytest.raises(ArtefactError, match=f"{__name__}:Below"):
        nvt.Workflow.load(folder)
    loaded = nvt.Workflow.load(folder, operators=[Below])
    assert loaded.transform({"x": 1.0}) == {"x": 3.0}


def test_an_operator_that_is_registered(tmp_path: Path) -> None:
    @ops.register
    class Half(ops.Operator):
        def transform(self, frame: pl.LazyFrame, inputs: ops.Inputs) -> pl.LazyFrame:
            return frame.select(pl.col(n) / 2 for n in inputs.names)

    folder = save(["x"] >> Half(), tmp_path / "w")  # though nobody could import it
    assert nvt.Workflow.load(folder).transform({"x": 1.0}) == {"x": 0.5}


def test_an_operator_that_nobody_could_import_and_that_is_not_registered(tmp_path: Path) -> None:
    class Half(ops.Operator):
        def transform(self, frame: pl.LazyFrame, inputs: ops.Inputs) -> pl.LazyFrame:
            return frame.select(pl.col(n) / 2 for n in inputs.names)

    folder = save(["x"] >> ops.LogOp(), tmp_path / "w")
    named(folder, f"{__name__}:{Half.__qualname__}")
    with pytest.raises(ArtefactError, match="not the name of an operator"):
        nvt.Workflow.load(folder)
    assert nvt.Workflow.load(folder, operators=[Half]).transform({"x": 1.0}) == {"x": 0.5}


def test_an_operator_saved_by_the_script_that_defines_it(tmp_path: Path) -> None:
    folder = save(["x"] >> Below(), tmp_path / "w")
    named(folder, "__main__:Below")
    with pytest.raises(ArtefactError, match="__main__:Below"):
        nvt.Workflow.load(folder)
    loaded = nvt.Workflow.load(folder, operators=[Below])
    assert loaded.transform({"x": 1.0}) == {"x": 3.0}


@pytest.mark.parametrize(
    "name",
    [
        "tabfeed.ops:NoSuchOp",
        "tabfeed.ops:Operator",
        "tabfeed.ops:StatOperator",
        "tabfeed.ops:Node",
        "tabfeed.ops.keyed.base:KeyedOperator",
        "tabfeed:Dataset",
    ],
)
def test_tabfeed_has_no_other_operators(tmp_path: Path, name: str) -> None:
    folder = save(["x"] >> ops.Normalize(), tmp_path / "w")
    named(folder, name)
    with pytest.raises(ArtefactError, match=f"'{name}' is not an operator of this tabfeed"):
        nvt.Workflow.load(folder, trusted=True)


@pytest.mark.parametrize("name", ["no_such_module:Op", "os:system", "pathlib:Path"])
def test_no_other_operator_is_found(tmp_path: Path, name: str) -> None:
    folder = save(["x"] >> ops.Normalize(), tmp_path / "w")
    named(folder, name)
    with pytest.raises(ArtefactError, match=f"not tabfeed's: {name}"):
        nvt.Workflow.load(folder)
    with pytest.raises(ArtefactError, match=name):
        nvt.Workflow.load(folder, trusted=True)


def test_a_file_in_the_folder_is_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(["x"] >> ops.Normalize(), tmp_path / "its_workflow")
    (folder / "evil.py").write_text(HERE)
    monkeypatch.syspath_prepend(str(tmp_path))
    named(folder, "its_workflow.evil:Triple")
    with pytest.raises(ArtefactError, match=r"its_workflow\.evil:Triple"):
        nvt.Workflow.load(folder)
    assert not (folder / "ran").exists()


# -- files ----------------------------------------------------------------------------


def test_the_other_table_of_a_join_is_kept_and_never_a_path(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"c": ["a", "b"], "price": [1, 2]}), other)
    folder = save(["x"] >> ops.JoinExternal(str(other), on="c"), tmp_path / "w")
    kept = other.read_bytes()
    other.unlink()
    assert nvt.Workflow.load(folder).transform({"c": "a", "x": 1.0}) == {"x": 1.0, "price": 1}
    other.write_bytes(kept)
    for path in (str(other), [str(other)], {"c": ["a"], "price": [3]}):
        rewrite(folder, lambda body: body["nodes"][2]["params"].update(df_ext=path))  # noqa: B023
        with pytest.raises(ArtefactError, match=r"nodes\[2\]\.params\.df_ext: expected a Table"):
            nvt.Workflow.load(folder)


def test_a_given_vocabulary_is_kept_and_never_a_path(tmp_path: Path) -> None:
    given = tmp_path / "given.parquet"
    pq.write_table(pa.table({"c": ["a", "b"]}), given)
    folder = save(["c"] >> ops.Categorify(vocabs={"c": str(given)}), tmp_path / "w")
    kept = given.read_bytes()
    given.unlink()
    assert nvt.Workflow.load(folder).transform({"c": "b"}) == {"c": 4}
    given.write_bytes(kept)
    for path in (str(given), ["a"]):
        rewrite(folder, lambda body: body["nodes"][1]["params"].update(vocabs={"c": path}))  # noqa: B023
        with pytest.raises(ArtefactError, match=r"params\.vocabs\.c: expected a Array"):
            nvt.Workflow.load(folder)


@pytest.mark.parametrize(
    "node",
    [
        lambda: ["c"] >> ops.Categorify(),
        lambda: ["c"] >> ops.JoinGroupby("x"),
        lambda: ["c"] >> ops.TargetEncoding("x"),
    ],
)
def test_a_later_fit_writes_nowhere(tmp_path: Path, node: Any) -> None:
    folder = save(node(), tmp_path / "w")

    def change(body: dict[str, Any]) -> None:
        for entry in body["nodes"]:
            if "out_path" in entry["params"]:
                entry["params"]["out_path"] = str(tmp_path / "outside")

    rewrite(folder, change)
    assert "outside" in (folder / "workflow.json").read_text()
    loaded = nvt.Workflow.load(folder)
    loaded.fit(DATA)
    loaded.update(DATA)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w"]


# -- subclasses of tabfeed's operators ----------------------------------------------------


class Ids(ops.Categorify):
    """An operator of the user's that takes what Categorify takes."""


class Prices(ops.JoinExternal):
    """An operator of the user's that takes what JoinExternal takes."""


def test_a_subclass_reads_no_path_that_a_folder_names(tmp_path: Path) -> None:
    outside = tmp_path / "outside.parquet"
    pq.write_table(pa.table({"c": ["secret"]}), outside)
    ids, prices = tmp_path / "ids", tmp_path / "prices"
    save(["c"] >> Ids(vocabs={"c": ["a", "b"]}), ids)
    rewrite(ids, lambda b: b["nodes"][1]["params"].update(vocabs={"c": str(outside)}))
    save(["c"] >> Prices(pa.table({"c": ["a"], "z": [1]}), on="c"), prices)

    def change(body: dict[str, Any]) -> None:
        for node in body["nodes"]:
            if node["operator"].endswith("Prices"):
                node["params"]["df_ext"] = str(outside)

    rewrite(prices, change)
    for folder, message in ((ids, "'c' is not an array"), (prices, "df_ext is not a table")):
        with pytest.raises(ArtefactError, match=message):
            nvt.Workflow.load(folder, operators=[Ids, Prices])


def test_a_subclass_writes_nowhere_that_a_folder_names(tmp_path: Path) -> None:
    folder = save(["c"] >> Ids(), tmp_path / "w")
    chosen = tmp_path / "chosen"
    rewrite(folder, lambda b: b["nodes"][1]["params"].update(out_path=str(chosen)))
    nvt.Workflow.load(folder, operators=[Ids]).fit(DATA)
    assert not chosen.exists()
