"""Errors: the tree is as drawn, messages help, and each survives a trip to another process."""

import inspect
import pickle
import re

import pytest

from tabfeed import errors
from tabfeed.errors import BadFileError, ColumnNotFoundError, MissingExtraError, TabfeedError

CLASSES = [getattr(errors, name) for name in errors.__all__]
EXCEPTIONS = [c for c in CLASSES if issubclass(c, TabfeedError)]


def make(cls: type[TabfeedError]) -> TabfeedError:
    if cls is ColumnNotFoundError:
        return cls("lable", ["label", "price"], where="train.parquet")
    if cls is MissingExtraError:
        return cls("dask", "Dask DataFrames")
    if cls is BadFileError:
        return cls("row group 3 is damaged", file="a.parquet", row_group=3, column="price")
    return cls("what came, what was expected, what to do")


def test_every_exception_is_public() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value)
        and issubclass(value, Exception | Warning)
        and value.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = dict(re.findall(r"[├└]── (\w+)(?: \((\w+)\))?", errors.__doc__ or ""))
    assert set(drawn) | {"TabfeedError"} == {c.__name__ for c in EXCEPTIONS}
    for name, builtin in drawn.items():
        bases = {b.__name__ for b in getattr(errors, name).__bases__}
        assert (builtin in bases) if builtin else len(bases) == 1, name


def test_the_indentation_of_the_tree_is_the_inheritance() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if "──" in line]
    parents = {0: "TabfeedError"}
    for line in lines:
        level = line.index("──") // 4
        name = re.search(r"── (\w+)", line)[1]
        assert parents[level - 1] in {b.__name__ for b in getattr(errors, name).__bases__}, line
        parents[level] = name


@pytest.mark.parametrize("cls", EXCEPTIONS, ids=lambda c: c.__name__)
def test_an_error_pickles_with_its_message_attributes_and_notes(cls: type[TabfeedError]) -> None:
    error = make(cls)
    error.add_note("while fitting") if hasattr(error, "add_note") else None  # Python 3.11
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is cls
    assert str(back) == str(error)
    assert back.__dict__ == error.__dict__
    assert back.args == error.args


def test_a_missing_column_suggests_the_nearest_names() -> None:
    error = ColumnNotFoundError("lable", ["label", "price"], where="train.parquet")
    assert str(error) == (
        "there is no column 'lable' in train.parquet; did you mean 'label'? "
        "(2 columns: label, price)"
    )
    assert (error.name, error.available) == ("lable", ["label", "price"])


def test_a_missing_column_unlike_any_other_lists_some() -> None:
    names = [f"column_{i}" for i in range(40)]
    message = str(ColumnNotFoundError("zzz", names))
    assert message.startswith("there is no column 'zzz' in the data (40 columns: column_0, ")
    assert message.endswith("column_11, ...)")


def test_a_missing_extra_names_the_command() -> None:
    error = MissingExtraError("torch", "The PyTorch loader")
    assert 'pip install "tabfeed[torch]"' in str(error)
    assert error.extra == "torch"


def test_builtins_catch_what_a_caller_would_guess() -> None:
    with pytest.raises(KeyError):
        raise ColumnNotFoundError("a", ["b"])
    with pytest.raises(FileNotFoundError):
        raise errors.SourceNotFoundError("no such path")
    with pytest.raises(ValueError, match="threads"):
        raise errors.ArgumentError("threads is 0")


def test_names_that_cannot_be_encoded_are_shown_all_the_same() -> None:
    """JSON may hold half a surrogate pair; a message with one can neither be printed nor sent."""
    error = errors.ColumnNotFoundError("x", ["\ud800", "y"])
    assert str(error).encode().decode().endswith(r"(2 columns: \ud800, y)")
