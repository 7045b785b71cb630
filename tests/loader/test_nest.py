"""The tensors of a batch, however deep they lie in it."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import NamedTuple

import torch

from tabfeed.loader.torch.nest import copied, tensors_in, with_tensors


class Pair(NamedTuple):
    x: torch.Tensor
    y: object


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
