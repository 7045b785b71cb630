"""The tensors of a batch, however deep they lie in it."""

from __future__ import annotations

import functools
import importlib
import math
import weakref
from collections import OrderedDict, UserDict, UserList, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from tabfeed.loader.tensors import tree
from tabfeed.loader.tensors.tree import copied, tensors_in, with_tensors
from tabfeed.loader.torch.base import StaticBatch


class Pair(NamedTuple):
    x: torch.Tensor
    y: object


def one(number=1):
    return torch.tensor(number)


def values(value):
    return [tensor.item() for tensor in tensors_in(value)]


def whole(tensor):
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def test_what_is_copied_has_memory_of_its_own():
    chunk = torch.arange(8)
    batch = ({"a": chunk[2:4]}, [chunk[:2], None], Pair(chunk[4:], "text"))
    again = copied(batch)
    assert [type(part) for part in again] == [dict, list, Pair]
    assert again[1][1] is None and again[2].y == "text"
    pairs = list(zip(tensors_in(batch), tensors_in(again), strict=True))
    assert len(pairs) == 3
    assert all(torch.equal(a, b) and whole(b) and not whole(a) for a, b in pairs)


def test_kinds_that_only_the_program_knows_are_left_alone():
    for kind in (UserDict, OrderedDict):
        batch = kind(a=torch.arange(3))
        assert copied((batch, 1))[0] is batch


def test_other_tensors():
    batch = with_tensors([Pair(torch.zeros(1), ()), {"a": 3}], iter([torch.ones(2)]))
    assert batch[0].x.tolist() == [1, 1] and batch[1] == {"a": 3}


# -- in objects of any kind ------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    a: Any
    b: Any = None


@dataclass(slots=True)
class Slim:
    a: Any
    b: Any = None


class Private:
    __slots__ = ("__dict__", "__hidden", "empty")

    def __init__(self, value):
        self.__hidden = value


class Named(Pair):
    """A named tuple that has attributes beside its fields."""


class Keyed(dict):
    """A dict that has attributes beside its items."""


class Jagged:
    """Keeps its tensors as TorchRec's does."""

    def __init__(self, values, lengths):
        self._keys, self._values, self._lengths = ["a"], values, lengths
        self._weights = self._offsets = self._jt_dict = None


def with_attribute(kind, value, *arguments, **named):
    made = kind(*arguments, **named)
    made.beside = value
    return made


@pytest.mark.parametrize(
    "value",
    [
        Data({"x": one()}, [one(2)]),
        Slim(one(), Slim((one(2),))),
        SimpleNamespace(a=Data(one()), b=one(2)),
        Pair(one(), Pair(one(2), None)),
        with_attribute(Named, one(2), one(), "text"),
        with_attribute(Keyed, one(2), a=one()),
        with_attribute(Private, one(1), one(2)),
        UserDict(a=one(), b=Data(one(2))),
        UserList([one(), one(2)]),
        deque([one(), one(2)]),
        Data(deque([one()]), UserDict(a=one(2))),
        Data(frozenset({one()}), OrderedDict(a=one(2))),
        functools.partial(print, one(), end=one(2)),
        Jagged(one(), one(2)),
        [Jagged(one(), None), Data(one(2))],
    ],
    ids=lambda value: type(value).__name__,
)
def test_tensors_are_found_wherever_they_are_kept(value):
    assert sorted(values(value)) == sorted(values((value, None))) == [1, 2]


@pytest.mark.parametrize("slots", [True, False])
def test_those_of_attrs(slots):
    kind = pytest.importorskip("attrs").make_class("Kind", ["a", "b"], slots=slots)
    assert values(kind(one(), [kind(one(2), None)])) == [1, 2]


def test_those_of_a_keyed_jagged_tensor():
    module = pytest.importorskip("torchrec.sparse.jagged_tensor")
    numbers, lengths = torch.tensor([5, 6, 7]), torch.tensor([1, 0, 2, 0])
    keyed = module.KeyedJaggedTensor(keys=["a", "b"], values=numbers, lengths=lengths)
    found = {id(tensor) for tensor in tensors_in(({"jagged": keyed}, one()))}
    assert {id(numbers), id(lengths)} < found
    assert len(set(map(id, tensors_in(keyed.to_dict())))) >= 2  # it keeps what was made of it


