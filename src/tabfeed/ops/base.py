"""What an operator is.

An operator says which columns it makes (`Operator.output_schema`) and makes them
(`Operator.transform`). One that learns adds three methods: `StatOperator.partial`
summarises one partition, `StatOperator.merge` joins two summaries, and
`StatOperator.finish` turns the summary of all data into attributes whose names end in
``_``. Because merging is associative, the same operator fits a frame, a folder larger than
memory, or a cluster, and the result does not depend on how the data was cut.

Frames come as Polars lazy frames, so that a chain of operators becomes one plan. An
operator that works on whole Arrow columns instead (dictionaries, lists, look-ups) sets
``eager = True`` and gets and returns Arrow tables.

A summary is plain: numbers, strings, lists, dicts and Arrow tables. That is what makes
saving work without pickle, for users' operators too, and what makes an update possible:
the summary of new data is merged into the kept one.

A summary that may not fit into memory is a dict of `LargeState` parts instead, one for each column
or group of columns, and `StatOperator.large_parts` names them. A fit then spills parts to disk when
its memory limit is reached; a cluster joins different parts, and hash partitions of one part, on
different workers. Categorify, FillMedian, JoinGroupby and TargetEncoding learn in this way.

A saved workflow names its operators, and loading one must run no code that the folder chooses. So
names are looked up, and never imported: tabfeed's own operators have fixed names, and a class of a
user's is found once it is registered (`register`). A module that is not needs
``Workflow.load(..., trusted=...)`` (`tabfeed.workflow.trust`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from tabfeed.arguments import refuse_unknown
from tabfeed.errors import ArgumentError, NotFittedError
from tabfeed.ops.state.memory import MemoryManager, Spills
from tabfeed.schema import ColumnSchema, Schema

if TYPE_CHECKING:
    from tabfeed.ops.graph.node import Node

Self = TypeVar("Self")


@dataclass(frozen=True)
class Inputs:
    """What an operator works on, apart from the data itself.

    Parameters
    ----------
    schema
        Every column in the frame: the selected ones first, then its dependencies
        (a target, a key).
    names
        The selected columns.
    groups
        The selected columns as groups; a column that is in no group is a group of its own.
    training
        Whether this is the data that was fitted, inside ``fit_transform``.
    offset
        Number of the first row of this partition within the dataset.
    memory
        While fitting: how much may be held, and where to spill.
    """

    schema: Schema
    names: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    training: bool = False
    offset: int = 0
    memory: MemoryManager = field(default_factory=MemoryManager, compare=False, repr=False)

    @classmethod
    def of(cls, schema: Schema, groups: Iterable[Sequence[str]] | None = None) -> Inputs:
        """All columns of a schema, each alone unless `groups` says otherwise."""
        names = tuple(schema.column_names)
        chosen = tuple((n,) for n in names) if groups is None else tuple(tuple(g) for g in groups)
        return cls(schema, names, chosen)

    @property
    def columns(self) -> list[ColumnSchema]:
        """The selected columns."""
        return [self.schema[n] for n in self.names]


class _Arrow(type):
    """Lets ``["a", "b"] >> Normalize`` stand for ``["a", "b"] >> Normalize()``."""

    def __rrshift__(cls, other: Any) -> Node:
        return other >> cls()  # type: ignore[no-any-return]


class Operator(metaclass=_Arrow):
    """A step that needs no fitting. Subclasses keep each argument under its own name.

    Attributes
    ----------
    eager
        Whether `transform` and `StatOperator.partial` get Arrow tables instead of lazy frames.
    reads_dictionaries
        Whether text columns are better read dictionary-encoded.
    dependencies_only_for_fit
        Whether `dependencies` are read to learn only, and absent in `transform`.
    uses_row_numbers
        Whether it needs ``inputs.offset``; finding it may take counting the rows of the files.

    Examples
    --------
    >>> import polars as pl
    >>> class Double(Operator):
    ...     def transform(self, frame, inputs):
    ...         return frame.select(pl.col(n) * 2 for n in inputs.names)
    >>> Double()(pl.DataFrame({"a": [1, 2]})).to_dict(as_series=False)
    {'a': [2, 4]}
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _with_known_arguments(cls.__init__)  # type: ignore[method-assign]

    eager: ClassVar[bool] = False
    reads_dictionaries: ClassVar[bool] = False
    dependencies_only_for_fit: ClassVar[bool] = False
    uses_row_numbers: ClassVar[bool] = False

    # -- what a subclass writes ---------------------------------------------------

    def output_schema(self, inputs: Inputs) -> Schema:
        """The columns this operator makes; by default those it is given, unchanged in type."""
        return inputs.schema.select(inputs.names)

    def transform(self, frame: Any, inputs: Inputs) -> Any:
        """Make the output columns: a lazy frame from a lazy frame, a table from a table."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it transforms")

    # -- what a subclass may add --------------------------------------------------

    def transform_row(self, row: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        """Make the output of one row of Python values; without it a table of one row is used."""
        raise NotImplementedError

    @property
    def dependencies(self) -> list[Any]:
        """Columns needed beside the selected ones: names, selectors or nodes.

        Where such an argument may be a selector or a node, `params` gives None for it: the graph
        is saved with these columns.
        """
        return []

    @property
    def changes_rows(self) -> bool:
        """Whether rows are dropped, added or moved."""
        return False

    @property
    def reach(self) -> tuple[int, int]:
        """How many rows before and after a row its result depends on."""
        return 0, 0

    @property
    def shuffle_keys(self) -> list[str] | None:
        """Columns whose equal values must meet in one partition before this operator runs."""
        return None

    def params(self) -> dict[str, Any]:
        """The constructor's arguments, to save and to show."""
        names = list(inspect.signature(type(self)).parameters)
        return {n: getattr(self, n) for n in names}

    # -- what comes with it -------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether it can transform."""
        return True

    @property
    def label(self) -> str:
        """A short name, for pictures and messages."""
        return type(self).__name__

    def state(self) -> dict[str, Any]:
        """What was learned, as plain values and Arrow tables."""
        return {}

    def restore(self, state: Mapping[str, Any], inputs: Inputs) -> None:
        """Take back what `state` gave."""

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse a saved state that is not what `state` gives; `at` is its place in the file."""

    def attach(self, parent: Node | None) -> Any:
        """A node of this operator behind `parent`; None if it cannot stand without one."""
        from tabfeed.ops.graph.node import Node

        return None if parent is None else Node(self, [parent])

    def placed(self, parents: tuple[Node, ...]) -> Operator:
        """The operator as it stands behind `parents`; itself, unless that matters to it."""
        return self

    def __rrshift__(self, other: Any) -> Node:
        from tabfeed.ops.graph.node import Node

        node: Node = self.attach(Node.of(other))
        return node

    def __call__(self, frame: Any) -> Any:
        """Apply to a frame directly, outside a workflow."""
        from tabfeed.ops.frames import apply

        return apply(self, frame)

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in _changed(self).items())
        return f"{type(self).__name__}({shown})"


@runtime_checkable
class LargeState(Spills, Protocol):
    """A part of a summary that may be larger than memory: counts of values, say.

    It has four methods: `join` two parts, `split` one, ``nbytes()`` held in memory, and ``spill()``
    to disk. For any parts, splitting, joining equal numbers and joining the results gives the same
    as joining the parts; spilling changes nothing but where the data is.
    `tabfeed.testing.op.check_op` tests both.

    Parts travel between processes by pickle, and files stay behind: ``__getstate__`` returns
    what was spilled too.

    Attributes
    ----------
    memory
        The memory limit of the fit; ``memory.new_file()`` is a path to spill to. `partial` takes it
        from ``inputs.memory``; a fit sets it anew on a part that comes from another process.

    Examples
    --------
    >>> import polars as pl
    >>> class Values:
    ...     def __init__(self, parts, memory):
    ...         self.parts, self.files, self.memory = parts, [], memory
    ...     def join(self, other):
    ...         self.parts += other.parts
    ...         self.files += other.files
    ...         return self
    ...     def split(self, count):
    ...         whole = self.whole()
    ...         number = whole["v"].hash() % count
    ...         return [Values([whole.filter(number == i)], self.memory) for i in range(count)]
    ...     def nbytes(self):
    ...         return sum(p.estimated_size() for p in self.parts)
    ...     def spill(self):
    ...         self.files.append(self.memory.new_file())
    ...         pl.concat(self.parts).write_parquet(self.files[-1])
    ...         self.parts = []
    ...     def whole(self):
    ...         return pl.concat([*self.parts, *map(pl.read_parquet, self.files)]).unique()
    ...     def __getstate__(self):
    ...         return {"parts": [self.whole()], "files": [], "memory": self.memory}
    >>> isinstance(Values([], MemoryManager()), LargeState)
    True
    """

    memory: MemoryManager

    def join(self: Self, other: Self) -> Self:
        """Both parts as one. Neither is used afterwards, so the result may be one of them."""
        ...

    def split(self: Self, count: int) -> Sequence[Self]:
        """Return `count` smaller parts instead of this one, which is not used afterwards.

        What is joined to one entry must have the same number in every split, on every machine: by a
        hash of the value, for instance.
        """
        ...


class StatOperator(Operator):
    """A step that learns from the data before it can transform.

    ``only_for_update`` names what of its `state` is needed by `update` alone; it is kept under the
    same name with ``_`` behind, is None where it was left out, and does not travel.

    Examples
    --------
    >>> import polars as pl
    >>> class Centre(StatOperator):
    ...     def transform(self, frame, inputs):
    ...         return frame.select(pl.col(n) - self.mean_[n] for n in inputs.names)
    ...     def partial(self, frame, inputs):
    ...         found = frame.select(pl.all().sum(), rows=pl.len()).collect()
    ...         return found.row(0, named=True)
    ...     def merge(self, a, b):
    ...         return {k: a[k] + b[k] for k in a}
    ...     def finish(self, summary, inputs):
    ...         self.mean_ = {n: summary[n] / summary["rows"] for n in inputs.names}
    >>> op = Centre().fit(pl.DataFrame({"a": [1.0, 3.0]}))
    >>> op.mean_
    {'a': 2.0}
    >>> op(pl.DataFrame({"a": [5.0]})).to_dict(as_series=False)
    {'a': [3.0]}
    """

    only_for_update: ClassVar[tuple[str, ...]] = ()
    summary_: Any = None

    def partial(self, frame: Any, inputs: Inputs) -> Any:
        """Summarise one partition."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it learns")

    def merge(self, a: Any, b: Any) -> Any:
        """Join two summaries; the order of merging must not matter, the order of data may.

        Summaries of `LargeState` parts are joined part by part.
        """
        if not isinstance(a, dict) or not all(isinstance(p, LargeState) for p in a.values()):
            raise NotImplementedError(
                f"{type(self).__name__} does not say how summaries are joined"
            )
        return {name: part.join(b[name]) for name, part in a.items()}

    def large_parts(self, inputs: Inputs) -> Sequence[str]:
        """The keys of a summary whose values are `LargeState`; by default the summary is small.

        Either all values are, or none is. The keys must be known without data. Parts are not saved:
        an operator that has them sets what it needs in `finish`, and must have a `state` and a
        `restore` of its own (and an `update`, to learn more data later). Its `learn` sets
        ``self.summary_`` to the finished tables or to True. `tabfeed.ops.keyed.base.KeyedOperator`
        has all of this for statistics by key. A finished table may be a
        `tabfeed.ops.state.memory.SpilledTable`, which is saved without being held in memory.
        """
        return ()

    def finish(self, summary: Any, inputs: Inputs) -> None:
        """Set what was learned from the summary of all data."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it learned")

    # -- what comes with it -------------------------------------------------------

    @property
    def is_fitted(self) -> bool:
        """Whether it has learned."""
        return self.summary_ is not None

    def learn(self, summary: Any, inputs: Inputs) -> None:
        """Finish, and keep the summary so that it can be saved and updated."""
        self.finish(summary, inputs)
        self.summary_ = summary

    def update(self, summary: Any, inputs: Inputs) -> None:
        """Learn more data on top of what is known."""
        self.learn(self.merge(self.summary_, summary), inputs)

    def forget(self) -> None:
        """Go back to being unfitted."""
        for name in [n for n in vars(self) if n.endswith("_") and not n.startswith("_")]:
            delattr(self, name)

    def state(self) -> dict[str, Any]:
        """The summary."""
        return {"summary": self.summary_}

    def restore(self, state: Mapping[str, Any], inputs: Inputs) -> None:
        """Learn from a saved summary."""
        self.learn(state["summary"], inputs)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to transform: counts kept for an update stay here."""
        return {
            **vars(self),
            **{f"{k}_": None for k in self.only_for_update if f"{k}_" in vars(self)},
        }

    def require_fitted(self) -> None:
        """Raise unless fitted."""
        if not self.is_fitted:
            raise NotFittedError(
                f"{self.label} has not been fitted; call workflow.fit(dataset) before transform"
            )

    def fit(self, frame: Any) -> StatOperator:
        """Fit on a frame directly, outside a workflow."""
        from tabfeed.ops.frames import fit

        fit(self, frame)
        return self


