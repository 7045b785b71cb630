"""Which code a saved workflow may use, decided before any of it is imported.

tabfeed's own operators and NumPy's ufuncs may always be named. An operator of the user's is found
among those registered (`tabfeed.ops.register`) or passed to `tabfeed.Workflow.load`. Anything else
is imported by name, and only from modules that the caller trusts: importing a module runs it, so a
name in a file is not enough.

A function must be saved under the name that it has where it is defined. So a trusted module that
imports ``os`` does not make ``trusted_module:os.system`` available.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from tabfeed import ops
from tabfeed.errors import ArgumentError, ArtefactError
from tabfeed.ops.base import Operator, class_name, registered
from tabfeed.ops.graph.node import Concat, Dependencies, Exclude, Selection, Subset
from tabfeed.ops.graph.subgraph import Entrance, Loop

_ADVICE = (
    "put `def my_function(column): ...` into a module that can be imported where the workflow is "
    "loaded, and use `from my_module import my_function`"
)

# Part of the format: the names stay when the classes move.
_STRUCTURAL: dict[str, type[Operator]] = {
    "tabfeed.ops.node:Asked": Dependencies,
    "tabfeed.ops.node:Concat": Concat,
    "tabfeed.ops.node:Exclude": Exclude,
    "tabfeed.ops.node:Selection": Selection,
    "tabfeed.ops.node:Subset": Subset,
    "tabfeed.ops.loop:Entrance": Entrance,
    "tabfeed.ops.loop:Loop": Loop,
}


@functools.cache
def _own() -> dict[str, type[Operator]]:
    """Tabfeed's operators by the names they are saved under."""
    public = [getattr(ops, n) for n in ops.__all__ if n not in ("Operator", "StatOperator")]
    return _STRUCTURAL | {
        f"tabfeed.ops:{kind.__name__}": kind  # so `UDF` goes by the name LambdaOp
        for kind in public
        if isinstance(kind, type) and issubclass(kind, Operator)
    }


def is_own(kind: type) -> bool:
    """Whether a class is one of tabfeed's operators."""
    return kind in _own().values()


# -- names, when saving -------------------------------------------------------------


def operator_name(kind: type[Operator], where: str) -> tuple[str, bool]:
    """The name to save an operator's class under, and whether it is one of tabfeed's."""
    for name, own in _own().items():
        if own is kind:
            return name, True
    if registered().get(name := class_name(kind)) is kind:
        return name, False
    return import_path(kind, where), False


def import_path(what: Any, where: str) -> str:
    """``module:name`` of a function or class that can be imported again."""
    if isinstance(what, np.ufunc):
        if _ufunc(f"numpy:{what.__name__}") is what:
            return f"numpy:{what.__name__}"
        raise ArtefactError(f"{where}: {what!r} has no name to import it by; {_ADVICE}")
    module, name = getattr(what, "__module__", None), getattr(what, "__qualname__", None)
    if isinstance(what, functools.partial) or module is None or name is None:
        raise ArtefactError(f"{where}: {what!r} has no name to import it by; {_ADVICE}")
    if "<lambda>" in name or "<locals>" in name or module == "__main__":
        kind = "a lambda" if "<lambda>" in name else f"{name!r}, defined in {_place(name)},"
        raise ArtefactError(
            f"{where}: {kind} cannot be found again when the workflow is loaded; {_ADVICE}"
        )
    found: Any = sys.modules.get(module, what)
    for part in name.split(".") if module in sys.modules else ():
        found = getattr(found, part, None)
    if found is not what and not (inspect.ismethod(what) and found == what):
        raise ArtefactError(
            f"{where}: {what!r} is called {module}:{name}, and something else is found under that "
            f"name; {_ADVICE}"
        )
    return f"{module}:{name}"


def _place(name: str) -> str:
    return "another function" if "<locals>" in name else "the script itself (__main__)"


def _ufunc(name: str) -> np.ufunc | None:
    """The NumPy ufunc of a name such as ``numpy:log1p``: it computes, and does nothing else."""
    module, _, attribute = name.partition(":")
    found = vars(np).get(attribute) if module == "numpy" else None
    return found if isinstance(found, np.ufunc) else None


# -- code, when loading -------------------------------------------------------------


