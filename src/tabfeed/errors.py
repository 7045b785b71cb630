"""Every exception tabfeed raises.

::

    TabfeedError
    ├── ArgumentError (ValueError)          an option has a value that cannot be used
    │   └── UnknownArgumentError (TypeError)  there is no option of that name; the nearest ones
    ├── MissingExtraError (ImportError)     an optional library is not installed
    ├── SchemaError (ValueError)            columns or types are not what was expected
    │   ├── ColumnNotFoundError (KeyError)  a named column is absent; lists the nearest names
    │   ├── DuplicateColumnError            one name, two columns
    │   └── SchemaMismatchError             two files disagree about a column
    ├── DatasetError                        reading or writing data failed
    │   ├── SourceNotFoundError (FileNotFoundError)   no such path, an empty folder or glob
    │   ├── BadFileError                    a file is damaged or not what its name says
    │   ├── UnreadableFileError (OSError)   the file exists, but may not or cannot be read
    │   ├── UnfinishedDatasetError          a folder whose writing was interrupted
    │   ├── DatasetExistsError (FileExistsError)      would overwrite without overwrite=True
    │   └── WriteError (OSError)            the disk is full, or a file cannot be written
    ├── WorkflowError                       a graph of operators cannot be fitted or applied
    │   ├── GraphError (ValueError)         the graph itself is wrong; raised while building it
    │   ├── NotFittedError                  transform before fit
    │   └── OperatorError                   an operator failed; names node, operator and column
    ├── ClusterError                        a cluster cannot do the work; names the task
    ├── ArtefactError                       a saved workflow cannot be written or read
    └── LoaderError                         batches cannot be made
        ├── FunctionError (RuntimeError)    a function you gave raised StopIteration
        └── StateError (ValueError)         a saved loader state does not fit this loader

Each message says what is wrong, where, and what to do. Each class also
derives from the builtin a caller would guess, so ``except FileNotFoundError``
works as well as ``except TabfeedError``.

Warnings derive from `TabfeedWarning`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "ArgumentError",
    "ArtefactError",
    "BadFileError",
    "ClusterError",
    "ColumnNotFoundError",
    "DatasetError",
    "DatasetExistsError",
    "DuplicateColumnError",
    "FunctionError",
    "GraphError",
    "LoaderError",
    "MissingExtraError",
    "NotFittedError",
    "OperatorError",
    "SchemaError",
    "SchemaMismatchError",
    "SkippedFileWarning",
    "SourceNotFoundError",
    "StateError",
    "TabfeedError",
    "TabfeedWarning",
    "UnfinishedDatasetError",
    "UnknownArgumentError",
    "UnreadableFileError",
    "WorkflowError",
    "WriteError",
]


class TabfeedError(Exception):
    """Base of everything tabfeed raises on purpose."""

    def __str__(self) -> str:
        # KeyError would print the repr of its message; every class here prints the message.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        # An error crosses to another process with its attributes and notes, whatever its
        # constructor takes.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[TabfeedError], args: tuple[Any, ...], state: dict[str, Any]) -> TabfeedError:
    error = cls.__new__(cls, *args)
    super(TabfeedError, error).__init__(*args)  # the builtin's, not our subclass's
    error.__dict__.update(state)
    return error


class ArgumentError(TabfeedError, ValueError):
    """An option has a value that cannot be used."""


class UnknownArgumentError(ArgumentError, TypeError):
    """There is no argument of that name; the message lists the nearest ones."""


class MissingExtraError(TabfeedError, ImportError):
    """An optional library is not installed.

    Examples
    --------
    >>> print(MissingExtraError("dask", "Dask DataFrames"))
    Dask DataFrames need an optional library: pip install "tabfeed[dask]"
    """

    def __init__(self, extra: str, feature: str) -> None:
        self.extra = extra
        message = f'{feature} need an optional library: pip install "tabfeed[{extra}]"'
        super().__init__(message)


class SchemaError(TabfeedError, ValueError):
    """Columns or types are not what was expected."""


class ColumnNotFoundError(SchemaError, KeyError):
    """A named column is absent.

    Examples
    --------
    >>> print(ColumnNotFoundError("lable", ["label", "C1"], where="train.parquet"))
    there is no column 'lable' in train.parquet; did you mean 'label'? (2 columns: label, C1)
    """

    def __init__(self, name: str, available: Iterable[str], *, where: str = "the data") -> None:
        names = list(available)
        self.name = name
        self.available = names
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        shown = shown.encode(errors="backslashreplace").decode()  # half a surrogate pair of JSON
        super().__init__(
            f"there is no column {name!r} in {where}{hint} ({len(names)} columns: {shown})"
        )


class DuplicateColumnError(SchemaError):
    """One name, two columns."""


class SchemaMismatchError(SchemaError):
    """Two files disagree about a column and no safe common type exists."""


class DatasetError(TabfeedError):
    """Reading or writing data failed."""


class SourceNotFoundError(DatasetError, FileNotFoundError):
    """No such path, an empty folder, or a glob that matches nothing."""


class BadFileError(DatasetError):
    """A file is damaged, or is not what its name says.

    Attributes
    ----------
    file, row_group, column
        Where the damage is, as far as it is known.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str,
        row_group: int | None = None,
        column: str | None = None,
    ) -> None:
        self.file = file
        self.row_group = row_group
        self.column = column
        super().__init__(message)


class UnreadableFileError(DatasetError, OSError):
    """The file exists, but cannot be read: no permission, or an I/O error."""


class UnfinishedDatasetError(DatasetError):
    """A folder whose writing was interrupted."""


class DatasetExistsError(DatasetError, FileExistsError):
    """Writing would replace an existing dataset, and ``overwrite`` is not True."""


class WriteError(DatasetError, OSError):
    """A file cannot be written: the disk is full, the folder is read-only, and the like."""


class WorkflowError(TabfeedError):
    """A graph of operators cannot be fitted or applied."""


class GraphError(WorkflowError, ValueError):
    """The graph itself is wrong; raised while it is built."""


class NotFittedError(WorkflowError):
    """Transform before fit."""


class OperatorError(WorkflowError):
    """An operator failed; the message names node, operator and column."""


class ClusterError(TabfeedError):
    """A cluster cannot do the work, or gave up a task; the message names the task."""


class ArtefactError(TabfeedError):
    """A saved workflow cannot be written or read."""


class LoaderError(TabfeedError):
    """Batches cannot be made."""


class FunctionError(LoaderError, RuntimeError):
    """A function you gave raised StopIteration, which would end the loop that calls it."""


class StateError(LoaderError, ValueError):
    """A saved loader state does not fit this loader."""


class TabfeedWarning(UserWarning):
    """Base of the warnings tabfeed gives: each is something the user can act on."""


class SkippedFileWarning(TabfeedWarning):
    """Files were left out because ``on_bad_file="skip"`` was given."""