def _with_known_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that refuses arguments it does not have by naming the nearest ones."""
    known = inspect.signature(init).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return init

    @functools.wraps(init)
    def checked(self: Operator, *args: Any, **kwargs: Any) -> None:
        if not kwargs.keys() <= known.keys():
            refuse_unknown(kwargs, known, type(self).__name__)
        init(self, *args, **kwargs)

    return checked


def _changed(op: Operator) -> dict[str, Any]:
    """Arguments that are not at their defaults."""
    signature = inspect.signature(type(op)).parameters
    try:
        given = op.params()
    except AttributeError:
        return {}
    out = {}
    for name, value in given.items():
        default = signature[name].default if name in signature else inspect.Parameter.empty
        if value is not default and repr(value) != repr(default):
            out[name] = value
    return out


Kind = TypeVar("Kind", bound=type[Operator])
_REGISTERED: dict[str, type[Operator]] = {}


def register(operator: Kind) -> Kind:
    """Let saved workflows name an operator of yours; use it as a decorator.

    `tabfeed.Workflow.load` finds a registered class wherever it is defined, in a script or a
    notebook too, and needs no ``operators=`` or ``trusted=`` for it.

    Examples
    --------
    >>> from tabfeed import ops
    >>> @ops.register
    ... class Double(ops.Operator):
    ...     def transform(self, frame, inputs):
    ...         return frame.select(pl.col(n) * 2 for n in inputs.names)
    """
    _REGISTERED[class_name(operator)] = operator
    return operator


def registered() -> dict[str, type[Operator]]:
    """The classes that were registered, by name."""
    return dict(_REGISTERED)


def class_name(operator: type[Operator]) -> str:
    """``module:name``, under which a saved workflow names a class.

    Examples
    --------
    >>> class_name("Double")
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: 'Double' is not a subclass of tabfeed.ops.Operator
    """
    if not (isinstance(operator, type) and issubclass(operator, Operator)):
        raise ArgumentError(f"{operator!r} is not a subclass of tabfeed.ops.Operator")
    return f"{operator.__module__}:{operator.__qualname__}"
