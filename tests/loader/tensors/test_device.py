"""Which device a user means, and whether torch finds it."""

from __future__ import annotations

import pytest
import torch

from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.loader.tensors.device import check_device, choose_device


@pytest.mark.parametrize("device", ["duck", "cuda:x", -1, 1.5])
def test_what_is_no_device(device):
    with pytest.raises(ArgumentError, match='give "cpu", "cuda", "cuda:1" or a GPU'):
        choose_device(device)


def test_the_default_is_the_gpu_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for there, name in ((True, "cuda:0"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device(None) == torch.device(name)


@pytest.mark.parametrize("device", [None, "cuda", torch.device("cuda")])
def test_a_gpu_without_a_number_is_the_current_one(monkeypatch, device):
    """It is asked for here: in other threads the current one would be the first."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert choose_device(device) == torch.device("cuda:3")
    assert choose_device("cuda:1") == choose_device(1) == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")


def test_without_a_gpu_a_name_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("cuda") == torch.device("cuda")


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LoaderError, match="device is 'cuda', but torch finds no GPU here"):
        check_device(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device(torch.device("cuda:1"))
    with pytest.raises(LoaderError, match="device is 'cuda:2', but there are 2 GPUs, from 0 on"):
        check_device(torch.device("cuda:2"))
