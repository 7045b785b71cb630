"""`check_loader` finds what is wrong: each broken loader here breaks one promise."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from tabfeed.loader.torch import Loader
from tabfeed.testing.loader import check_loader


def read(batch):
    inputs, y = batch
    values, offsets = inputs["words__values"].tolist(), inputs["words__offsets"].tolist()
    words = [values[a:b] for a, b in pairwise(offsets)]
    return {n: inputs[n] for n in ("key", "check", "x")} | {"y": y, "words": words}


class Good:
    """A loader that does everything right, to be broken by those below."""

    def __init__(self, dataset, **options):
        self.options = options
        self.loader = Loader(dataset, targets=["y"], **options)

    def __iter__(self):
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)

    def __getattr__(self, name):
        return getattr(self.loader, name)


class LosesARow(Good):
    def __iter__(self):
        for inputs, y in self.loader:
            short = {n: t if "words" in n else t[1:] for n, t in inputs.items()}
            short["words__offsets"] = inputs["words__offsets"][1:] - inputs["words__offsets"][1]
            short["words__values"] = inputs["words__values"][inputs["words__offsets"][1] :]
            yield short, y[1:]


class PartsLabels(Good):
    def __iter__(self):
        for inputs, y in self.loader:
            yield inputs, y.flip(0)


class PartsLists(Good):
    def __iter__(self):
        for inputs, y in self.loader:
            yield inputs | {"words__values": inputs["words__values"].flip(0)}, y


class UnequalRanks(Good):
    def __iter__(self):
        batches = list(self.loader)
        return iter(batches[: len(batches) - self.options.get("global_rank", 0)])

    def __len__(self):
        return len(self.loader) - self.options.get("global_rank", 0)


class WrongLength(Good):
    def __len__(self):
        return len(self.loader) + 1


class SameOrderEveryEpoch(Good):
    def __iter__(self):
        self.loader.set_epoch(0)
        return iter(self.loader)


class ForgetsItsState(Good):
    def load_state_dict(self, state):
        pass


class SwallowsErrors(Good):
    def __iter__(self):
        try:
            yield from self.loader
        except RuntimeError:
            return


class OverwritesBatches(Good):
    """Gives the same memory again and again."""

    def __iter__(self):
        held = None
        for inputs, y in self.loader:
            if held is not None and len(held[1]) == len(y):
                for name in ("key", "check", "x"):
                    held[0][name].copy_(inputs[name])
                held[1].copy_(y)
            held = inputs, y
            yield inputs, y


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (LosesARow, "check_every_row_once", "missing or came twice"),
        (PartsLabels, "check_every_row_once", "y is not that of its row"),
        (PartsLists, "check_every_row_once", "lists are not those of their rows"),
        (UnequalRanks, "check_every_row_once", "unequal steps"),
        (WrongLength, "check_every_row_once", "len"),
        (SameOrderEveryEpoch, "check_order", "repeats the order"),
        (ForgetsItsState, "check_restore", "differ after a restore"),
        (SwallowsErrors, "check_errors_arrive", "swallowed"),
        (OverwritesBatches, "check_kept_batches", "lists are not those of their rows"),
    ],
)
def test_a_broken_promise_is_found(broken, check, message):
    with pytest.raises(AssertionError, match=message):
        check_loader(broken, read, skip=all_but(check))


def test_a_thread_that_stays_is_found(monkeypatch):
    import tabfeed.testing.loader as module

    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    stop = threading.Event()

    class Starts(Good):
        def __iter__(self):
            threading.Thread(target=stop.wait, args=(20,), name="tabfeed-left").start()
            return iter(self.loader)

    names = [n for n in dir(_suite()) if n.startswith("check_") and "thread" not in n]
    try:
        with pytest.raises(AssertionError, match="leaves a thread"):
            check_loader(Starts, read, skip=names)
    finally:
        stop.set()


def test_a_good_loader_passes():
    check_loader(Good, read)


def all_but(check):
    """The names of the other checks."""
    return [n for n in dir(_suite()) if n.startswith("check_") and n != check]


def _suite():
    from tabfeed.testing.loader import _Suite

    return _Suite
