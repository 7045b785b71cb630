"""Embedding tables grow without touching what was trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tabfeed.errors import ArgumentError
from tabfeed.framework_utils.torch import grow_embedding


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_old_rows_stay_and_options_too(kind: type) -> None:
    old = kind(4, 3, padding_idx=0, sparse=True)
    new = grow_embedding(old, 2, seed=1)
    assert type(new) is kind
    assert new.weight.shape == (6, 3)
    assert torch.equal(new.weight[:4], old.weight)
    assert (new.padding_idx, new.sparse, new.weight.requires_grad) == (0, True, True)
    assert old.weight.shape == (4, 3)


def test_the_same_seed_gives_the_same_rows() -> None:
    old = nn.Embedding(4, 3)
    a, b = grow_embedding(old, 2, seed=5), grow_embedding(old, 2, seed=5)
    assert torch.equal(a.weight, b.weight)
    assert a.weight[4:].abs().sum() > 0


def test_nothing_to_add_and_nonsense() -> None:
    old = nn.Embedding(2, 2)
    assert grow_embedding(old, 0) is old
    with pytest.raises(ArgumentError, match="rows is -1"):
        grow_embedding(old, -1)