class Trust:
    """What the caller of `tabfeed.Workflow.load` allows.

    Parameters
    ----------
    operators
        Classes of operators.
    trusted
        Names of modules, with all that is inside them; or True for every module.

    Examples
    --------
    >>> trust = Trust(trusted=["my_features"])
    >>> trust.allows("my_features.text:words"), trust.allows("my_features_2:words")
    (True, False)
    """

    def __init__(
        self, operators: Iterable[type[Operator]] = (), trusted: Iterable[str] | bool = ()
    ) -> None:
        self._operators = registered() | {class_name(o): o for o in operators}
        self._everything = trusted is True
        names = [] if isinstance(trusted, bool) else trusted
        if not isinstance(names, Iterable):
            raise ArgumentError(f"trusted is {trusted!r}; give names of modules, or True")
        self._modules = [names] if isinstance(names, str) else list(names)
        for name in self._modules:
            if not isinstance(name, str):
                raise ArgumentError(f"trusted holds {name!r}; give names of modules, or True")

    def allows(self, path: str) -> bool:
        """Whether the module of ``module:name`` may be imported."""
        module = path.partition(":")[0]
        return self._everything or any(
            module == known or module.startswith(f"{known}.") for known in self._modules
        )

    def require(self, operators: Iterable[str], calls: Iterable[str], where: str) -> None:
        """Refuse, all at once, the names whose modules are not trusted."""
        classes = [n for n in operators if self._find_operator(n) is None]
        functions = [n for n in calls if _ufunc(n) is None]
        for name in [*classes, *functions]:
            if not _is_path(name):
                raise ArtefactError(f"{where}: {name!r} is not the name of an operator or function")
        for name in classes:
            if name.startswith(("tabfeed.", "tabfeed:")):
                raise ArtefactError(
                    f"{where}: {name!r} is not an operator of this tabfeed; upgrade it"
                )
        missing = [n for n in dict.fromkeys([*classes, *functions]) if not self.allows(n)]
        if not missing:
            return
        modules = sorted({n.partition(":")[0] for n in missing})
        shown = missing[:20] + ["..."] * (len(missing) > 20)
        advice = f"load it with Workflow.load(path, trusted={modules[:20]!r})"
        if any(n in classes for n in missing):
            advice += ", or pass the operators' classes: Workflow.load(path, operators=[...])"
        raise ArtefactError(
            f"{where}: the workflow uses code that is not tabfeed's: {', '.join(shown)}. Importing "
            f"a module runs it; if you trust what is installed under these names, {advice}"
        )

    def operator(self, name: str, where: str) -> type[Operator]:
        """The class of an operator."""
        found = self._find_operator(name)
        if found is None:
            found = self._import(name, where)
        if not (isinstance(found, type) and issubclass(found, Operator)):
            raise ArtefactError(f"{where}: {name!r} is not an operator")
        return found

    def function(self, name: str, where: str) -> Callable[..., Any]:
        """The function of a name."""
        found = _ufunc(name) or self._import(name, where)
        if not callable(found):
            raise ArtefactError(f"{where}: {name!r} is not a function")
        return found

    def _find_operator(self, name: str) -> type[Operator] | None:
        if name in _own():
            return _own()[name]
        if name in self._operators or not name.startswith("__main__:"):
            return self._operators.get(name)
        # Saved by the script that defines it, and loaded where that is imported.
        suffix = name.removeprefix("__main__")
        return next((o for n, o in self._operators.items() if n.endswith(suffix)), None)

    def _import(self, path: str, where: str) -> Any:
        module, _, name = path.partition(":")
        if not (_is_path(path) and self.allows(path)):
            raise ArtefactError(f"{where}: {module!r} is not a trusted module")
        try:
            found: Any = importlib.import_module(module)
        except ImportError as e:
            raise ArtefactError(
                f"{where}: {path!r} cannot be imported here ({e}); install the package that "
                "defines it, or put the folder of a module of yours on PYTHONPATH"
            ) from e
        except Exception as e:  # the module's own code may raise anything
            raise ArtefactError(
                f"{where}: {module!r} failed while it was imported: {type(e).__name__}: {e}"
            ) from e
        for part in name.split("."):
            found = None if found is None else getattr(found, part, None)
            if isinstance(found, ModuleType):
                break
        if found is None:
            raise ArtefactError(
                f"{where}: {module!r} has no {name!r}; install the version that has"
            )
        if _home(found) != path:
            raise ArtefactError(
                f"{where}: {path!r} is defined elsewhere; a saved workflow names a function by the "
                "module that defines it"
            )
        return found


def _is_path(path: str) -> bool:
    """Whether a text is ``module:name``, both dotted names."""
    module, _, name = path.partition(":")
    return all(p.isidentifier() for p in [*module.split("."), *name.split(".")])


def _home(found: Any) -> str:
    """Where something is defined."""
    return f"{getattr(found, '__module__', None)}:{getattr(found, '__qualname__', None)}"


def find_calls(value: Any) -> list[str]:
    """The names of functions inside a value as JSON holds it."""
    found: list[str] = []
    todo = [value]
    while todo:
        inner = todo.pop()
        if isinstance(inner, dict) and len(inner) == 1 and "$call" in inner:
            found.append(str(inner["$call"]))
        if isinstance(inner, dict | list):
            todo += reversed(inner.values() if isinstance(inner, dict) else inner)
    return found