def test_what_goes_round_in_circles():
    node = SimpleNamespace(value=one())
    node.self, node.pair = node, [node, one(2)]
    assert values(node) == values([node]) == [1, 2]
    around = [one(), {}]
    around[1]["back"] = around
    assert values(around) == [1]
    assert values(Data(around, around)) == [1]


def test_a_long_chain_ends_somewhere():
    last = chain = SimpleNamespace(value=one(0))
    for number in range(1, 2 * tree._MOST):
        last.next = SimpleNamespace(value=one(number))
        last = last.next
    found = values(chain)
    assert found == list(range(len(found))) and 100 < len(found) <= tree._MOST


def test_many_tensors_are_all_found():
    many = [one(n) for n in range(3 * tree._MOST)]
    assert len(values(Data(many))) == len(values(many)) == 3 * tree._MOST


def test_nothing_is_looked_for_where_no_batch_is():
    """A model, a module, a class, a function: each leads to far too much."""
    model = torch.nn.Linear(2, 2)
    function = functools.wraps(print)(lambda: one())
    function.tensor = one()
    for other in (model, torch, math, Data, function, model.forward, print):
        assert values(Data(other)) == values([other]) == []


class Strange:
    """Wants nobody to look at it."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]


class Unwilling(UserDict):
    def values(self):
        raise OSError("not now")


class Asked:
    @property
    def tensor(self):
        raise AssertionError("a property was asked")


def test_strange_objects_are_no_harm():
    gone = weakref.proxy(Asked())
    batch = (Strange(), Unwilling(), Asked(), gone, range(9), b"x", 2**70, one())
    assert values(batch) == values(Data(list(batch))) == [1]


def test_objects_in_batches_that_stay_in_the_same_tensors():
    """Other tensors get their places all the same."""
    static = StaticBatch()
    for number in range(3):
        first, second = Data(one(number)), with_attribute(Keyed, one(number), x=one(number + 10))
        batch = static.take((first, one(number + 20), second, Pair(one(number + 30), None)))
        assert batch[0] is first and batch[1].item() == number + 20
        assert batch[2]["x"].item() == number + 10 and batch[3].x.item() == number + 30


def test_all_tensors_of_a_batch_are_told_to_the_allocator():
    """What `record_stream` is called for: one tensor of each piece of memory."""
    owners = importlib.import_module("tabfeed.loader.gpu.delivery")._owners
    whole = torch.arange(6)
    tensors = [whole[:2], whole[2:], one(7)]
    for tensor in tensors:
        assert not tensor.is_cuda
    batches = [({"jagged": Jagged(tensors[0], tensors[2])}, Data(tensors[1]))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", True)
        found = list(owners(batches))
    assert found == [tensors[0], tensors[2]]


ROWS = [torch.ones(1), torch.ones(2)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, that these are new
@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), 1),
        (
            lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
            2,
        ),
        (lambda: torch.eye(3).to_sparse(), 2),
        (lambda: torch.eye(3).to_sparse_csr(), 3),
        (lambda: torch.eye(3).to_sparse_csc(), 3),
        (lambda: torch.eye(4).to_sparse_bsr((2, 2)), 3),
        (lambda: torch.eye(4).to_sparse_bsc((2, 2)), 3),
    ],
)
def test_tensors_that_consist_of_others(make, parts):
    plain = importlib.import_module("tabfeed.loader.gpu.delivery")._dense_parts
    found = plain(make())
    assert len(found) == parts
    assert all(part.layout == torch.strided and part.untyped_storage().nbytes() for part in found)


def test_named_tuples_and_lists_keep_their_kind():
    static = StaticBatch()
    found = static.take([torch.ones(2), ("text", {"a": torch.zeros(1)})])
    assert isinstance(found, list) and found[1][0] == "text" and found[1][1]["a"].tolist() == [0]
    pair = StaticBatch().take(Pair(torch.ones(1), None))
    assert isinstance(pair, Pair) and pair.x.tolist() == [1] and pair.y is None
